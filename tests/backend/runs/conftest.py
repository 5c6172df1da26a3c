"""A small real backtest of the scripted team, and variants of it, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.runs.backtest import backtest_teams
from backend.runs.requests import BacktestRequest
from simulator.data.archive import write_market
from tests.stored_runs import small_market

START, END = "2020-02-01", "2020-02-09"


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with bars in `bars` and a store with one backtest of eight days in `store`."""
    folder = tmp_path_factory.mktemp("again")
    write_market(small_market(), folder / "bars")
    request = BacktestRequest(
        data=folder / "bars", start=START, end=END, seed=4, baselines=("hold",),
        variants=("without:trader", "no_veto", "shuffled_days", "unmasked", "altered_future"),
    )  # fmt: skip
    backtest_teams(request, folder / "store", folder / "runs")
    return folder
