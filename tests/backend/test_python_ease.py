"""Python takes what people have: a strategy's class, object or function, tables and files of bars, dates."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import cryptosentinel as cs
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate

MARKET = generate(SyntheticConfig(700, 5, ("AAAUSDT",)))
BARS = pd.DataFrame(
    {name.title(): getattr(MARKET, name)[:, 0] for name in ("open", "high", "low", "close", "volume")},
    index=pd.to_datetime(MARKET.open_time, unit="ms"),
)
START = BARS.index[200]
NONE = {"fast": 9, "slow": 3}


class Averages:
    """Long while the fast mean is above the slow one; its parameters are attributes, as backtesting.py has them."""

    fast = 5
    slow = 20

    def decide(self, view: cs.MarketView, account: cs.AccountView) -> list[cs.Target]:
        [symbol] = view.symbols
        closes = view.bars(symbol, self.slow).close
        return [cs.Target(symbol, float(closes[-self.fast :].mean() > closes.mean()))]


@dataclass
class Momentum:
    """The same with a constructor."""

    length: int = 10
    count: int = 0

    def decide(self, view: cs.MarketView, account: cs.AccountView) -> list[cs.Target]:
        self.count += 1
        [symbol] = view.symbols
        closes = view.bars(symbol, self.length).close
        return [cs.Target(symbol, float(closes[-1] > closes[0]))]


def alternate(view: cs.MarketView) -> list[cs.Target]:
    """A function of what is seen alone."""
    return [cs.Target(view.symbols[0], float(view.now // view.interval % 12 == 0))]


def six_bars_later(bars: cs.Bars) -> Any:
    """An indicator that is not causal."""
    return np.append(bars.close[6:], np.repeat(bars.close[-1], 6))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def played(teams: Any, **more: Any) -> cs.BacktestOutcome:
    options = {"data": BARS, "start": START, "baselines": "hold", "decide_every": 6, "store": "mem://"} | more
    return cs.backtest(teams, **options)


def test_a_class_an_object_a_function_and_a_list_of_them() -> None:
    spy = Momentum(length=3)
    result = played([Averages, spy, alternate, "ema_cross"])
    assert list(result.frame().index) == ["Averages", "Momentum", "alternate", "ema_cross", "hold"]
    assert spy.count == 0, "each run has a copy of its own"
    assert set(result.lookahead) == {"Averages", "Momentum", "alternate"}
    assert {verdict.trusted for verdict in result.lookahead.values()} == {True}
    alone = played(Averages)
    pd.testing.assert_series_equal(alone.equity["Averages"], result.equity["Averages"])


def test_what_looks_ahead_is_seen_in_code_of_a_notebook_too() -> None:
    class Peeks:
        def decide(self, view: cs.MarketView, account: cs.AccountView) -> list[cs.Target]:
            [symbol] = view.symbols
            return [cs.Target(symbol, float(view.latest(symbol, six_bars_later) > view.bars(symbol, 1).close[-1]))]

    assert not played(Peeks).lookahead["Peeks"].trusted


def test_bars_as_tables_files_and_dates(here: Path) -> None:
    expected = played(Averages).equity["Averages"].to_numpy()
    BARS.tz_localize("UTC").rename_axis("timestamp").to_csv(here / "BTCUSDT-4h.csv")
    for data in (BARS.rename(columns=str.lower), {"BTCUSDT": BARS}, cs.Market.from_frame(BARS)):
        assert played(Averages, data=data).equity["Averages"].to_numpy() == pytest.approx(expected, abs=0)
    for start in (START.tz_localize("UTC"), START.to_pydatetime(), START.isoformat()):
        assert len(played(Averages, start=start).equity) == len(expected)
    from_file = played(Averages, data="BTCUSDT-4h.csv").equity["Averages"].to_numpy()
    assert from_file == pytest.approx(expected, rel=1e-9)


def test_a_result_prints_its_answer_and_writes_tables(here: Path) -> None:
    result = played(Averages)
    text = repr(result)
    assert text.startswith("Averages made ") and "buy and hold" in text and len(text) < 1_500
    assert "<table" in result._repr_html_() and result.metrics["sharpe"] == result.frame().loc["Averages", "sharpe"]
    paths = result.to_csv(here / "tables")
    assert [path.name for path in paths] == ["metrics.csv", "equity.csv", "trades.csv", "decisions.csv"]
    equity = pd.read_csv(paths[1], index_col=0)
    assert equity["hold"].to_numpy() == pytest.approx(result.equity["hold"].to_numpy())
    assert len(pd.read_csv(paths[2])) == len(result.trades)
    assert list(cs.compare(result).frame().index) == ["hold"], "one alone is compared with its baselines"
    assert cs.__version__.count(".") == 2


def test_optimize_finds_the_best_and_says_how_much_is_luck() -> None:
    options = {"start": START, "baselines": "hold", "decide_every": 6}
    given: dict[str, Any] = {"data": BARS, "store": "mem://", "options": options}
    found = cs.optimize(Averages, fast=range(2, 8, 2), slow=[4, 12, 30], constraint=lambda p: p.fast < p.slow, **given)
    assert len(found.table) == 7 and (found.table["fast"] < found.table["slow"]).all()
    assert found.table["sharpe"].is_monotonic_decreasing
    best = type("Best", (Averages,), found.best)
    assert played(best).metrics["sharpe"] == found.table["sharpe"].iloc[0] == found.result.metrics["sharpe"]
    assert found.overfitting is not None and 0.0 <= found.overfitting.probability <= 1.0
    assert found.sentence.startswith("The best of 7 combinations is fast=")
    assert "The probability of overfitting is" in repr(found)
    [window] = found.result.summary.windows()
    assert window.trials == 7, "the best of seven is known to be one of seven"
    by_argument = cs.optimize(Momentum, length=[2, 40], **given)
    assert by_argument.table["length"].tolist() in ([2, 40], [40, 2]) and by_argument.best["length"] in (2, 40)


@pytest.mark.parametrize(
    ("teams", "message"),
    [
        (3, "3 is not a strategy"),
        (dict, "the class dict has no method decide"),
        ([Averages, Averages], "two strategies are called Averages"),
        (type("hold", (Averages,), {}), "hold is the name of a shipped strategy"),
        (lambda view, account, more: [], "is not a strategy"),
        ([], "no team is named"),
    ],
)
def test_what_is_no_strategy_is_refused(teams: Any, message: str) -> None:
    with pytest.raises(cs.UserError, match=message):
        played(teams)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([1, 2], "must be a pandas DataFrame, not list"),
        (BARS.drop(columns="Close"), "column close is missing"),
        (BARS.reset_index(drop=True), "the index must be open times"),
        ({}, "no table of bars is given"),
    ],
)
def test_what_is_no_table_of_bars_is_refused(data: Any, message: str) -> None:
    with pytest.raises(cs.UserError, match=message):
        played(Averages, data=data)


def test_a_strategy_that_fails_or_returns_something_else_is_named() -> None:
    class Breaks:
        def decide(self, view: cs.MarketView, account: cs.AccountView) -> Any:
            return "buy"

    with pytest.raises(cs.UserError, match="Breaks"):
        played(Breaks)
    with pytest.raises(cs.UserError, match="division by zero"):
        played(lambda view: 1 / 0)


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ({"pace": [1, 2]}, "Averages has no argument pace"),
        ({"fast": 5}, "give the values to try"),
        ({}, "no combination is left"),
        ({"fast": [9], "slow": [3]}, "no combination is left"),
        ({"fast": range(100), "slow": range(100, 130)}, "more than 2,000"),
    ],
)
def test_ranges_that_cannot_be_tried_are_refused(ranges: Any, message: str) -> None:
    with pytest.raises(cs.UserError, match=message):
        cs.optimize(
            Averages, data=BARS, store="mem://", constraint=lambda p: vars(p) != {"fast": 9, "slow": 3}, **ranges
        )
