"""A candle far off the last close is not used until the next one of its symbol agrees with it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.live.bar_assembly import MOST_MOVE, BarAssembler
from simulator.live.events import Candle
from simulator.market.timeframes import MINUTE_MS

SYMBOL = "BTC/USDT"
FACTORS = st.floats(MOST_MOVE * 1.05, 1e6) | st.floats(1e-6, 0.95 / MOST_MOVE)


def candle(number: int, close: float, high: float | None = None) -> Candle:
    """The candle of the minute `number`, all at one price but for its high."""
    opened = number * MINUTE_MS
    return Candle(SYMBOL, opened, close, high or close, close, close, 1.0, opened + MINUTE_MS, opened + MINUTE_MS)


def played(closes: Sequence[float], last: float = 100.0) -> tuple[list[float | None], list[str]]:
    """The close of each bar of one candle a minute, None where it has none, and why candles were refused."""
    marks = {SYMBOL: last}
    assembler = BarAssembler({SYMBOL: "spot"}, MINUTE_MS, 0, 1e-4, closes=lambda: marks)
    bars, reasons = list[float | None](), list[str]()
    for number, close in enumerate(closes):
        refused = assembler.take(candle(number, close))
        if refused is not None:
            reasons.append(refused.reason)
        made = assembler.finish((number + 1) * MINUTE_MS).candles.get(SYMBOL)
        bars.append(None if made is None else made[3])
        if made is not None:
            marks[SYMBOL] = made[3]
    return bars, reasons


@given(FACTORS, st.integers(0, 5))
def test_one_wrong_candle_never_enters_a_bar(factor: float, place: int) -> None:
    closes = [100.0, 101.0, 99.0, 100.5, 100.0, 98.0, 100.0]
    bars, reasons = played([close * factor if number == place else close for number, close in enumerate(closes)])
    assert bars == [None if number == place else close for number, close in enumerate(closes)]
    assert reasons == ["implausible"]


@given(FACTORS)
def test_a_move_that_the_next_candle_confirms_is_used_from_there(factor: float) -> None:
    bars, reasons = played([100.0, 100.0 * factor, 101.0 * factor, 99.0 * factor])
    assert bars == [100.0, None, 101.0 * factor, 99.0 * factor] and reasons == ["implausible"]


@given(st.lists(st.floats(1 / MOST_MOVE + 0.01, MOST_MOVE - 0.01), max_size=20))
def test_a_market_that_moves_by_less_is_never_doubted(moves: Sequence[float]) -> None:
    closes = [100.0]
    for move in moves:
        closes.append(closes[-1] * move)
    assert played(closes) == (closes, [])


def test_a_crash_that_goes_on_is_used_as_soon_as_two_candles_agree() -> None:
    assert played([100.0, 1.0, 0.01, 0.0101]) == ([100.0, None, None, 0.0101], ["implausible"] * 2)


@pytest.mark.parametrize("high", [100.0 * MOST_MOVE * 1.01, 1e8])
def test_a_wick_is_looked_at_as_well(high: float) -> None:
    assembler = BarAssembler({SYMBOL: "spot"}, MINUTE_MS, 0, 1e-4, closes=lambda: {SYMBOL: 100.0})
    refused = assembler.take(candle(0, 100.0, high))
    assert refused is not None and refused.reason == "implausible"
    again = assembler.take(candle(0, 100.0, high))
    assert again is not None and again.reason == "duplicate", "the same candle is not a second opinion"
    assert assembler.take(candle(0, 100.0)) is None, "and a right one of that minute is used"


@pytest.mark.parametrize("closes", [{}, {SYMBOL: math.nan}])
def test_without_a_last_close_nothing_is_doubted(closes: dict[str, float]) -> None:
    assembler = BarAssembler({SYMBOL: "spot"}, MINUTE_MS, 0, 1e-4, closes=lambda: closes)
    assert assembler.take(candle(0, 1e9)) is None
