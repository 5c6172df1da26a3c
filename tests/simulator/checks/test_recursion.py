"""Recursion analysis: what looks back a fixed number of bars settles there, what feeds on its past drifts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from simulator.backtest.run import Strategy, Window, orders_for_target
from simulator.checks.recursion import check_recursion
from simulator.checks.verdict import drive_strategies
from simulator.errors import UserError
from simulator.exchange.exchange_records import AccountView
from simulator.exchange.orders import Order
from simulator.market.market import MarketView
from simulator.strategies import SmaCross
from tests.lookahead_scenes import WITHOUT_ARGUMENTS, Follows, rich_market

LONG = 700
STEADY = Window(0, LONG - 1, 4)


def ema(closes: np.ndarray, span: float) -> float:
    """An exponential average that begins with the first close, by its definition."""
    known = closes[~np.isnan(closes)]
    value = float(known[0])
    for close in known[1:].tolist():
        value += 2.0 / (span + 1.0) * (close - value)
    return value


def trend(average: Callable[[np.ndarray], float]) -> Strategy:
    def signal(view: MarketView, symbol: str) -> float:
        closes = view.bars(symbol, LONG).close
        return 3.0 * (view.last_close(symbol) / average(closes) - 1.0) if np.isfinite(closes).any() else 0.0

    return Follows(signal)


def settled_at(make: Callable[[], Strategy], *warm_ups: int) -> Any:
    return check_recursion(
        drive_strategies(make), rich_market(LONG), STEADY, warm_ups=warm_ups, times=8, first_time=300
    )


def test_a_simple_average_settles_once_its_window_fits() -> None:
    report = settled_at(lambda: trend(lambda closes: float(np.nanmean(closes[-100:]))), 60, 99, 100, 200)
    assert [one.changed > 0 for one in report.warm_ups] == [True, True, False, False]
    assert report.settled == 100 and report.clean and report.with_orders > 0
    assert [one.compared for one in report.warm_ups] == [8, 8, 8, 8] and min(report.times) >= 300
    first = report.warm_ups[0].first
    assert first is not None and first.bar in report.times and first.field in ("quantity", "order")
    assert json.loads(json.dumps(report.to_dict(), allow_nan=False))["settled"] == 100


@pytest.mark.parametrize(("span", "settled"), [(8.0, 121), (20.0, 300), (150.0, None)])
def test_an_exponential_average_drifts(span: float, settled: int | None) -> None:
    report = settled_at(lambda: trend(lambda closes: ema(closes, span)), 50, 121, 300)
    assert report.settled == settled and report.clean is (settled is not None)
    # The shorter the history, the more its beginning weighs.
    changes = [one.changed for one in report.warm_ups]
    assert changes == sorted(changes, reverse=True) and changes[0] > 0


def test_state_that_is_kept_in_the_object_is_history_too() -> None:
    class Remembers:
        name = "remembers"

        def __init__(self, span: float) -> None:
            self.span = span
            self.value = float("nan")

        def decide(self, view: MarketView, account: AccountView) -> Sequence[Order]:
            close = view.last_close("BBBUSDT")
            self.value = close if np.isnan(self.value) else self.value + 2.0 / (self.span + 1.0) * (close - self.value)
            return orders_for_target(view, account, "BBBUSDT", float(np.clip(3.0 * (close / self.value - 1.0), -1, 1)))

    # A decision every 4 bars: 300 bars are 75 steps of the average.
    assert settled_at(lambda: Remembers(5.0), 20, 300).settled == 300
    assert settled_at(lambda: Remembers(100.0), 20, 300).settled is None


@pytest.mark.parametrize("strategy", WITHOUT_ARGUMENTS)
def test_the_account_does_not_depend_on_the_history(strategy: type[Any]) -> None:
    """What was bought long before is held in every history, so that buying once settles at once."""
    report = settled_at(lambda: strategy(), 300)
    assert report.warm_ups[0].compared == 8 and (report.clean or strategy.name not in ("flat", "hold", "sma_cross"))


def test_a_history_that_is_too_short_to_decide_is_a_change() -> None:
    def needs(view: MarketView, symbol: str) -> float:
        return float(view.bar(symbol, view.index - 150).close[0] / view.last_close(symbol) - 1.0)

    window = Window(152, LONG - 1, 4)
    report = check_recursion(drive_strategies(lambda: Follows(needs)), rich_market(LONG), window, warm_ups=(100, 200))
    assert [one.changed for one in report.warm_ups] == [20, 0] and report.settled == 200
    first = report.warm_ups[0].first
    assert first is not None and first.field == "decision" and "before the history" in first.found


def test_recursion_says_what_it_cannot_test() -> None:
    with pytest.raises(UserError, match="no decision has more than 5000 bars of history"):
        settled_at(lambda: SmaCross(), 5000)
    with pytest.raises(UserError, match="at least one warm-up"):
        settled_at(lambda: SmaCross())
    with pytest.raises(UserError, match=r"fails at .* with LookAheadError.*fix it first"):
        settled_at(lambda: Follows(lambda view, symbol: float(view.bar(symbol, view.index + 1).close[0])), 50)
