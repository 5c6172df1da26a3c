"""One backtest on the page: the same parts as in its report, also where the data is gone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from backend.decisions.backtest_document import write_backtest
from backend.reporting.backtest_sections import SECTIONS, section, tiles
from backend.reporting.blocks import Picture, Table
from backend.reporting.run_summary import RunSummary, summarise
from backend.store.records import BacktestRecord
from backend.store.store import Store
from simulator.data.archive import write_market
from tests.stored_runs import add_backtest_run, add_demo_run, episode, small_market
from tests.ui.page_client import open_part

APP = Path(__file__).resolve().parents[2] / "ui" / "app.py"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the data of a stored backtest."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CRYPTOSENTINEL_STORE", str(tmp_path / "store"))
    write_market(small_market(), tmp_path / "data" / "synthetic")
    return tmp_path


def stored(here: Path, **changes: Any) -> RunSummary:
    """The run in the store, with other keys in the team's result."""
    with Store.open(here / "store") as store:
        add_backtest_run(store, "b")
        if changes:
            store.put(BacktestRecord("b", "scripted", {**episode().result.to_dict(), **changes}))
        return summarise(store, "b")


def opened() -> AppTest:
    app = AppTest.from_file(str(APP), default_timeout=30).run()
    assert not app.exception and not app.error
    return app


def words(app: AppTest) -> str:
    return "\n".join(str(element.value) for kind in (app.markdown, app.caption) for element in kind).replace("\\", "")


def test_the_page_shows_what_the_report_shows(here: Path) -> None:
    summary = stored(here)
    app = opened()
    [window] = summary.windows()
    assert "Equity" in words(app) and "Months" not in words(app), "only what is open is drawn"
    assert [(one.label, one.value) for one in app.metric] == [(one.label, one.value) for one in tiles(window)]
    for name in SECTIONS:
        open_part(app, name)
        said = words(app)
        blocks = section(name, window).blocks
        for block in blocks:
            assert block.title in said
            if isinstance(block, Picture | Table):
                assert block.caption in said
        tables = [block for block in blocks if isinstance(block, Table)]
        shown = [frame.value for frame in app.dataframe][-len(tables) :] if tables else []
        for table, frame in zip(tables, shown, strict=True):
            assert list(frame.iloc[:, 0]) == [row.label for row in table.rows]
            assert len(frame.columns) == 1 + len(table.columns)


def test_another_symbol_shows_its_candles(here: Path) -> None:
    stored(here)
    app = open_part(opened(), "Candles")
    choice = app.selectbox(key="symbol ")
    assert sorted(choice.options) == ["AAAUSDT", "BBBUSDT"]
    other = choice.options[1]
    app.selectbox(key="symbol ").select(other).run()
    assert not app.exception
    assert other in app.get("plotly_chart")[0].proto.spec


def test_data_that_is_gone_is_explained_and_found_again(here: Path) -> None:
    stored(here)
    shutil.move(here / "data", here / "away")
    app = opened()
    for name, needs_data in {
        "Numbers": False,
        "Costs": False,
        "Trades": False,
        "Candles": True,
    }.items():
        assert ("no such folder" in words(open_part(app, name))) == needs_data, name
    shutil.move(here / "away", here / "data")
    assert "no such folder" not in words(app.run())


def test_windows_of_an_evaluation_stand_below_each_other(here: Path) -> None:
    with Store.open(here / "store") as store:
        add_demo_run(store, "demo")
        for window in ("held_out", "other"):
            for name in ("scripted", "hold"):
                write_backtest(store, "demo", f"{window}/{name}", episode().result)
    app = opened()
    answer, first, second = (  # four cards of the answer, then five of each window
        [one.value for one in app.metric][start:stop] for start, stop in ((0, 4), (4, 9), (9, None))
    )
    assert answer == ["+31.0 bp", "+20.0 bp", "80 %", "nothing"] and first == second
    assert len(app.get("plotly_chart")) == 2 + 2 * 3


def test_the_whole_transcript_of_a_decision_can_be_downloaded(here: Path) -> None:
    stored(here)
    app = open_part(opened(), "Decisions")
    labels = [button.proto.label for button in app.get("download_button")]
    assert labels.count("Download the whole transcript") == 1 and not app.exception
