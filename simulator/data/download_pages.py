"""Page after page of an exchange's bars or funding rates, each checked before it is stored.

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


class Pages:
    """Pages of one symbol's bars of a timeframe or, without one, of its funding rates."""

    def __init__(self, client: Client, market: dict[str, Any], timeframe: str = "") -> None:
        self._client, self._market, self._timeframe = client, market, timeframe
        self._what = f"{client.exchange.id} {market['symbol']} {timeframe or 'funding'}"
        self._interval = interval_of(timeframe) if timeframe else HOUR_MS  # the shortest between settlements
        self._step = self._interval if timeframe else 1  # from a record to the next one that may be
        limit = client.exchange.feature_value(market["symbol"], "fetchOHLCV", "limit") if timeframe else _FUNDING_PAGE
        self._limit = int(limit) if limit else None

    def fetch(self, series: SeriesFile, start: int, end: int | None, now: int, report: DownloadProgress) -> None:
        """Append the bars from `start` to before `end`, or `now`, that are not there yet; times in ms. Of rates, those
        at `end`, the last bar's close, too.

        Raises `DataError` where there is no bar at all, or what comes is unsound.
        """
        if self._timeframe:
            begin, closed = next_bar_start(start, self._interval), bar_start(now - _SETTLING, self._interval)
            stop = closed if end is None else min(closed, next_bar_start(end, self._interval))
        else:
            begin, stop = start, (now if end is None else min(now, end)) + 1
        since = begin if series.last is None else series.last + self._step
        total = max(0, stop - begin) // self._interval
        while since < stop:
            report(series.path.stem, (since - begin) // self._interval, total)
            page, ahead = self._page(since, stop, series.last_row)
            if page:
                time = sorted(page)
                series.append(np.array(time, np.int64), np.array([page[t] for t in time]))
                since = time[-1] + self._step
            if ahead:
                break
            if not page:
                # Some exchanges answer for a stretch of time, which may hold nothing, others with the next records.
                latest = self._ask(None, stop)
                if not latest or max(latest) < since:
                    break
                since += (self._limit or _UNKNOWN_PAGE) * self._interval
        report(series.path.stem, total, total)
        if series.last is None and self._timeframe:
            raise DataError(
                f"{self._what}: there are no closed bars from {format_time(begin)} to {format_time(stop)} UTC"
            )

    def _page(self, since: int, stop: int, known: tuple[int, _Row] | None) -> tuple[_Page, bool]:
        """The sound records from `since` to before `stop` of one page; whether the page reached `stop`.

        Bars are asked for from the last stored one, `known`, on: an exchange that gives it again goes on from there.
        """
        bars = bool(self._timeframe)
        begin = since - self._step if bars and known is not None and known[0] == since - self._step else since
        rows = self._ask(begin, stop)
        wanted = range(begin, min(max(rows, default=begin) + 1, stop), self._step) if bars else ()
        if not rows or any(time not in rows for time in wanted) or (bars and max(rows) < since):
            rows = _merged(self._what, [*rows.items(), *self._ask(begin, stop).items()], stop)
        if bars and known is not None and known[0] in rows and rows[known[0]] != known[1]:
            raise DataError(
                f"{self._what}: the bar of {format_time(known[0])} is stored as {known[1]}, and the exchange says"
                f" {rows[known[0]]}; remove the file to download all its bars again"
            )
        late = 0 if bars else 2 * DAY_MS
        if rows and min(rows) > begin + late:
            listed = self._market.get("created")
            # A page that begins late is right where the symbol is young, or where records are absent.
            if not (isinstance(listed, int) and min(rows) <= listed + max(DAY_MS, late)):
                self._check_honoured(begin, min(rows), self._ask(None, stop))
        return {time: row for time, row in rows.items() if since <= time < stop}, bool(rows) and max(rows) >= stop

    def _check_honoured(self, since: int, first: int, latest: _Page) -> None:
        """Refuse a page that begins late and is just the latest one: then `since` was ignored, and asking on is a
        loop."""
        if latest and abs(min(latest) - first) <= self._interval:
            raise DataError(
                f"{self._what}: asked for {format_time(since)} on, the exchange gives its latest records only, from"
                f" {format_time(first)} on; if trading began there or that is enough, start there"
            )

    def _ask(self, since: int | None, stop: int) -> _Page:
        """One answer, records before `stop` checked; `since` None: the latest ones."""
        symbol = self._market["symbol"]
        if self._timeframe:
            answer = self._client.ask("fetch_ohlcv", symbol, self._timeframe, since, self._limit)
        else:
            answer = self._client.ask("fetch_funding_rate_history", symbol, since, self._limit)
        if not isinstance(answer, list):
            raise DataError(
                f"{self._what}: the exchange answered with {str(answer)[:80]!r}, which is no list of records"
            )
        rows = []
        for record in answer:
            if not self._timeframe:
                pair = isinstance(record, dict)
                record = [record.get("timestamp"), record.get("fundingRate")] if pair else []
            time, row = self._numbers(record)
            if time < stop:
                self._check(time, row)
            rows.append((time, row))
        return _merged(self._what, rows, stop)

    def _numbers(self, record: Any) -> tuple[int, _Row]:
        """A record's time (ms) and its other numbers."""
        try:
            time, *values = record
            if len(values) != (len(BAR_VALUES) if self._timeframe else 1) or not EARLIEST <= time < LATEST:
                raise ValueError
            return int(time), tuple(float(value) for value in values)
        except (TypeError, ValueError):
            raise DataError(
                f"{self._what}: the record {record!r} lacks a number or its time, so its page is refused"
            ) from None

    def _check(self, time: int, row: _Row) -> None:
        if not self._timeframe:
            if not abs(row[0]) < 1.0:  # NaN fails too
                raise DataError(f"{self._what}: the rate {row[0]} of {format_time(time)} is impossible; it is refused")
            return
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
