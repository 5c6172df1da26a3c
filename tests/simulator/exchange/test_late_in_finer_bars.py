"""Late orders in bars with and without finer ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.errors import DataError
from simulator.exchange.costs import Costs
from simulator.exchange.exchange import Exchange, LiveExchange
from simulator.exchange.orders import Cancel, Order
from simulator.exchange.tape import market_tape
from simulator.exchange.venue import Venue
from simulator.market.growing import part_of
from simulator.market.market import Market
from simulator.market.timeframes import BAR_COLUMNS, MINUTE_MS
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate

SYMBOLS = ("AAA", "BBB")
KINDS: dict[str, Any] = {"AAA": "perpetual", "BBB": "spot"}
START, HOURS, INSIDE = 55, 75, 60
COSTS = Costs(impact=1.0, participation=0.05, latency_ms=700)
_MINUTES = generate(SyntheticConfig(bars=HOURS * INSIDE, seed=5, symbols=SYMBOLS, timeframe="1m"))
_WHOLE = part_of(_MINUTES, 0, len(_MINUTES), KINDS)
MARKET = replace(_WHOLE.resample("1h"), partial=None)


def finer_without(lost: set[tuple[int, int]]) -> Market:
    """The minutes without those of the hours `lost`, (hour, column) each, and every third one of the others."""
    arrays = {name: getattr(_WHOLE, name).copy() for name in BAR_COLUMNS}
    for values in arrays.values():
        values[1::3] = np.nan
        for hour, column in lost:
            values[hour * INSIDE : (hour + 1) * INSIDE, column] = np.nan
    return replace(_WHOLE, **arrays)


@pytest.mark.parametrize("late", [0, 20 * MINUTE_MS, 59 * MINUTE_MS, 100 * MINUTE_MS])
def test_a_late_order_meets_a_bar_without_finer_ones_as_it_does_where_there_are_none_at_all(late: int) -> None:
    costs = Costs(latency_ms=300)
    hours = {(hour, column) for hour in range(HOURS) for column in (0, 1)}
    nothing_finer = Exchange(MARKET, START, costs=costs)
    all_lost = Exchange(MARKET, START, costs=costs, venue=Venue(finer=finer_without(hours)))
    for exchange in (nothing_finer, all_lost):
        exchange.submit(Order("BBB", 20.0), late)
        exchange.step(4)
    [one], [other] = nothing_finer.fills, all_lost.fills
    assert (one.bar, one.quantity) == (other.bar, other.quantity)
    assert one.price == pytest.approx(other.price, rel=1e-12)


def test_a_cancel_acts_from_the_open_of_a_bar_without_finer_ones() -> None:
    hours = {(hour, column) for hour in range(HOURS) for column in (0, 1)}
    exchange = Exchange(MARKET, START, costs=Costs(), venue=Venue(finer=finer_without(hours)))
    low = float(MARKET.low[START + 1, 1])
    exchange.submit(Order("BBB", 5.0, kind="limit", limit=low * 1.0001, id="waits"))
    exchange.submit(Cancel("waits"), 30 * MINUTE_MS)
    exchange.step()
    assert not exchange.fills
    assert [one.reason for one in exchange.rejections] == ["cancelled"]


def test_a_whole_bar_has_the_volatility_of_bars() -> None:
    usual, _ = market_tape(MARKET, START, HOURS, COSTS, Venue())
    refined, per_bar = market_tape(MARKET, START, HOURS, COSTS, Venue(finer=finer_without({(60, 0)})))
    assert refined.sigma[0, (60 - START) * per_bar, 0] == usual.sigma[0, 60 - START, 0]


def test_a_live_account_takes_no_finer_bars_and_no_mark_prices() -> None:
    market = part_of(MARKET, 0, START + 1, KINDS)
    for venue in (Venue(finer=_WHOLE), Venue(mark=MARKET)):
        with pytest.raises(DataError, match="no mark prices and no finer bars"):
            LiveExchange(market, venue=venue)
