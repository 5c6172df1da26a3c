"""Time in a market: bar lengths, where bars begin, and dates in UTC milliseconds.

Bars of up to a day begin at whole multiples of their length since 1970-01-01 00:00 UTC, so those of 8 and 12 hours
begin with the day. Weeks begin on Monday 00:00 UTC, as those of Binance do; 1970 began on a Thursday.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, overload

from simulator.errors import DataError

if TYPE_CHECKING:  # numpy takes its time, and the settings need only what is here
    from simulator.arrays import IntArray

SECOND_MS = 1_000
MINUTE_MS = 60_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
WEEK_MS = 7 * DAY_MS
YEAR_MS = 365 * DAY_MS
_FIRST_MONDAY = 4 * DAY_MS  # 1970-01-05

TIMEFRAMES: dict[str, int] = {
    "1m": 60_000,
    "3m": 180_000,
    "5m": 300_000,
    "15m": 900_000,
    "30m": 1_800_000,
    "1h": 3_600_000,
    "2h": 7_200_000,
    "4h": 14_400_000,
    "6h": 21_600_000,
    "8h": 28_800_000,
    "12h": 43_200_000,
    "1d": 86_400_000,
    "3d": 259_200_000,
    "1w": 604_800_000,
}

# Half the bid-ask spread, in basis points, of bars that state none: of tables, of files, and `costs.half_spread_bps`.
# The ticks of the large perpetuals are far below a basis point and their books are narrower than this: where the spread
# is not known, trading should cost more here than there, not less.
HALF_SPREAD_BPS = 2.0

BAR_COLUMNS = ("open", "high", "low", "close", "volume", "half_spread")


def interval_of(timeframe: str) -> int:
    """Length of a bar in milliseconds. Raises `DataError` for an unknown timeframe."""
    length = TIMEFRAMES.get(timeframe)
    if length is None:
        raise DataError(f"unknown timeframe '{timeframe}': use one of {', '.join(TIMEFRAMES)}")
    return length


@overload
def bar_start(time: int, interval: int) -> int: ...
@overload
def bar_start(time: IntArray, interval: int) -> IntArray: ...
def bar_start(time: int | IntArray, interval: int) -> int | IntArray:
    """Open time (ms) of the bar of `interval` ms that holds `time` (ms): of one, or of each of an array."""
    phase = _FIRST_MONDAY if interval % WEEK_MS == 0 else 0
    return (time - phase) // interval * interval + phase


def next_bar_start(time: int, interval: int) -> int:
    """The first open time (ms) of a bar of `interval` ms that is not before `time` (ms)."""
    return bar_start(time + interval - 1, interval)


def parse_time(text: str) -> int:
    """Milliseconds since the epoch of an ISO date or time, taken as UTC where it names no zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise DataError(f"'{text}' is not a date: write it like 2023-01-31 or 2023-01-31T08:00") from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def format_time(time: int) -> str:
    """`2023-01-31 08:00` (UTC) of milliseconds since the epoch; a time that no calendar has as its number."""
    try:
        return datetime.fromtimestamp(time / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return f"{time} ms"
