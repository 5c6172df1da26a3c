"""An exchange's answers as the project's events. Answers are untrusted: each number is checked.

Times have to be possible, prices and sizes finite and above 0 (a volume may be 0). Anything else raises `DataError` and
is never passed on.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from simulator.errors import DataError
from simulator.live.events import BookTop, Funding
from simulator.market.bar_checks import check_bars
from simulator.tables import EARLIEST, LATEST

CandleRow = tuple[int, float, float, float, float, float]  # open time (ms), open, high, low, close, volume
_COLUMNS = ("open", "high", "low", "close", "volume")
_LARGEST = 1e15  # no price, size or volume of a market has more


def candle_of(what: str, interval: int, values: Any) -> CandleRow:
    """A candle of six fields: open time (ms), open, high, low, close, volume. Raises `DataError`."""
    if not isinstance(values, list | tuple) or len(values) < 6:
        raise DataError(f"{what}: a candle has six fields, not {str(values)[:80]}")
    time = moment(what, values[0])
    numbers = [number(what, value) for value in values[1:6]]
    columns = {name: np.array([value]) for name, value in zip(_COLUMNS, numbers, strict=True)}
    for issue in check_bars(what, interval, np.array([time], np.int64), columns):
        if issue.fatal:
            raise DataError(f"{issue}: {numbers}")
    return (time, numbers[0], numbers[1], numbers[2], numbers[3], numbers[4])


def book_of(symbol: str, bid: Any, ask: Any, time: Any, known_at: int) -> BookTop:
    """The top of a book from (price, size) of both sides; `time` None: when it came. Raises `DataError`."""
    what = f"the book of {symbol}"
    at = known_at if time is None else moment(what, time)
    if not all(isinstance(side, list | tuple) and len(side) >= 2 for side in (bid, ask)):
        raise DataError(f"{what} has no price and size: {str((bid, ask))[:80]}")
    prices, sizes = [positive(what, side[0]) for side in (bid, ask)], [number(what, side[1]) for side in (bid, ask)]
    if min(sizes) < 0:
        raise DataError(f"{what} has a negative size: {bid}, {ask}")
    return BookTop(symbol, prices[0], sizes[0], prices[1], sizes[1], at, known_at)


def funding_of(symbol: str, record: Any, known_at: int) -> Funding:
    """A settlement of ccxt's structure. Raises `DataError`."""
    what = f"a funding rate of {symbol}"
    if not isinstance(record, dict):
        raise DataError(f"{what} is {str(record)[:80]}")
    rate = number(what, record.get("fundingRate"))
    if abs(rate) >= 1.0:
        raise DataError(f"{what} is impossible: {rate}")
    return Funding(symbol, rate, moment(what, record.get("timestamp")), known_at)


def number(what: str, value: Any) -> float:
    """A finite number, also as text. Raises `DataError`."""
    try:
        result = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        result = math.nan
    if not abs(result) <= _LARGEST:
        raise DataError(f"{what} holds {str(value)[:40]!r} where a number should be")
    return result


def positive(what: str, value: Any) -> float:
    """A number above 0. Raises `DataError`."""
    result = number(what, value)
    if result <= 0.0:
        raise DataError(f"{what} holds {result}, which must be above 0")
    return result


def moment(what: str, value: Any) -> int:
    """A time in ms between the years 2000 and 2100. Raises `DataError`."""
    result = number(what, value)
    if not EARLIEST <= result < LATEST:
        raise DataError(f"{what} has the time {str(value)[:40]}, which is not a time in milliseconds")
    return int(result)
