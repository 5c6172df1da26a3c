"""What REST tells of the past: candles, settlements and trades, page by page, each record checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulator.errors import DataError
from simulator.live.events import Candle, Funding
from simulator.live.exchange_feed.answers import funding_of, kline_of, trade_of
from simulator.live.exchange_feed.closed_candles import CandleRow
from simulator.live.exchange_feed.connection import ExchangeConnection
from simulator.live.exchange_feed.settings import FeedSettings

_PAGE = 500  # candles asked for at once where the exchange does not say how many it gives
_FUNDING_PAGE = 100  # every exchange gives as many
_TRADES = 500
_MOST_PAGES = 2_000


class RestHistory:
    """Asks `connection` about the symbols of `settings`; `malformed` gets what could not be used, in words."""

    def __init__(
        self, connection: ExchangeConnection, settings: FeedSettings, malformed: Callable[[str], None]
    ) -> None:
        self._connection, self._settings, self._malformed = connection, settings, malformed

    async def candles(self, symbol: str, since: int, count: int, attempts: int = 1) -> tuple[list[CandleRow], bool]:
        """Up to about `count` candles from the open time `since` (ms) on, in order, the unfinished one among them;
        whether every record could be used. Raises `FeedFailure`.
        """
        interval = self._settings.interval
        page = self._connection.api.feature_value(symbol, "fetchOHLCV", "limit")
        limit = max(1, min(int(page) if page else _PAGE, count))
        answer = await self._connection.ask(
            "fetch_ohlcv", symbol, self._settings.timeframe, since, limit, attempts=attempts
        )
        rows: dict[int, CandleRow] = {}
        whole = isinstance(answer, list)
        for values in self._records(f"the candles of {symbol}", answer):
            try:
                row = kline_of(f"a candle of {symbol}", interval, values)
                if rows.setdefault(row[0], row) != row:
                    raise DataError(f"a candle of {symbol} is there twice and differs: {rows[row[0]]} and {row}")
            except DataError as error:
                whole = False
                self._malformed(str(error))
        return [rows[time] for time in sorted(rows) if time >= since], whole

    async def fundings(self, symbol: str, since: int, known_at: int, attempts: int = 1) -> list[Funding]:
        """Settlements from `since` (ms) on, in order; one page. Raises `FeedFailure`."""
        answer = await self._connection.ask(
            "fetch_funding_rate_history", symbol, since, _FUNDING_PAGE, attempts=attempts
        )
        events: dict[int, Funding] = {}
        for record in self._records(f"the funding of {symbol}", answer):
            try:
                event = funding_of(symbol, record, known_at)
            except DataError as error:
                self._malformed(str(error))
            else:
                events[event.at] = event
        return [events[at] for at in sorted(events) if at >= since]

    async def trades(self, symbol: str, since: int) -> list[Any]:
        """Trades from `since` (ms) on as ccxt has them; one page. Raises `FeedFailure`."""
        answer = await self._connection.ask("fetch_trades", symbol, since, _TRADES)
        return self._records(f"the trades of {symbol}", answer)

    async def between(self, since: int, until: int, now: int, attempts: int) -> list[Candle | Funding]:
        """Candles and settlements of all symbols with ``since < at <= until`` (ms) that have happened by `now`, by
        `at`. Raises `FeedFailure`.
        """
        interval = self._settings.interval
        events: list[Candle | Funding] = []
        for symbol in self._settings.symbols:
            # A candle that closes after `since` opens after `since - interval`.
            place = since - interval + 1
            for _ in range(_MOST_PAGES):
                wanted = (until - place) // interval + 2
                rows, _whole = await self.candles(symbol, place, wanted, attempts)
                closed = [row for row in rows if row[0] + interval <= min(until, now)]
                events += [Candle(symbol, *row, at=row[0] + interval, known_at=now) for row in closed]
                if not closed or len(closed) < len(rows):
                    break
                place = closed[-1][0] + 1
            place = since + 1
            while self._settings.market == "swap":
                page = await self.fundings(symbol, place, now, attempts)
                known = [event for event in page if event.at <= min(until, now)]
                events += known
                if not known or len(known) < len(page) or len(page) < _FUNDING_PAGE:
                    break
                place = known[-1].at + 1
        return sorted(events, key=lambda event: (event.at, event.symbol))

    def trade(self, symbol: str, record: Any, known_at: int) -> Any:
        """The event of a trade, None for one that cannot be used."""
        try:
            return trade_of(symbol, record, known_at)
        except DataError as error:
            self._malformed(str(error))
            return None

    def _records(self, what: str, answer: Any) -> list[Any]:
        if not isinstance(answer, list):
            self._malformed(f"{what} are no list: {str(answer)[:80]}")
            return []
        return answer
