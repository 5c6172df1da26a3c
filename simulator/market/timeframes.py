"""Time in a market: bar lengths, and dates in UTC milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime

from simulator.errors import DataError

SECOND_MS = 1_000
MINUTE_MS = 60_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
YEAR_MS = 365 * DAY_MS

TIMEFRAMES: dict[str, int] = {
    "1m": 60_000,
    "5m": 300_000,
    "15m": 900_000,
    "30m": 1_800_000,
    "1h": 3_600_000,
    "4h": 14_400_000,
    "1d": 86_400_000,
}

BAR_COLUMNS = ("open", "high", "low", "close", "volume", "half_spread")


def interval_of(timeframe: str) -> int:
    """Length of a bar in milliseconds. Raises `DataError` for an unknown timeframe."""
    try:
        return TIMEFRAMES[timeframe]
    except KeyError:
        raise DataError(f"unknown timeframe '{timeframe}': use one of {', '.join(TIMEFRAMES)}") from None


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
