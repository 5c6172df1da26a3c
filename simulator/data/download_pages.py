"""Page after page of an exchange's bars and funding rates, each checked before it is stored.

A page may come late, twice, out of order or with holes. Equal records are merged, contradictory or impossible ones
refused; what is missing is asked for once more and then believed to be absent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from simulator.data.download_client import Client
from simulator.data.download_files import SeriesFile
from simulator.data.formats import BAR_VALUES
from simulator.errors import DataError
from simulator.market.timeframes import DAY_MS, HOUR_MS, bar_start, format_time, interval_of, next_bar_start
from simulator.tables import EARLIEST, LATEST

_FUNDING_PAGE = 100  # every exchange gives as many
_SETTLING = 60_000  # ms after its close in which an exchange may still correct a bar
_UNKNOWN_PAGE = 100  # bars to step over where an exchange does not say how many it gives

# Some exchanges begin their weeks on a Thursday, as 1970 did.
_WEEKS = ". Weeks begin on Monday 00:00 UTC here: load bars of 1d, from which those are made (--resample 1w)"

DownloadProgress = Callable[[str, int, int], None]
_Row = tuple[float, ...]
_Page = dict[int, _Row]


class BarPages:
    """Pages of one symbol's bars."""

    def __init__(self, client: Client, market: dict[str, Any], timeframe: str) -> None:
        self._client, self._market, self._timeframe = client, market, timeframe
        self._interval = interval_of(timeframe)
        self._what = f"{client.exchange.id} {market['symbol']} {timeframe}"
        limit = client.exchange.feature_value(market["symbol"], "fetchOHLCV", "limit")
        self._limit = int(limit) if limit else None

    def fetch(self, series: SeriesFile, start: int, end: int | None, now: int, report: DownloadProgress) -> None:
        """Append the bars from `start` to before `end`, or `now`, that are not there yet; times in ms.

        Raises `DataError` where there is none at all, or what comes is unsound.
        """
        interval = self._interval
        closed = bar_start(now - _SETTLING, interval)
        stop = closed if end is None else min(closed, next_bar_start(end, interval))
        begin = next_bar_start(start, interval)
        since = begin if series.last is None else series.last + interval
        total = max(0, stop - begin) // interval
        while since < stop:
            report(series.path.stem, (since - begin) // interval, total)
            page, ahead = self._page(since, stop, series.last_row)
            if page:
                time = sorted(page)
                series.append(np.array(time, np.int64), np.array([page[t] for t in time]))
                since = time[-1] + interval
            if ahead:
                break
            if not page:
                # Some exchanges answer for a stretch of time, which may hold nothing, others with the next bars.
                latest = self._ask(None, stop)
                if not latest or max(latest) < since:
                    break
                since += (self._limit or _UNKNOWN_PAGE) * interval
        report(series.path.stem, total, total)
        if series.last is None:
            raise DataError(
                f"{self._what}: there are no closed bars from {format_time(begin)} to {format_time(stop)} UTC"
            )

    def _page(self, since: int, stop: int, known: tuple[int, _Row] | None) -> tuple[_Page, bool]:
        """The sound bars from `since` to before `stop` of one page; whether the page reached `stop`.

        The page is asked for from the last stored bar, `known`, on: an exchange that gives it again goes on from there.
        """
        joined = known is not None and known[0] == since - self._interval
        begin = since - self._interval if joined else since
        rows = self._ask(begin, stop)
        wanted = range(begin, min(max(rows, default=begin) + 1, stop), self._interval)
        if any(time not in rows for time in wanted) or max(rows) < since:
            rows = _merged(self._what, [*rows.items(), *self._ask(begin, stop).items()], stop)
        if known is not None and known[0] in rows and rows[known[0]] != known[1]:
            raise DataError(
                f"{self._what}: the bar of {format_time(known[0])} is stored as {known[1]}, and the exchange says"
                f" {rows[known[0]]}; remove the file to download all its bars again"
            )
        if rows and min(rows) > begin:
            listed = self._market.get("created")
            # A page that begins late is right where the symbol is young, or where bars are absent.
            if not (isinstance(listed, int) and min(rows) <= listed + DAY_MS):
                _check_honoured(self._what, begin, min(rows), self._ask(None, stop), self._interval)
        return {time: row for time, row in rows.items() if since <= time < stop}, bool(rows) and max(rows) >= stop

    def _ask(self, since: int | None, stop: int) -> _Page:
        """One answer, bars before `stop` checked; `since` None: the latest bars."""
        answer = self._client.ask("fetch_ohlcv", self._market["symbol"], self._timeframe, since, self._limit)
        rows = []
        for candle in _records(self._what, answer):
            time, row = _numbers(self._what, candle, 1 + len(BAR_VALUES))
            if time < stop:
                self._check(time, row)
            rows.append((time, row))
        return _merged(self._what, rows, stop)

    def _check(self, time: int, row: _Row) -> None:
        open_, high, low, close, volume = row
        if bar_start(time, self._interval) != time:
            raise DataError(
                f"{self._what}: the bar of {format_time(time)} is off the grid of {self._timeframe}; it is refused"
                + _WEEKS * (self._timeframe == "1w")
            )
        sound = all(map(math.isfinite, row)) and 0.0 < low <= min(open_, close) and max(open_, close) <= high
        if not (sound and volume >= 0.0):
            raise DataError(
                f"{self._what}: the bar of {format_time(time)} is impossible, so its page is refused: {row}"
            )


class FundingPages:
    """Pages of one perpetual's funding rates."""

    def __init__(self, client: Client, market: dict[str, Any]) -> None:
        self._client, self._market = client, market
        self._what = f"{client.exchange.id} {market['symbol']} funding"

    def fetch(self, series: SeriesFile, start: int, end: int | None, now: int, report: DownloadProgress) -> None:
        """Append the rates from `start` up to and at `end` (the last bar's close), or `now`, that are not there yet."""
        stop = now if end is None else min(now, end)
        since = start if series.last is None else series.last + 1
        total = max(0, stop - start) // HOUR_MS
        while since <= stop:
            report(series.path.stem, (since - start) // HOUR_MS, total)
            # An empty answer is not believed at once.
            rows = self._ask(since) or self._ask(since)
            if rows and min(rows) > since + 2 * DAY_MS:
                listed = self._market.get("created")
                if not (isinstance(listed, int) and min(rows) <= listed + 2 * DAY_MS):
                    _check_honoured(self._what, since, min(rows), self._ask(None), HOUR_MS)
            time = sorted(one for one in rows if one <= stop)
            if time:
                series.append(np.array(time, np.int64), np.array([rows[one] for one in time]))
                since = time[-1] + 1
            if rows and max(rows) > stop:
                break
            if not rows:
                latest = self._ask(None)
                if not latest or max(latest) < since:
                    break
                since += _FUNDING_PAGE * HOUR_MS  # the shortest stretch that a page can stand for
        report(series.path.stem, total, total)

    def _ask(self, since: int | None) -> _Page:
        answer = self._client.ask("fetch_funding_rate_history", self._market["symbol"], since, _FUNDING_PAGE)
        rows = []
        for record in _records(self._what, answer):
            pair = [record.get("timestamp"), record.get("fundingRate")] if isinstance(record, dict) else []
            time, row = _numbers(self._what, pair, 2)
            if not abs(row[0]) < 1.0:  # NaN fails too
                raise DataError(f"{self._what}: the rate {row[0]} of {format_time(time)} is impossible; it is refused")
            rows.append((time, row))
        return _merged(self._what, rows, LATEST)


def _records(what: str, answer: Any) -> list[Any]:
    if not isinstance(answer, list):
        raise DataError(f"{what}: the exchange answered with {str(answer)[:80]!r}, which is no list of records")
    return answer


def _numbers(what: str, record: Any, count: int) -> tuple[int, _Row]:
    """A record's time (ms) and its other numbers; `count` fields in all."""
    try:
        time, *values = record
        if len(values) != count - 1 or not EARLIEST <= time < LATEST:
            raise ValueError
        return int(time), tuple(float(value) for value in values)
    except (TypeError, ValueError):
        raise DataError(f"{what}: the record {record!r} lacks a number or its time, so its page is refused") from None


def _merged(what: str, rows: Sequence[tuple[int, _Row]], stop: int) -> _Page:
    """The rows by time, equal ones once. What comes at `stop` or later may still change, and is not stored."""
    page: _Page = {}
    for time, row in rows:
        if time < stop and page.get(time, row) != row:
            raise DataError(
                f"{what}: the exchange contradicts itself about {format_time(time)}: {page[time]}, then {row};"
                " its page is refused, try again later"
            )
        page[time] = row
    return page


def _check_honoured(what: str, since: int, first: int, latest: _Page, slack: int) -> None:
    """Refuse a page that begins late and is just the latest one: then `since` was ignored, and asking on is a loop."""
    if latest and abs(min(latest) - first) <= slack:
        raise DataError(
            f"{what}: asked for {format_time(since)} on, the exchange gives its latest records only, from"
            f" {format_time(first)} on; if trading began there or that is enough, start there"
        )
