"""No character that hides, turns or is obeyed reaches a page: all messages to the browser are looked through, on every
page, with such characters in every text that somebody else may have written."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import streamlit as st
from hypothesis import given, strategies
from streamlit.testing.v1 import AppTest, local_script_runner

from backend.experiments.folder import RESULTS
from backend.jobs.files import STATE, JobState, write_part
from backend.jobs.queue import JobQueue
from cryptosentinel.protocol.untrusted import visible
from simulator.data.archive import write_market
from tests.hostile_runs import HOSTILE, RUN, hostile_store
from tests.stored_runs import small_market
from tests.ui.browsing import ROOT
from tests.ui.page_client import open_page, open_part
from ui.parts import drawing
from ui.parts.drawing import show_table

TURNED = "a\u202eb\u2066c\u200bd\u061ce\u007ff\u0085g\u2028h\u3164i\u034fj\x1bk"
_BLANK = "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180f\u2800\u3164\uffa0"
_ESCAPE = re.compile(r"\\u(?!\{)[0-9a-f]{4}", re.IGNORECASE)


def hidden(text: str) -> set[str]:
    """The characters of a text, or of the JSON in it, that hide, turn or are obeyed; white space of lines is none."""
    escaped = {chr(int(one[2:], 16)) for one in _ESCAPE.findall(text.replace("\\\\", ""))}
    return {
        hex(ord(one))
        for one in {*text, *escaped} - {"\n", "\t"}
        if one in _BLANK or unicodedata.category(one) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    }


def texts_of(message: Any) -> Iterator[str]:
    """All texts in a message to the browser, also those in tables."""
    for field, value in message.ListFields():
        many = value.values() if hasattr(value, "values") else value if field.is_repeated else [value]
        for one in many:
            if hasattr(one, "ListFields"):
                yield from texts_of(one)
            elif isinstance(one, str) and not one.startswith("$$"):  # the name of an element, which nobody sees
                yield one
            elif isinstance(one, bytes) and field.name == "data":  # a table in Arrow
                frame = st.dataframe_util.convert_arrow_bytes_to_pandas_df(one)
                yield from map(str, frame.columns)
                for column in frame.columns:
                    yield from (cell for cell in frame[column] if isinstance(cell, str))


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the pages send to the browser."""
    messages: list[Any] = []
    parse = local_script_runner.parse_tree_from_messages

    def kept(of_run: list[Any]) -> Any:
        messages.extend(of_run)
        return parse(of_run)

    monkeypatch.setattr(local_script_runner, "parse_tree_from_messages", kept)
    return messages


def look(app: AppTest, messages: list[Any]) -> None:
    assert not app.exception, app.exception
    assert messages
    for message in messages:
        for text in texts_of(message):
            assert not hidden(text), (message.WhichOneof("type"), text[:300])
    messages.clear()


@pytest.mark.parametrize("kind", ["backtest", "train", HOSTILE + TURNED])
def test_a_run_of_somebody_else_hides_nothing(here: Path, queue: JobQueue, sent: list[Any], kind: str) -> None:
    hostile_store(here / "store", kind)
    app = open_page(run=RUN)
    look(app, sent)
    for name in dict.fromkeys(tab.label for tab in app.tabs if kind == "backtest"):
        open_part(app, name)
        look(app, sent)
    for page in ("new_backtest", "training", "experiments"):
        look(open_page(f"views/{page}.py"), sent)


def test_jobs_and_folders_hide_nothing(here: Path, queue: JobQueue, sent: list[Any]) -> None:
    write_market(small_market(), here / "data" / f"x{TURNED.replace(chr(0x1B), '')}")
    job = queue.submit(("data", "list", TURNED))
    write_part(job.path / STATE, JobState(0, 0, RUN, TURNED, 1, 2, TURNED))
    (job.path / "log").write_text(TURNED)
    look(open_page("views/jobs.py"), sent)
    write_part(job.path / STATE, JobState(0, 0, RUN, TURNED, 1, 2, TURNED, 1, 5))
    for page in ("jobs", "data", "new_backtest", "training", "paper"):
        look(open_page(f"views/{page}.py", job=job.name), sent)
        look(open_page(f"views/{page}.py", job=TURNED, folder=TURNED, session=TURNED, run=TURNED), sent)


def test_an_experiment_hides_nothing(here: Path, sent: list[Any]) -> None:
    source = ROOT / "docs" / "research" / "experiments" / "outcome_share" / RESULTS
    result = _turned(json.loads(source.read_text()))
    folder = here / "runs" / "experiments" / "mine"
    folder.mkdir(parents=True)
    (folder / RESULTS).write_text(json.dumps(result))
    state = {"run": TURNED, "digest": "d", "seeds": [1], "config": {}, "question": TURNED}
    (folder / "experiment.json").write_text(json.dumps(state))
    look(open_page("views/experiments.py"), sent)


def _turned(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _turned(one, name) for name, one in value.items()}
    if isinstance(value, list):
        return [_turned(one, key) for one in value]
    return value + TURNED if isinstance(value, str) and key in ("question", "sentence", "problem", "notes") else value


@given(strategies.text(max_size=40))
def test_what_people_see_hides_nothing_and_loses_nothing(text: str) -> None:
    shown = visible(text)
    assert not hidden(re.sub(r"\\u\{[0-9a-f]+\}", "", shown))
    assert re.sub(r"\\u\{([0-9a-f]+)\}", lambda found: chr(int(found[1], 16)), shown) == re.sub(
        r"\\u\{([0-9a-f]+)\}", lambda found: chr(int(found[1], 16)) if len(found[1]) < 6 else found[0], text
    )


@given(strategies.lists(strategies.text(max_size=8), min_size=1, max_size=4), strategies.text(max_size=8))
def test_a_table_hides_nothing(cells: list[str], heading: str) -> None:
    drawn: list[pd.DataFrame] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing.st, "dataframe", lambda frame, **_: drawn.append(frame))
        show_table(pd.DataFrame({heading: cells, "number": range(len(cells)), "mixed": [None, *cells][: len(cells)]}))
    [frame] = drawn
    assert list(frame.columns) == [visible(heading), "number", "mixed"] and list(frame["number"]) == [
        *range(len(cells))
    ]
    assert list(frame.iloc[:, 0]) == [visible(cell) for cell in cells]


def test_only_one_place_draws_a_table() -> None:
    found = [
        path.name
        for path in (ROOT / "ui").rglob("*.py")
        if re.search(r"st\.(dataframe|table|data_editor)\(", path.read_text())
    ]
    assert found == ["drawing.py"]
