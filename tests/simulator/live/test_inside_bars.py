"""Bars inside a bar are what its trades were, or not used; a book's impact is at no size cheaper than its levels."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import DataError
from simulator.live.bar_assembly import BarAssembler, LiveBar
from simulator.live.events import BookLevels, BookTop, Candle, MarketTrade
from simulator.live.inside_bars import InsideBar, inside_market, least_impact
from simulator.market.timeframes import MINUTE_MS, TIMEFRAMES, inside_timeframe, interval_of

OPEN = 100 * MINUTE_MS
SYMBOL = "BTC/USDT"


@st.composite
def trades_of_a_minute(draw: st.DrawFn) -> list[MarketTrade]:
    """Trades in order of time, of which several may share a millisecond."""
    times = sorted(draw(st.lists(st.integers(0, MINUTE_MS - 1), min_size=1, max_size=30)))
    made = []
    for number, time in enumerate(times, 7):
        price, quantity = draw(st.integers(900, 1_100)) / 10, draw(st.integers(1, 500)) / 100
        made.append(MarketTrade(SYMBOL, price, quantity, "buy", str(number), OPEN + time, OPEN + time))
    return made


def candle_of(trades: list[MarketTrade]) -> Candle:
    prices = [one.price for one in trades]
    volume = sum(one.quantity for one in trades)
    close = OPEN + MINUTE_MS
    return Candle(SYMBOL, OPEN, prices[0], max(prices), min(prices), prices[-1], volume, close, close)


def bar_of(events: list[MarketTrade], candle: Candle) -> tuple[LiveBar, int]:
    assembler = BarAssembler({SYMBOL: "spot"}, MINUTE_MS, OPEN, 1e-4, "1s")
    for event in events:
        assembler.take(event)
    assembler.take(candle)
    return assembler.finish(candle.at), assembler.lost


@given(trades=trades_of_a_minute(), draw=st.randoms(use_true_random=False))
def test_in_whatever_order_trades_come_they_are_the_seconds_of_the_bar(
    trades: list[MarketTrade], draw: random.Random
) -> None:
    shuffled = [*trades]
    draw.shuffle(shuffled)
    bar, lost = bar_of(shuffled, candle_of(trades))
    expected = []
    for second in range(60):
        inside = [one for one in trades if (one.at - OPEN) // 1000 == second]
        if inside:
            prices = [one.price for one in inside]
            expected.append((second, prices[0], max(prices), min(prices), prices[-1]))
    assert lost == 0
    assert [one[:5] for one in bar.inside[SYMBOL]] == expected
    assert sum(one[5] for one in bar.inside[SYMBOL]) == pytest.approx(candle_of(trades).volume)


@given(trades=trades_of_a_minute(), data=st.data())
def test_a_trade_that_is_lost_or_comes_twice_leaves_the_bar_whole(
    trades: list[MarketTrade], data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(trades) - 1))
    wrong = [*trades[:place], *trades[place + 1 :]] if data.draw(st.booleans()) else [*trades, trades[place]]
    bar, lost = bar_of(wrong, candle_of(trades))
    assert bar.inside == {}
    assert lost == bool(wrong)


def test_a_second_has_the_spread_of_its_time() -> None:
    assembler = BarAssembler({SYMBOL: "spot"}, MINUTE_MS, OPEN, 1e-4, "1s")
    trades = [MarketTrade(SYMBOL, 100.0, 1.0, "buy", str(k), OPEN + 1000 * k, 0) for k in (1, 5, 9)]
    for event in trades:
        assembler.take(event)
    assembler.take(BookTop(SYMBOL, 99.0, 1.0, 101.0, 1.0, OPEN + 3000, 0))
    assembler.take(BookTop(SYMBOL, 98.0, 1.0, 102.0, 1.0, OPEN + 9500, 0))
    assembler.take(candle_of(trades))
    inside = assembler.finish(OPEN + MINUTE_MS).inside[SYMBOL]
    assert [one[6] for one in inside] == pytest.approx([0.015, 0.01, 0.02])  # before the first book: that of the bar


def test_every_bar_has_at_least_48_inside() -> None:
    for name, length in TIMEFRAMES.items():
        inside = interval_of(inside_timeframe(name))
        assert length % inside == 0
        assert 48 <= length // inside <= 120


@given(
    steps=st.lists(st.tuples(st.floats(1e-4, 0.5), st.floats(1e-3, 50.0)), min_size=1, max_size=8),
    quantity=st.floats(1e-4, 400.0),
)
def test_no_order_is_cheaper_than_the_levels_that_it_takes(steps: list[tuple[float, float]], quantity: float) -> None:
    away = np.cumsum([step for step, _ in steps])
    asks = [(100.0 + float(one), size) for one, (_, size) in zip(away, steps, strict=True)]
    bids = [(100.0 - float(away[0]), 1.0)]
    coefficient, half = least_impact(bids, asks), float(away[0]) / 100.0
    left, paid = min(quantity, sum(size for _, size in asks)), 0.0
    taken = left
    for price, size in asks:
        part = min(left, size)
        paid, left = paid + part * price, left - part
    assert half + coefficient * math.sqrt(taken) >= (paid / taken / 100.0 - 1.0) * (1 - 1e-9) - 1e-12


def test_the_bound_is_reached() -> None:
    asks = [(100.1, 1.0), (100.4, 3.0)]
    quantity = 3.0 * (0.003 * 1.0) / 0.003  # where g(q)/sqrt(q) is largest: 3 sum / (d - h)
    walked = (1.0 * 0.001 + (quantity - 1.0) * 0.004) / quantity - 0.001
    assert least_impact([(99.9, 1.0)], asks) == pytest.approx(walked / math.sqrt(quantity))
    assert least_impact([(99.9, 1.0)], asks[:1]) == 0.0


@pytest.mark.parametrize(
    ("bids", "asks"),
    [
        ((), ((101.0, 1.0),)),
        (((100.0, 1.0),), ((100.0, 1.0),)),
        (((99.0, 1.0), (99.5, 1.0)), ((101.0, 1.0),)),
        (((99.0, -1.0),), ((101.0, 1.0),)),
        (((99.0, math.nan),), ((101.0, 1.0),)),
    ],
)
def test_a_book_that_cannot_be_is_refused(
    bids: tuple[tuple[float, float], ...], asks: tuple[tuple[float, float], ...]
) -> None:
    with pytest.raises(DataError, match="impossible"):
        BookLevels(SYMBOL, bids, asks, 1, 1)


def test_bars_inside_lie_on_their_grid() -> None:
    inside: dict[str, tuple[InsideBar, ...]] = {SYMBOL: ((3, 1.0, 2.0, 0.5, 1.5, 4.0, 1e-4),)}
    market = inside_market((SYMBOL, "ETH/USDT"), [(OPEN, {}), (OPEN + MINUTE_MS, inside)], MINUTE_MS, "1s")
    [row] = np.flatnonzero(market.present[:, 0])
    assert int(market.open_time[row]) == OPEN + MINUTE_MS + 3000
    assert not market.present[:, 1].any()
