"""What an exchange said, turned into the project's events. Answers are untrusted: each number is checked.

Times have to be possible, prices and sizes finite and above 0 (a volume may be 0). What is not so raises `DataError`
and is never passed on. Fields that are not asked for are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from simulator.errors import DataError
from simulator.live.events import BookLevels, BookTop, Funding, MarketTrade
from simulator.live.exchange_feed.closed_candles import CandleRow
from simulator.market.bar_checks import check_bars
from simulator.tables import EARLIEST, LATEST

_COLUMNS = ("open", "high", "low", "close", "volume")
_LARGEST = 1e15  # no price, size or volume of a market has more


def kline_of(what: str, interval: int, values: Any) -> CandleRow:
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


def trade_of(symbol: str, record: Any, known_at: int) -> MarketTrade:
    """A trade of ccxt's structure. Raises `DataError`."""
    what = f"a trade of {symbol}"
    if not isinstance(record, dict) or record.get("side") not in ("buy", "sell"):
        raise DataError(f"{what} does not say who took: {str(record)[:80]}")
    price, quantity = positive(what, record.get("price")), positive(what, record.get("amount"))
    name, at = str(record.get("id") or "")[:64], moment(what, record.get("timestamp"))
    return MarketTrade(symbol, price, quantity, record["side"], name, at, known_at)


def book_of(symbol: str, bid: tuple[Any, Any], ask: tuple[Any, Any], time: Any, known_at: int) -> BookTop:
    """The top of a book from (price, size) of both sides; `time` None: when it came. Raises `DataError`."""
    what = f"the book of {symbol}"
    at = known_at if time is None else moment(what, time)
    bid_price, bid_size = positive(what, bid[0]), number(what, bid[1])
    ask_price, ask_size = positive(what, ask[0]), number(what, ask[1])
    if min(bid_size, ask_size) < 0:
        raise DataError(f"{what} has a negative size: {bid}, {ask}")
    return BookTop(symbol, bid_price, bid_size, ask_price, ask_size, at, known_at)


def book_levels_of(symbol: str, book: Any, known_at: int) -> BookLevels:
    """The levels of a book of ccxt's structure. Raises `DataError`."""
    what = f"the book of {symbol}"
    if not isinstance(book, dict):
        raise DataError(f"{what} is {str(book)[:80]}")
    sides: dict[str, tuple[tuple[float, float], ...]] = {}
    for side in ("bids", "asks"):
        levels = book.get(side)
        if not isinstance(levels, list) or not all(isinstance(one, list | tuple) and len(one) >= 2 for one in levels):
            raise DataError(f"{what} has {side} that are no list of levels: {str(levels)[:80]}")
        sides[side] = tuple((positive(what, one[0]), number(what, one[1])) for one in levels)
    time = book.get("timestamp")
    at = known_at if time is None else moment(what, time)
    return BookLevels(symbol, sides["bids"], sides["asks"], at, known_at)


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
        raise DataError(f"{what} has the time {str(value)[:40]}, which is no time in milliseconds")
    return int(result)


def _of_binance(message: Any) -> Iterator[tuple[str, str, list[Any]]]:
    candle = message["k"]
    if candle["x"] is True:
        yield candle["s"], candle["i"], [candle[name] for name in ("t", "o", "h", "l", "c", "v")]


def _of_bybit(message: Any) -> Iterator[tuple[str, str, list[Any]]]:
    _, interval, symbol = message["topic"].split(".")
    for candle in message["data"]:
        if candle["confirm"] is True:
            names = ("start", "open", "high", "low", "close", "volume")
            yield symbol, interval, [candle[name] for name in names]


# Which exchanges say in a stream that a candle has closed, which ccxt does not pass on: exchange -> the closed candles
# of a message, each with the exchange's own names of symbol and timeframe. Of others, REST says so after the close.
CLOSED_IN_STREAM: dict[str, Callable[[Any], Iterator[tuple[str, str, list[Any]]]]] = {
    "binance": _of_binance,
    "binanceusdm": _of_binance,
    "binancecoinm": _of_binance,
    "binanceus": _of_binance,
    "bybit": _of_bybit,
}
