"""What the page's server makes ready: the store, rows of runs, and nothing that takes seconds to import."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.web.server.starlette import App

from backend.store.records import RunRecord
from backend.store.store import Store
from tests.stored_runs import add_backtest_run
from tests.ui.browsing import ROOT
from tests.ui.page_client import open_page, words
from ui.parts import ready
from ui.parts.ready import current_state, prepare, rows_of
from ui.server import needed_modules, serve


def test_a_store_that_nobody_wrote_to_is_not_opened_again(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(here / "store") as store:
        add_backtest_run(store, "one")
    states = [current_state()]
    with monkeypatch.context() as patch:
        patch.setattr(ready, "open_store", lambda: pytest.fail("it was opened"))
        assert current_state() == states[0]
    with Store.open(here / "store") as store:
        changes: list[Callable[[], object]] = [
            lambda: store.add_run(RunRecord("two", "train", 1, "hash", 1, {"config": {}})),
            lambda: store.finish_run("two", "failed"),
            lambda: store.delete_run("two"),
        ]
        for change in changes:
            change()
            states.append(current_state())
            assert states[-1] != states[-2]
    assert states[-1] == states[0]


def test_rows_that_take_long_are_read_at_a_further_look(here: Path) -> None:
    with Store.open(here / "store") as store:
        for name in ("one", "two", "three"):
            add_backtest_run(store, name)
        runs = store.runs()
        rows, left = rows_of(store, runs, seconds=-1.0)
        assert left == 3 and [row.run for row in rows] == [run.run for run in runs]
        assert all(row.total_return is None and row.teams == "Scripted team" for row in rows)
        rows, left = rows_of(store, runs, seconds=60.0)
        assert left == 0 and all(row.total_return is not None for row in rows)


def test_the_page_says_that_runs_are_still_being_read(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(here / "store") as store:
        add_backtest_run(store, "one")
        monkeypatch.setattr(ready, "_ROW_SECONDS", -1.0)
        app = open_page()
        assert not app.exception and "1 runs are still being read" in words(app)
        prepare()
        app.run()
        assert "still being read" not in words(app) and app.dataframe[0].value["return"][0] is not None


def test_what_is_made_ready_imports_nothing_that_takes_seconds() -> None:
    """Not the libraries of training, models and exchanges; neither do the findings of a training that is looked at."""
    code = (
        "import sys\nfrom importlib import import_module\n"
        f"for name in {[*needed_modules(), 'backend.evaluation.doctor']}: import_module(name)\n"
        "print([name for name in ('torch', 'transformers', 'safetensors', 'ccxt', 'gymnasium') if name in sys.modules])"
    )
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"


def test_the_server_begins_with_all_that_a_first_visit_needs(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[dict[str, object]] = []
    monkeypatch.setattr(App, "run", lambda self, config: began.append(config))
    monkeypatch.setattr(sys, "argv", ["cryptosentinel"])
    try:
        serve("localhost", 1, "", lambda: began.append({}))
    finally:
        gc.unfreeze()
    [ready_first, options] = began
    assert ready_first == {} and (options["server.address"], options["server.port"]) == ("localhost", 1)
    assert options["runner.postScriptGC"] is False and options["browser.gatherUsageStats"] is False
    assert {"streamlit.emojis", "pyarrow.pandas_compat"} <= set(sys.modules)
