"""What a feed says: immutable events, each with two times.

`at` is when it happened, by the exchange's clock; `known_at` is when the session got to know it, by the session's own.
All ordering uses `known_at`. Times are integer milliseconds since the epoch, UTC. Prices are in quote currency,
quantities in base units, rates are fractions.

An event says what was received and nothing else: a feed neither fills gaps with invented bars, nor leaves out what came
twice or late. The session counts those, and the store keeps them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from simulator.errors import DataError
from simulator.market.timeframes import bar_start, format_time
from simulator.tables import EARLIEST, LATEST

# What a feed tells of itself.
#   connected, disconnected: the stream. reconnected: after a disconnection; what happened between is backfilled.
#   gap: the exchange has no data for a time that is over (maintenance, an outage); nothing more will come of it.
#   stale: the stream is open and sends nothing (a hung connection).
#   rate_limit, server_error, dns, clock_skew: why a request failed, or that the clocks differ.
#   maintenance: the exchange says that it is closed for a while.
#   malformed: a message that could not be read; it is dropped.
#   end: no more events will come. Only recorded data has one.
NoticeKind = Literal[
    "connected", "disconnected", "reconnected", "gap", "stale", "rate_limit", "server_error", "dns", "clock_skew",
    "maintenance", "malformed", "end",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Candle:
    """A bar that is complete; `at` is its close, `open_time + interval`. A feed sends no bar that may still change.

    Raises:
        DataError: a bar that no market can have: a price that is not above 0, a high below or a low above the others,
            a negative volume, a close that is not after the open.
    """

    symbol: str
    open_time: int
    open: float
    high: float
    low: float
    close: float
    volume: float
    at: int
    known_at: int

    def __post_init__(self) -> None:
        prices = (self.open, self.high, self.low, self.close)
        whole = all(math.isfinite(price) and price > 0.0 for price in prices) and math.isfinite(self.volume)
        if not (whole and self.low <= min(prices) and self.high >= max(prices) and self.volume >= 0.0):
            raise DataError(f"a bar of {self.symbol} is impossible: {prices}, volume {self.volume}.")
        if self.at <= self.open_time:
            raise DataError(f"a bar of {self.symbol} closes at {self.at}, not after its open at {self.open_time}.")


@dataclass(frozen=True, slots=True)
class BookTop:
    """The best bid and ask. Raises `DataError` for a price that is not above 0, or a bid that is not below the ask."""

    symbol: str
    bid: float
    ask: float
    at: int
    known_at: int

    def __post_init__(self) -> None:
        if not 0.0 < self.bid < self.ask < math.inf:
            raise DataError(f"the book of {self.symbol} is crossed or has no price: bid {self.bid}, ask {self.ask}.")

    @property
    def half_spread(self) -> float:
        """Half the distance of bid and ask, as a fraction of the mid price."""
        return (self.ask - self.bid) / (self.ask + self.bid)


@dataclass(frozen=True, slots=True)
class Funding:
    """A settlement of a perpetual that has happened: longs pay `rate` times notional at `at`. No forecast."""

    symbol: str
    rate: float
    at: int
    known_at: int


@dataclass(frozen=True, slots=True)
class FeedHeartbeat:
    """The feed is there and time has passed to `known_at`; sent at least every second of the feed's clock while nothing
    else comes, so that a session knows silence from a stream that hangs."""

    at: int
    known_at: int


@dataclass(frozen=True, slots=True)
class Notice:
    """What the feed tells of itself, see `NoticeKind`; `symbol` is empty where it concerns all of them."""

    kind: NoticeKind
    symbol: str
    detail: str
    at: int
    known_at: int


FeedEvent = Candle | BookTop | Funding | FeedHeartbeat | Notice

# -- an exchange's answers as events ---------------------------------------------------------------------------------
# Answers are untrusted, so each number is checked: times have to be possible, prices and sizes finite and above 0 (a
# volume may be 0). Anything else raises `DataError` and is never passed on.

_LARGEST = 1e15  # no price, size or volume of a market has more


def candle_of(symbol: str, interval: int, values: Any, known_at: int) -> Candle:
    """A candle of six fields: open time (ms), open, high, low, close, volume. Raises `DataError`."""
    what = f"a candle of {symbol}"
    if not isinstance(values, list | tuple) or len(values) < 6:
        raise DataError(f"{what} has six fields, not {str(values)[:80]}")
    time = moment(what, values[0])
    if bar_start(time, interval) != time:
        raise DataError(f"{what} opens at {format_time(time)}, which is not the open of a bar")
    first, high, low, last, volume = (number(what, value) for value in values[1:6])
    return Candle(symbol, time, first, high, low, last, volume, time + interval, known_at)


def book_of(symbol: str, bid: Any, ask: Any, time: Any, known_at: int) -> BookTop:
    """The top of a book from the prices of both sides; `time` None: when it came. Raises `DataError`."""
    what = f"the book of {symbol}"
    at = known_at if time is None else moment(what, time)
    return BookTop(symbol, number(what, bid), number(what, ask), at, known_at)


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


def moment(what: str, value: Any) -> int:
    """A time in ms between the years 2000 and 2100. Raises `DataError`."""
    result = number(what, value)
    if not EARLIEST <= result < LATEST:
        raise DataError(f"{what} has the time {str(value)[:40]}, which is not a time in milliseconds")
    return int(result)
