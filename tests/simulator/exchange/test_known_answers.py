"""The SMA cross of `tests/kat/engines`, an exact decimal reference, under every convention: to the cent, fill by fill.

Three ways lead through the kernel: signals, requests to an `Exchange`, and a Python strategy called at every bar.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from simulator.backtest.from_signals import run_signals
from simulator.backtest.run import Window, run_backtest
from simulator.exchange.costs import Costs
from simulator.exchange.exchange import Exchange
from simulator.exchange.exchange_records import AccountView, Fill
from simulator.exchange.orders import Target
from simulator.exchange.rules import SymbolRules
from simulator.exchange.venue import Venue
from simulator.market.market import Bars, Market, MarketView

HERE = Path(__file__).parents[2] / "kat" / "engines"
CASES = json.loads((HERE / "reference.json").read_text())["cases"]
SHORT = [case for case in CASES if case["n_bars"] == 5_000]


@pytest.fixture(scope="module")
def bars() -> dict[str, NDArray[Any]]:
    spec = importlib.util.spec_from_file_location("gen_data", HERE / "gen_data.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: dict[str, NDArray[Any]] = module.generate()
    return made


def market_of(bars: dict[str, NDArray[Any]], count: int, lower: float = 0.0) -> Market:
    """The first `count` bars. `lower` moves every price down by that much, with as much half spread: so a buy pays the
    given price and a sell gets twice `lower` less."""
    first, high, low, close = (np.ascontiguousarray(bars["cents"][:count, i : i + 1] / 100.0 - lower) for i in range(4))
    volume = np.ascontiguousarray(bars["micro"][:count, None] / 1e6)
    return Market(("X",), "1m", bars["ts_ms"][:count].copy(), first, high, low, close, volume, lower / first)


def crosses(close: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 at a cross up, 0 at a cross down, NaN elsewhere."""
    cents = np.rint(close * 100.0).astype(np.int64)
    sums = np.concatenate([[0], np.cumsum(cents)])
    fast, slow = np.full(len(close), np.nan), np.full(len(close), np.nan)
    fast[19:] = (sums[20:] - sums[:-20]) * 5  # both are 100 times the mean, in whole cents: no rounding
    slow[99:] = sums[100:] - sums[:-100]
    signals = np.full(len(close), np.nan)
    signals[1:][(fast[:-1] <= slow[:-1]) & (fast[1:] > slow[1:])] = 1.0
    signals[1:][(fast[:-1] >= slow[:-1]) & (fast[1:] < slow[1:])] = 0.0
    return signals


def terms_of(case: dict[str, Any], bars: dict[str, NDArray[Any]]) -> tuple[Market, Costs, Venue]:
    lower = case["spread_cents"] / 200.0
    costs = Costs(
        borrow_rate=0.0,  # the references owe the fee on top without interest
        taker_fee=float(case["fee"]),
        fill=case["fill"],
        fee_currency="base" if case["sizing"] == "fee_in_base" else "quote",
        sizing="fee_on_top" if case["sizing"] == "fee_on_top" else "fee_inside",
    )
    rules = {} if case["lot"] is None else {"X": SymbolRules(lot=float(case["lot"]))}
    mark = market_of(bars, case["n_bars"]) if lower else None
    return market_of(bars, case["n_bars"], lower), costs, Venue(rules=rules, mark=mark)


def check(case: dict[str, Any], equity: float, fees: float, fills: Sequence[Fill]) -> None:
    """To the cent, as the reference asks; what it prints more exactly is compared more exactly."""
    assert equity == pytest.approx(float(case["final_equity"]), abs=1e-5)
    assert fees == pytest.approx(float(case["total_fees"]), abs=1e-4)
    assert len(fills) == case["fills"]
    assert sum(fill.quantity > 0.0 for fill in fills) == case["buys"]
    assert sum(abs(fill.quantity) * fill.price for fill in fills) == pytest.approx(float(case["turnover"]), rel=1e-9)
    shift = 1 if case["fill"] == "close" else 0  # a fill at a close is booked at the next bar, which opens there
    first = case["first_fills_bar_side_price_qty_fee_cash"]
    assert len(first) > 0
    for fill, (bar, side, price, quantity, paid, _) in zip(fills, first, strict=False):
        assert (fill.bar - shift, fill.quantity > 0.0) == (bar, side == "buy")
        assert fill.price == pytest.approx(float(price), rel=1e-12)
        assert abs(fill.quantity) == pytest.approx(float(quantity), abs=1e-9)
        assert fill.fee == pytest.approx(float(paid), abs=1e-6)


def name_of(case: dict[str, Any]) -> str:
    return "-".join(str(case[key]) for key in ("n_bars", "fee", "lot", "fill", "sizing", "spread_cents"))


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_signals_match_the_reference(case: dict[str, Any], bars: dict[str, NDArray[Any]]) -> None:
    market, costs, venue = terms_of(case, bars)
    signals = crosses(bars["cents"][: case["n_bars"], 3] / 100.0)
    assert (np.nansum(signals), np.sum(signals == 0.0)) == (case["cross_up"], case["cross_down"])
    run = run_signals(market, signals, 100_000.0, costs, venue=venue)
    check(case, float(run.equity[-1]), run.costs["fees"], run.fills)
    assert run.cash == pytest.approx(float(case["final_cash"]), abs=1e-5)


@pytest.mark.parametrize("case", SHORT, ids=name_of)
def test_an_exchange_matches_the_reference(case: dict[str, Any], bars: dict[str, NDArray[Any]]) -> None:
    market, costs, venue = terms_of(case, bars)
    signals = crosses(bars["cents"][: case["n_bars"], 3] / 100.0)
    exchange = Exchange(market, 0, 100_000.0, costs, venue=venue)
    for index in np.flatnonzero(~np.isnan(signals[:-1])).tolist():
        exchange.step(index - exchange.index)
        exchange.submit(Target("X", float(signals[index])))
    exchange.step(len(market))
    check(case, float(exchange.equity_curve()[-1]), exchange.paid()["fees"], exchange.fills)


def average(bars: Bars, length: float) -> NDArray[np.float64]:
    """(n,): the mean of the last closes, each window summed apart, so that no rounding is carried on."""
    windows = np.lib.stride_tricks.sliding_window_view(bars.close, int(length))
    return np.concatenate([np.full(int(length) - 1, np.nan), windows.mean(axis=1)])


class Cross:
    """The rule as a strategy that is called at every bar."""

    name = "cross"

    def decide(self, view: MarketView, account: AccountView) -> Sequence[Target]:
        fast, slow = view.computed("X", average, 20), view.computed("X", average, 100)
        if len(slow) < 2:
            return ()
        before, now = fast[-2] - slow[-2], fast[-1] - slow[-1]
        if before <= 0.0 < now:
            return [Target("X", 1.0)]
        return [Target("X", 0.0)] if before >= 0.0 > now else ()


@pytest.mark.parametrize("case", [case for case in SHORT if case["spread_cents"] == 0], ids=name_of)
def test_a_strategy_matches_the_reference(case: dict[str, Any], bars: dict[str, NDArray[Any]]) -> None:
    market, costs, venue = terms_of(case, bars)
    result = run_backtest(market, Cross(), Window(0, len(market) - 1), 100_000.0, costs, venue=venue)
    check(case, float(result.equity[-1]), result.costs["fees"], result.fills)
