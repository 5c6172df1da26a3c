"""What a form offers of a folder of bars can be run, on every folder that there is."""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path

import pandas as pd
import pytest

from backend.runs.backtest import plan_backtest
from backend.runs.choices import BacktestChoices
from backend.runs.requests import BacktestRequest
from simulator.errors import UserError

ROOT = Path(__file__).resolve().parents[3]
SHARED = Path(os.environ.get("CRYPTOSENTINEL_SHARED", ROOT.parent / "shared")) / "market-data"
FOLDERS = [
    ROOT / "data" / "synthetic",
    *(sorted(path for path in SHARED.rglob("*") if path.is_dir()) if SHARED.is_dir() else ()),
]


def write_bars(folder: Path, name: str, start: str, bars: int, **columns: float) -> None:
    hours = {"m": 1 / 60, "h": 1.0, "d": 24.0}[name[-1]] * float(name.rpartition("-")[2][:-1])
    times = pd.date_range(start, periods=bars, freq=pd.Timedelta(hours=hours))
    values = columns or {"open": 1.0, "high": 1.1, "low": 0.9, "close": 1.0, "volume": 5.0}
    pd.DataFrame({"timestamp": times, **values}).to_parquet(folder / f"{name}.parquet")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: "-".join(path.parts[-2:]))
def test_the_first_choice_can_be_run(folder: Path) -> None:
    """The form's own first values were refused on recorded data: its symbols had no bars of its timeframe."""
    try:
        choices = BacktestChoices.of(folder)
    except UserError as error:
        assert "bars" in str(error), "a folder of other data says that it has no bars"
        return
    timeframe = choices.timeframe
    symbols = choices.suggested_symbols(timeframe)
    start, end = (day.isoformat() for day in choices.suggested_days(symbols, timeframe))
    plan = plan_backtest(BacktestRequest(data=folder, symbols=symbols, timeframe=timeframe, start=start, end=end))
    assert plan.window.decisions > 20 and plan.market.symbols == symbols
    assert plan.market.present[plan.window.stop].all(), "all of them trade to the end"


@pytest.mark.skipif(not SHARED.is_dir(), reason="the folder of recorded market data is not here")
def test_recorded_folders_were_seen() -> None:
    assert len(FOLDERS) > 3


def test_each_timeframe_that_is_offered_has_a_window(tmp_path: Path) -> None:
    write_bars(tmp_path, "AAA-1h", "2020-01-01", 4000)
    write_bars(tmp_path, "BBB-1h", "2020-02-01", 4000)
    write_bars(tmp_path, "BBB-1m", "2020-01-01", 300)
    write_bars(tmp_path, "CCC-1d", "2019-01-01", 400)
    write_bars(tmp_path, "index-1d", "2019-01-01", 400, value=3.0)
    choices = BacktestChoices.of(tmp_path)
    assert choices.timeframe == "1h" and choices.timeframes[0] == "1m"
    assert choices.symbols("1h") == ("AAA", "BBB") and choices.symbols("1m") == ("BBB",)
    assert choices.symbols("1d") == ("AAA", "BBB", "CCC"), "what is not a bars is not offered"
    assert choices.suggested_days(("AAA", "BBB"), "1h") == (date(2020, 4, 17), date(2020, 6, 16))
    for timeframe in choices.timeframes:
        for symbol in choices.symbols(timeframe):
            start, end = choices.suggested_days((symbol,), timeframe)
            request = BacktestRequest(data=tmp_path, symbols=(symbol,), timeframe=timeframe, teams=("hold",),
                                      start=start.isoformat(), end=end.isoformat())  # fmt: skip
            plan_backtest(request)


def test_what_cannot_be_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        BacktestChoices.of(tmp_path / "nowhere")
    write_bars(tmp_path, "index-1d", "2019-01-01", 400, value=3.0)
    with pytest.raises(UserError, match="hold no bars"):
        BacktestChoices.of(tmp_path)
    write_bars(tmp_path, "AAA-1d", "2019-01-01", 200)
    write_bars(tmp_path, "BBB-1d", "2020-07-01", 200)
    choices = BacktestChoices.of(tmp_path)
    for symbols, words in (((), "no symbol is chosen"), (("AAA", "BBB"), "in common"), (("ZZZ",), "no bars of ZZZ")):
        with pytest.raises(UserError, match=words):
            choices.suggested_days(symbols, "1d")


def test_a_history_that_is_too_short_for_a_team_is_offered_whole(tmp_path: Path) -> None:
    write_bars(tmp_path, "AAA-1d", "2020-01-01", 60)
    choices = BacktestChoices.of(tmp_path)
    assert choices.suggested_days(("AAA",), "1d") == (date(2020, 1, 1), date(2020, 3, 1))
