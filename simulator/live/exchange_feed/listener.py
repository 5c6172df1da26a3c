"""Listens to an exchange: closed candles once and in order, trades, books, settlements, whatever the network does.

The streams bring candles as they close. What they have not brought a moment after its close, REST is asked for; so a
lost message, a late one, a socket that hangs and a restart across a bar are one case, and an exchange without streams
is another of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import ccxt

from simulator.data.download_client import ATTEMPTS
from simulator.errors import DataError, RunFailed, UserError
from simulator.live.events import BookLevels, BookTop, Candle, FeedEvent, Funding, MarketTrade, Notice, NoticeKind
from simulator.live.exchange_feed.answers import book_levels_of, book_of, kline_of, number
from simulator.live.exchange_feed.closed_candles import CandleRow, ClosedCandles
from simulator.live.exchange_feed.connection import ExchangeConnection, FeedFailure
from simulator.live.exchange_feed.counters import FeedCounters
from simulator.live.exchange_feed.history import RestHistory
from simulator.live.exchange_feed.settings import FeedSettings
from simulator.live.loop_clock import LoopClock
from simulator.market.timeframes import HOUR_MS, bar_start, format_time

Emit = Callable[[Callable[[int], FeedEvent]], None]  # gets an event's maker, and gives it the time at which it is known

_LOOKING = 5.0  # seconds between two looks at the sockets
_MEASURING = 600.0  # seconds between two comparisons of the clocks
_TIMES_MEASURED = 3
_AGAIN, _LONGEST_AGAIN = (
    1.0,
    16.0,
)  # seconds until an answer that lacks a candle is asked for once more, then twice that
_SETTLEMENT_LOOKS = (2, 10, 60, 300, 1800)  # seconds after each hour: settlements fall on hours, and are listed later
_RECENT_TRADES = 4_000
_LEVELS = 20  # of a book that is looked into: every exchange of ccxt gives as many at once
_LEAST_GRACE = 0.05  # real seconds, with a clock that runs fast
_LONGER = 3  # how often the allowed silence of a socket that is ended again and again is doubled


class Listener:
    """Listens to what `settings` names and gives every event to `emit`; made and used in one event loop."""

    def __init__(self, settings: FeedSettings, clock: LoopClock, counters: FeedCounters, emit: Emit) -> None:
        self.settings, self.clock, self.counters = settings, clock, counters
        self._emit = emit
        self.connection = ExchangeConnection(
            settings.exchange,
            settings.market,
            clock,
            counters,
            url=settings.url,
            on_closed=self._closed_in_stream,
            on_malformed=self._malformed,
        )
        self._history = RestHistory(self.connection, settings, self._malformed)
        self._candles: dict[str, ClosedCandles] = {}
        self._doubted: dict[str, tuple[int, int]] = {}  # symbol -> a candle that an answer lacked, and when it did (ms)
        self._not_before: dict[str, int] = {}
        self._lacks: dict[str, int] = {}  # symbol -> answers in a row that lacked a candle
        self._settled: dict[str, int] = {}
        self._seen_trades: dict[str, deque[str]] = {symbol: deque(maxlen=_RECENT_TRADES) for symbol in settings.symbols}
        self._last_trade: dict[str, int] = {}
        self._last_book: dict[str, int] = {}
        self._polled: set[str] = set()  # what no stream brings at present
        self._offset = 0
        self.markets: dict[str, dict[str, Any]] = {}  # ccxt's structure of each symbol, once connected
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.defect: BaseException | None = None

    # From outside

    async def connect(self) -> None:
        """Reach the exchange and check that it has what is asked for; nothing is listened to yet.

        Raises:
            UserError: the exchange does not have what is asked for, or the clocks differ by too much.
            RunFailed: it cannot be reached.
        """
        settings = self.settings
        self.markets = await self.connection.markets_of(settings.symbols, settings.timeframe, settings.market)
        await self._compare_clocks()

    async def open(self, since: int) -> None:
        """Begin, with every candle and settlement of which ``at > since`` (ms); connects first, unless that was done.

        Raises `UserError` and `RunFailed` as `connect` does.
        """
        settings = self.settings
        if not self.markets:
            await self.connect()
        for symbol in settings.symbols:
            self._candles[symbol] = ClosedCandles(settings.interval, since - settings.interval + 1)
            self._settled[symbol] = since
        self._start(self._keep_whole())
        self._start(self._end_silence())
        self._start(self._measure())
        self._start(self._poll())
        if settings.depth and self.connection.api.has.get("fetchOrderBook"):
            self._start(self._look_into_books())
        if settings.market == "swap":
            self._start(self._settle())
        api, symbols = self.connection.api, list(settings.symbols)
        pairs = [[symbol, settings.timeframe] for symbol in symbols]
        self._listen("candles", "watchOHLCV", api.watch_ohlcv_for_symbols, api.watch_ohlcv, pairs, lambda _: None)
        if settings.trades:
            self._listen("trades", "watchTrades", api.watch_trades_for_symbols, api.watch_trades, symbols, self._traded)
        if settings.books and api.has.get("watchBidsAsks") is True:
            self._start(self._receive("books", lambda: api.watch_bids_asks(symbols), self._quoted))
        elif settings.books:
            several = api.watch_order_book_for_symbols
            self._listen("books", "watchOrderBook", several, api.watch_order_book, symbols, self._booked)

    async def backfill(self, since: int, until: int) -> list[Candle | Funding]:
        """What there is with ``since < at <= until`` (ms); a failure is told, and gives nothing."""
        try:
            return await self.past(since, until)
        except FeedFailure as failure:
            self._report(failure)
            return []

    async def past(self, since: int, until: int) -> list[Candle | Funding]:
        """What there is with ``since < at <= until`` (ms). Raises `FeedFailure`."""
        return await self._history.between(since, until, self.exchange_now(), ATTEMPTS)

    def exchange_now(self) -> int:
        """The exchange's clock as far as it is known, ms."""
        return self.clock.now() + self._offset

    async def close(self) -> None:
        """End everything."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.connection.close()

    # Tasks and words

    def _start(self, job: Any) -> None:
        task = asyncio.ensure_future(job)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.defect = task.exception()

    def _pass_on(self, event: MarketTrade | BookTop | BookLevels | Funding) -> None:
        self._emit(lambda known_at: replace(event, known_at=known_at))

    def _notice(self, kind: NoticeKind, words: str, symbol: str = "") -> None:
        at = self.exchange_now()
        self._emit(lambda known_at: Notice(kind, symbol, words, at, known_at))

    def _report(self, failure: FeedFailure) -> None:
        self._notice(failure.kind, str(failure))

    async def _repeat(self, ask: Callable[[], Awaitable[None]], pause: Callable[[], Awaitable[None]]) -> None:
        """`ask` and `pause` in turn, for ever. After a failure it is asked again instead, later each time."""
        failures = 0
        while True:
            try:
                await ask()
            except FeedFailure as failure:
                self._report(failure)
                await self.clock.sleep(self.connection.backoff(failures))
                failures += 1
            else:
                failures = 0
                await pause()

    def _malformed(self, words: str) -> None:
        self.counters.add("malformed")
        self._notice("malformed", self.connection.words(DataError(words)))

    # Candles

    def _closed_in_stream(self, symbol: str, values: Any) -> None:
        if symbol not in self._candles:
            return
        try:
            row = kline_of(f"a candle of {symbol}", self.settings.interval, [number(symbol, one) for one in values])
            if row[0] + self.settings.interval > self.exchange_now() + self.clock.patience(5.0) * 1000:
                raise DataError(f"a candle of {symbol} is said to be closed before its time: {format_time(row[0])}")
        except DataError as error:
            self._malformed(str(error))
        else:
            self._take(symbol, row)

    def _take(self, symbol: str, row: CandleRow, *, filled: bool = False) -> None:
        ledger = self._candles[symbol]
        verdict = ledger.offer(row)
        if verdict == "early" and not filled:
            self.counters.add("early")
            self._wake.set()
        elif verdict in ("duplicate", "too_late") and not filled:
            self.counters.add("duplicates")
        elif verdict == "correction":
            # Passed on as it came: who has used the first version must know.
            self.counters.add("corrections")
            self._give(symbol, row)
        for ready in ledger.ready():
            if filled:
                self.counters.add("filled")
            self._give(symbol, ready)

    def _give(self, symbol: str, row: CandleRow) -> None:
        self.counters.add("candles")
        at = row[0] + self.settings.interval
        self._emit(lambda known_at: Candle(symbol, *row, at=at, known_at=known_at))

    async def _keep_whole(self) -> None:
        """Ask for every candle that has closed and that no stream has brought."""
        grace = round(1000 * self.clock.patience(self.settings.grace, _LEAST_GRACE))

        async def ask() -> None:
            self._wake.clear()
            for symbol, ledger in self._candles.items():
                now = self.exchange_now()
                if ledger.missing(now - grace) and self._not_before.get(symbol, 0) <= now:
                    await self._fill(symbol, ledger, ledger.missing(now - grace))

        async def pause() -> None:
            now = self.exchange_now()
            due = bar_start(now - grace, self.settings.interval) + self.settings.interval + grace
            for symbol, ledger in self._candles.items():
                if ledger.missing(now - grace):
                    due = min(due, self._not_before.get(symbol, now))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), max(0.0, (due - now) / 1000 / self.clock.speed))

        await self._repeat(ask, pause)

    async def _fill(self, symbol: str, ledger: ClosedCandles, wanted: range) -> None:
        """One request for the candles `wanted` (open times); what the exchange has none of is told as a gap."""
        asked_at = self.exchange_now()
        rows, whole = await self._history.candles(symbol, wanted[0], len(wanted) + 2)
        closed = [row for row in rows if row[0] + self.settings.interval <= asked_at]
        for row in closed:
            self._take(symbol, row, filled=True)
        lacking = ledger.expected
        if lacking not in wanted:
            self._doubted.pop(symbol, None)
            self._lacks[symbol] = 0
            return
        # The first candle that is wanted and not there. Another answer may have it.
        pause = min(_LONGEST_AGAIN, _AGAIN * 2.0 ** self._lacks.get(symbol, 0))
        self._not_before[symbol] = self.exchange_now() + round(1000 * pause)
        self._lacks[symbol] = min(10, self._lacks.get(symbol, 0) + 1)
        beyond = [row[0] for row in rows if row[0] > lacking]
        if ledger.waits() and not beyond:
            # Such an answer says nothing about what is absent.
            self._malformed(f"the candles of {symbol}: an answer lacks what a stream has brought")
            return
        if not whole:
            return
        known, since = self._doubted.get(symbol, (0, 0))
        if known != lacking:
            self._doubted[symbol] = (lacking, asked_at)
            return
        # Where nothing newer is there either, the answers may be late, or nothing at all.
        if not beyond and asked_at - since < self.settings.interval + 1000 * self.settings.absent_after:
            return
        stop = min(beyond, default=wanted[-1] + self.settings.interval)
        passed = ledger.pass_over(stop)
        if passed:
            self.counters.add("gaps", passed)
            words = f"{self.settings.exchange} has no candles for {passed} bars from {format_time(lacking)} UTC on"
            self._notice("gap", words, symbol)
        for ready in ledger.ready():
            self._give(symbol, ready)

    # Streams

    def _listen(
        self, what: str, able: str, several: Callable[..., Any], one: Callable[..., Any], asked: list[Any],
        handle: Callable[[Any], None],
    ) -> None:  # fmt: skip
        """Start listening with ccxt's method for all symbols where the exchange has it, else with one for each."""
        has = self.connection.api.has
        if has.get(f"{able}ForSymbols") is True:
            self._start(self._receive(what, lambda: several(asked), handle))
        elif has.get(able) is True:
            for single in asked:
                watch = partial(one, *(single if isinstance(single, list) else [single]))
                self._start(self._receive(what, watch, handle))
        else:
            self._polled.add(what)

    async def _receive(self, what: str, watch: Callable[[], Awaitable[Any]], handle: Callable[[Any], None]) -> None:
        """Wait for one message after the other; a socket that ends is opened again, later each time."""
        failures, known = 0, False
        while True:
            try:
                answer = await watch()
            except Exception as error:  # every failure gets a name; what has none is raised again
                failure = self.connection.failure(error, f"{self.settings.exchange}: the stream of {what}")
                if failure is None:
                    raise
                if not failures:
                    self.counters.add("disconnects")
                    self._notice("disconnected", str(failure))
                if failure.kind in ("dns", "rate_limit"):
                    self.counters.add(failure.counter)
                    self._report(failure)
                self._polled.add(what)
                await self.clock.sleep(self.connection.backoff(failures))
                failures += 1
                continue
            if failures or not known:
                self._notice("reconnected" if known else "connected", f"the stream of {what}")
                self.counters.add("reconnects", int(known))
                self._polled.discard(what)
                self._wake.set()
                if known and what == "trades":
                    self._start(self._missed_trades())
            failures, known = 0, True
            handle(answer)

    async def _end_silence(self) -> None:
        """End sockets that are open and say nothing; ccxt then fails whoever waits for them, who opens a new one."""
        first_seen: dict[str, tuple[int, int]] = {}
        ended: dict[str, deque[int]] = {}
        while True:
            await self.clock.sleep(self.clock.patience(_LOOKING))
            now = self.clock.now()
            for url, client in list(self.connection.api.clients.items()):
                if client.connection is None:
                    continue
                if first_seen.get(url, (0, 0))[0] != id(client):
                    first_seen[url] = (id(client), now)
                recent = ended.setdefault(url, deque(maxlen=_LONGER))
                while recent and recent[0] < now - HOUR_MS:
                    recent.popleft()
                allowed = 1000 * self.clock.patience(self.settings.silence) * 2 ** len(recent)
                if now - max(first_seen[url][1], self.connection.last_heard.get(url, 0)) > allowed:
                    self.counters.add("hung")
                    recent.append(now)
                    self._notice(
                        "stale", f"a socket has said nothing for {allowed / 1000:.0f} seconds; it is opened anew"
                    )
                    client.on_error(ccxt.RequestTimeout("the socket is open and silent"))

    # Trades and books

    def _traded(self, records: Any) -> None:
        for record in records if isinstance(records, list) else []:
            symbol = record.get("symbol") if isinstance(record, dict) else None
            if symbol not in self._seen_trades:
                self._malformed(f"a trade of {str(symbol)[:40]}, which was not asked for")
                continue
            event = self._history.trade(symbol, record, self.clock.now())
            if event is None:
                continue
            if event.id and event.id in self._seen_trades[symbol]:
                self.counters.add("duplicates")
                continue
            self._seen_trades[symbol].append(event.id)
            self._last_trade[symbol] = max(event.at, self._last_trade.get(symbol, 0))
            self.counters.add("trades")
            self._pass_on(event)

    async def _missed_trades(self) -> None:
        """What was traded while no socket was open."""
        try:
            for symbol, at in list(self._last_trade.items()):
                self._traded([one for one in await self._history.trades(symbol, at) if self._is_new(symbol, one)])
        except FeedFailure as failure:
            self._report(failure)

    def _is_new(self, symbol: str, record: Any) -> bool:
        return not (isinstance(record, dict) and record.get("id") in self._seen_trades[symbol])

    def _quoted(self, tickers: Any) -> None:
        for symbol, ticker in tickers.items() if isinstance(tickers, dict) else ():
            sides = [(ticker.get(side), ticker.get(f"{side}Volume")) for side in ("bid", "ask")]
            self._book(symbol, sides[0], sides[1], ticker.get("timestamp"))

    def _booked(self, book: Any) -> None:
        if book["bids"] and book["asks"]:
            self._book(book["symbol"], tuple(book["bids"][0][:2]), tuple(book["asks"][0][:2]), book.get("timestamp"))

    def _book(self, symbol: Any, bid: tuple[Any, Any], ask: tuple[Any, Any], time: Any) -> None:
        now = self.clock.now()
        if symbol not in self._seen_trades:
            self._malformed(f"a book of {str(symbol)[:40]}, which was not asked for")
        elif now - self._last_book.get(symbol, 0) >= 1000 * self.settings.book_interval:
            try:
                event = book_of(symbol, bid, ask, time, now)
            except DataError as error:
                self._malformed(str(error))
                return
            self._last_book[symbol] = now
            self.counters.add("books")
            self._pass_on(event)

    async def _look_into_books(self) -> None:
        """Ask for the levels of each book, again and again."""

        async def ask() -> None:
            for symbol in self.settings.symbols:
                book = await self.connection.ask("fetch_order_book", symbol, _LEVELS)
                try:
                    event = book_levels_of(symbol, book, self.clock.now())
                except DataError as error:
                    self._malformed(str(error))
                else:
                    self.counters.add("depths")
                    self._pass_on(event)

        await self._repeat(ask, lambda: self.clock.sleep(self.clock.patience(self.settings.depth)))

    async def _poll(self) -> None:
        """Ask for trades and books as long as no stream brings them."""
        failures = 0
        while True:
            await self.clock.sleep(self.clock.patience(self.settings.poll) * 2 ** min(failures, 5))
            try:
                for symbol in self.settings.symbols:
                    if "books" in self._polled:
                        self._booked(await self.connection.ask("fetch_order_book", symbol, 5))
                    if "trades" in self._polled and self.connection.api.has.get("fetchTrades"):
                        since = self._last_trade.get(symbol, self.exchange_now() - HOUR_MS)
                        trades = await self._history.trades(symbol, since)
                        self._traded([one for one in trades if self._is_new(symbol, one)])
                failures = 0
            except FeedFailure as failure:
                self._report(failure)
                failures += 1

    # Settlements and clocks

    async def _settle(self) -> None:
        """Ask for settlements at the start and after each hour."""

        async def ask() -> None:
            for symbol in self.settings.symbols:
                await self._settlements(symbol)

        async def pause() -> None:
            now = self.exchange_now()
            hour = now // HOUR_MS * HOUR_MS
            looks = [hour + 1000 * look for look in (*_SETTLEMENT_LOOKS, 3600 + _SETTLEMENT_LOOKS[0])]
            await self.clock.sleep((min(look for look in looks if look > now) - now) / 1000)

        await self._repeat(ask, pause)

    async def _settlements(self, symbol: str) -> None:
        while True:
            events = await self._history.fundings(symbol, self._settled[symbol] + 1, self.clock.now())
            known = [event for event in events if event.at <= self.exchange_now()]
            for event in known:
                self._settled[symbol] = event.at
                self.counters.add("fundings")
                self._pass_on(event)
            if not known:
                return

    async def _skew(self) -> tuple[int, int]:
        """How far the exchange's clock is ahead of ours, and how wrong that may be, ms. Raises `FeedFailure`."""
        best = (0, 10**9)
        for _ in range(_TIMES_MEASURED):
            before = self.clock.now()
            answer = await self.connection.ask("fetch_time", attempts=ATTEMPTS)
            after = self.clock.now()
            try:
                exchange_time = number("the exchange's time", answer)
            except DataError as error:
                self._malformed(str(error))
                continue
            if (after - before) // 2 < best[1]:
                best = round(exchange_time - (before + after) / 2), (after - before) // 2
        self.counters.skew, self.counters.round_trip = best[0], 2 * best[1]
        return best

    async def _compare_clocks(self) -> None:
        if self.connection.api.has.get("fetchTime") is not True:
            return
        try:
            skew, doubt = await self._skew()
        except FeedFailure as failure:
            raise RunFailed(f"{self.settings.exchange} does not tell its time: {failure}") from None
        if abs(skew) - doubt > 1000 * self.settings.skew_refused:
            way = "behind" if skew > 0 else "ahead of"
            raise UserError(
                f"this machine's clock is {abs(skew) / 1000:.0f} seconds {way} that of {self.settings.exchange}; set it"
                " (for instance with NTP) and start again: bars would close at the wrong time"
            )
        self._adjust(skew, doubt)

    def _adjust(self, skew: int, doubt: int) -> None:
        # Within the doubt the clocks may be equal.
        self._offset = skew if abs(skew) > doubt else 0
        if abs(skew) - doubt > 1000 * self.settings.skew_noticed:
            self.counters.add("skewed")
            self._notice("clock_skew", f"the exchange's clock is {skew / 1000:+.1f} seconds from this machine's")

    async def _measure(self) -> None:
        while self.connection.api.has.get("fetchTime") is True:
            await self.clock.sleep(_MEASURING)
            try:
                self._adjust(*await self._skew())
            except FeedFailure as failure:
                self._report(failure)
