"""Listens to an exchange through ccxt.pro: closed candles once and in order, the best bid and ask, settlements.

Candles come by REST after each close, so a lost message, a hung socket, a restart across a bar and an exchange without
streams are one case. The book comes by the stream, which ccxt.pro opens again after it has ended; without one no
spread is known. No key is needed or sent.
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import aiohttp
import ccxt.pro

from simulator.data.download import (
    ATTEMPTS,
    MALFORMED,
    MarketType,
    aim,
    check_exchange,
    offered_markets,
    seconds_to_wait,
    server_of,
)
from simulator.errors import DataError, RunFailed, UserError
from simulator.live.events import (
    Candle,
    FeedEvent,
    Funding,
    Notice,
    NoticeKind,
    book_of,
    candle_of,
    funding_of,
    number,
)
from simulator.live.feed import Clock
from simulator.market.timeframes import HOUR_MS, format_time, interval_of

Emit = Callable[[Callable[[int], FeedEvent]], None]  # gets an event's maker, which takes the time at which it is known

FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0  # seconds between two attempts
_SLOW, _SILENCE = 20.0, 60.0  # seconds that a request may take, and that an open socket may send nothing
_LEAST_REAL = 2.0  # real seconds of these, with a clock that runs fast
_GRACE = 2.0  # seconds after a close before its candle is asked for
_LONGEST_AGAIN = 16.0  # seconds before an answer that lacks a candle is asked for again
_BOOK_EVERY = 0.1  # seconds between two events of one book
_SKEW_REFUSED, _SKEW_NOTICED = 30.0, 1.0  # seconds
_SETTLEMENT_LOOKS = (2, 10, 60, 300, 1800)  # seconds after each hour: settlements fall on hours, and are listed later
_PAGE, _FUNDING_PAGE, _MOST_PAGES = 500, 100, 2_000
_QUERY = re.compile(r"\?\S+")


@dataclass(frozen=True)
class FeedSettings:
    """What to listen to: `exchange` by its id in ccxt, `symbols` as ccxt writes them, all spot (BTC/USDT) or all
    perpetuals (BTC/USDT:USDT), candles of `timeframe`; `url` is a server to ask instead of the exchange's own. Raises
    `UserError` and `DataError` for symbols or a timeframe that cannot be used."""

    exchange: str
    symbols: tuple[str, ...]
    timeframe: str
    url: str = ""

    def __post_init__(self) -> None:
        interval_of(self.timeframe)
        if not self.symbols or len(set(self.symbols)) < len(self.symbols):
            raise UserError("name at least one symbol, and each once")
        if len({":" in symbol for symbol in self.symbols}) > 1:
            raise UserError(
                f"{', '.join(self.symbols)}: spot and perpetuals cannot be mixed in one feed; BTC/USDT is spot,"
                " BTC/USDT:USDT the perpetual"
            )

    @property
    def market(self) -> MarketType:
        """ccxt's word for the kind of the symbols."""
        return "swap" if ":" in self.symbols[0] else "spot"

    @property
    def interval(self) -> int:
        """Length of a bar, ms."""
        return interval_of(self.timeframe)


class FeedFailure(Exception):
    """A failure, with its kind of notice and its counter; `passing`: asking again may help."""

    def __init__(self, kind: NoticeKind, counter: str, words: str, *, passing: bool = True) -> None:
        super().__init__(words)
        self.kind, self.counter, self.passing = kind, counter, passing


class Listener:
    """Gives every event of what `settings` names to `emit`; made and used in one event loop, whose time is `clock` and
    passes `speed` times as fast as real time. `counters` counts what it did and met, by name."""

    def __init__(self, settings: FeedSettings, clock: Clock, emit: Emit, speed: float = 1.0) -> None:
        """Raises `UserError` for an unknown exchange and a URL that cannot be used."""
        check_exchange(settings.exchange, ccxt.pro.exchanges)
        server = server_of(settings.url) if settings.url else None
        self.settings, self.clock, self._emit, self._speed = settings, clock, emit, speed
        self.counters = Counter[str]()
        self.api: Any = _noting_status(settings.exchange)(
            {
                "enableRateLimit": not settings.url,  # a server that was named sets no limit, or says so
                "timeout": 1000 * self._real(_SLOW),
                "options": {"defaultType": settings.market},
                "aiohttp_trust_env": not settings.url,
            }
        )
        aim(self.api, settings.market, server)
        self.markets: dict[str, dict[str, Any]] = {}  # ccxt's structure of each symbol, once connected
        self.defect: BaseException | None = None
        self._expected: dict[str, int] = {}  # open time of each symbol's next candle
        self._doubted: dict[str, int] = {}  # that of a candle which an answer lacked although it had a later one
        self._settled: dict[str, int] = {}
        self._last_book: dict[str, int] = {}
        self._offset = self._resume = 0
        self._one_at_a_time = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    async def connect(self) -> None:
        """Reach the exchange and check that it has what is asked for; nothing is listened to yet. Raises `UserError`
        for what it does not have, and for clocks that differ too much, `RunFailed` where it cannot be reached."""
        try:
            await self.ask("load_markets", attempts=ATTEMPTS)
        except FeedFailure as failure:
            if isinstance(failure.__context__, ccxt.AuthenticationError):
                words = f"{self.settings.exchange} wants a key even for market data; choose another exchange"
                raise UserError(f"{words}: {failure}") from None
            kind = RunFailed if failure.passing else UserError
            hint = "; check --url, the network and the name of the exchange" if failure.passing else ""
            raise kind(f"{self.settings.exchange} cannot be reached: {failure}{hint}") from None
        self._check_markets()
        if self._has("fetchTime"):
            try:
                skew, doubt = await self._skew(ATTEMPTS)
            except FeedFailure as failure:
                raise RunFailed(f"{self.settings.exchange} does not tell its time: {failure}") from None
            if abs(skew) - doubt > 1000 * _SKEW_REFUSED:
                way = "behind" if skew > 0 else "ahead of"
                raise UserError(
                    f"this machine's clock is {abs(skew) / 1000:.0f} seconds {way} that of {self.settings.exchange}; "
                    "set it (for instance with NTP) and start again: bars would close at the wrong time"
                )
            self._adjust(skew, doubt)

    async def open(self, since: int) -> None:
        """Begin, with every candle and settlement of which ``at > since`` (ms); connects first, unless that was done.
        Raises `UserError` and `RunFailed` as `connect` does."""
        settings, api = self.settings, self.api
        if not self.markets:
            await self.connect()
        first = -(-(since - settings.interval + 1) // settings.interval) * settings.interval
        self._expected = dict.fromkeys(settings.symbols, first)
        self._settled = dict.fromkeys(settings.symbols, since)
        self._start(self._candles())
        if settings.market == "swap":
            self._start(self._repeat(self._settle, self._until_settlement))
        if self._has("watchBidsAsks"):
            self._start(self._watch(lambda: api.watch_bids_asks(list(settings.symbols)), self._quoted))
        elif self._has("watchOrderBook"):
            for symbol in settings.symbols:
                self._start(self._watch(partial(api.watch_order_book, symbol), self._booked))

    async def past(self, since: int, until: int) -> list[Candle | Funding]:
        """Candles and settlements of all symbols with ``since < at <= until`` (ms) that have happened, by `at`. Raises
        `FeedFailure`."""
        interval, now = self.settings.interval, self.exchange_now()
        events: list[Candle | Funding] = []
        for symbol in self.settings.symbols:
            place = since - interval + 1  # a candle that closes after `since` opens after `since - interval`
            for _ in range(_MOST_PAGES):
                candles, _whole = await self._rows(symbol, place, (until - place) // interval + 2, ATTEMPTS)
                closed = [one for one in candles if one.at <= min(until, now)]
                events += closed
                if not closed or len(closed) < len(candles):
                    break
                place = closed[-1].open_time + 1
            place = since + 1
            while self.settings.market == "swap":
                page = await self._fundings(symbol, place, ATTEMPTS)
                known = [event for event in page if event.at <= min(until, now)]
                events += known
                if not known or len(known) < len(page) or len(page) < _FUNDING_PAGE:
                    break
                place = known[-1].at + 1
        return sorted(events, key=lambda event: (event.at, event.symbol))

    async def backfill(self, since: int, until: int) -> list[Candle | Funding]:
        """As `past`; a failure is a notice, and gives nothing."""
        try:
            return await self.past(since, until)
        except FeedFailure as failure:
            self._notice(failure.kind, str(failure))
            return []

    def exchange_now(self) -> int:
        """The exchange's clock as far as it is known, ms."""
        return self.clock.now() + self._offset

    async def ask(self, method: str, *arguments: Any, attempts: int = 1) -> Any:
        """The answer of ccxt's `method`; one request at a time. Raises `FeedFailure` for no usable answer in
        `attempts` attempts, or none that another attempt would change."""
        for attempt in range(1, attempts + 1):
            async with self._one_at_a_time:
                if (pause := self._resume - self.clock.now()) > 0:
                    await self._sleep(pause / 1000)
                self.counters["requests"] += 1
                self.api.last_response_headers = self.api.http_status = None
                try:
                    return await getattr(self.api, method)(*arguments)
                except Exception as error:  # every failure gets a name; what has none is raised again
                    failure = self._failure(error, f"{self.settings.exchange}: {method}", self.api.http_status or 0)
                    if failure is None:
                        raise
                    headers = {
                        str(name).lower(): value for name, value in (self.api.last_response_headers or {}).items()
                    }
                    if (wait := seconds_to_wait(headers.get("retry-after"))) is not None:
                        self._resume = self.clock.now() + round(1000 * wait)
                    if not failure.passing or attempt == attempts:
                        raise failure from error
            await self._sleep(_backoff(attempt - 1))
        raise AssertionError("attempts must be 1 at least")

    async def close(self) -> None:
        """End everything."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.api.close()

    # -- tasks ------------------------------------------------------------------------------------------------------

    def _start(self, job: Any) -> None:
        task = asyncio.ensure_future(job)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.defect = task.exception()

    async def _repeat(self, ask: Callable[[], Awaitable[Any]], pause: Callable[[], Awaitable[None]]) -> None:
        """`ask` and `pause` in turn, for ever. After a failure it is asked again instead, later each time."""
        failures = 0
        while True:
            try:
                await ask()
            except FeedFailure as failure:
                self._notice(failure.kind, str(failure))
                await self._sleep(_backoff(failures))
                failures += 1
            else:
                failures = 0
                await pause()

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._speed)

    def _real(self, seconds: float) -> float:
        """Real seconds for `seconds` of the clock, as many as programs and networks need at least."""
        return seconds if self._speed == 1.0 else max(seconds / self._speed, _LEAST_REAL)

    def _has(self, method: str) -> bool:
        return self.api.has.get(method) is True

    # -- candles ----------------------------------------------------------------------------------------------------

    async def _candles(self) -> None:
        """Ask for every candle once it has closed, until it is there."""
        interval, failures, lacks = self.settings.interval, 0, 0
        while True:
            ahead = min(self._expected.values()) + interval + 1000 * _GRACE - self.exchange_now()
            if ahead > 0:
                await self._sleep(ahead / 1000)
                continue
            try:
                whole = [await self._take(symbol) for symbol in self.settings.symbols]
            except FeedFailure as failure:
                self._notice(failure.kind, str(failure))
                await self._sleep(_backoff(failures))
                failures += 1
                continue
            failures, lacks = 0, 0 if all(whole) else lacks + 1
            if lacks:
                coming = [time + interval + 1000 * _GRACE - self.exchange_now() for time in self._expected.values()]
                until = min((one / 1000 for one in coming if one > 0), default=_LONGEST_AGAIN)
                await self._sleep(min(2.0 ** (lacks - 1), _LONGEST_AGAIN, until))

    async def _take(self, symbol: str) -> bool:
        """Give the candles of a symbol that have closed; whether none is lacking. What an exchange has no candle for
        is passed over when two answers had a later one and not this."""
        interval, expected = self.settings.interval, self._expected[symbol]
        now = self.exchange_now()
        if expected + interval > now:
            return True
        candles, whole = await self._rows(symbol, expected, (now - expected) // interval + 1)
        closed = [one for one in candles if one.at <= now]
        if closed and whole and closed[0].open_time > expected:
            if self._doubted.get(symbol) != expected:
                self._doubted[symbol] = expected
                return False
            count = (closed[0].open_time - expected) // interval
            self.counters["gaps"] += count
            words = f"{self.settings.exchange} has no candles for {count} bars from {format_time(expected)} UTC on"
            self._notice("gap", words, symbol)
            expected = closed[0].open_time
        for candle in closed:
            if candle.open_time != expected:
                break
            self.counters["candles"] += 1
            self._emit(partial(_known, candle))
            expected += interval
        self._expected[symbol] = expected
        return expected + interval > now

    async def _rows(self, symbol: str, since: int, count: int, attempts: int = 1) -> tuple[list[Candle], bool]:
        """Up to about `count` candles from the open time `since` (ms) on, in order, the unfinished one among them;
        whether every record could be used. Raises `FeedFailure`."""
        page = self.api.feature_value(symbol, "fetchOHLCV", "limit")
        limit = max(1, min(int(page) if page else _PAGE, count))
        answer = await self.ask("fetch_ohlcv", symbol, self.settings.timeframe, since, limit, attempts=attempts)
        candles: dict[int, Candle] = {}
        whole, now = isinstance(answer, list), self.exchange_now()
        for values in self._records(f"the candles of {symbol}", answer):
            try:
                one = candle_of(symbol, self.settings.interval, values, now)
                if candles.setdefault(one.open_time, one) != one:
                    raise DataError(f"a candle of {symbol} is there twice and differs: {candles[one.open_time]}, {one}")
            except DataError as error:
                whole = False
                self._malformed(str(error))
        return [candles[time] for time in sorted(candles) if time >= since], whole

    # -- the book ---------------------------------------------------------------------------------------------------

    async def _watch(self, watch: Callable[[], Awaitable[Any]], take: Callable[[Any], None]) -> None:
        """Take one message of the book's stream after the other. ccxt.pro opens a socket again that has ended; one that
        is open and sends nothing is ended here."""
        failures, known = 0, False
        while True:
            try:
                answer = await asyncio.wait_for(watch(), self._real(_SILENCE))
            except Exception as error:  # every failure gets a name; what has none is raised again
                failure = self._failure(error, f"{self.settings.exchange}: the stream of the book")
                if failure is None:
                    raise
                hung = isinstance(error, TimeoutError)
                if hung or not failures:
                    self.counters["hung" if hung else "disconnects"] += 1
                    self._notice("stale" if hung else "disconnected", str(failure))
                for client in list(self.api.clients.values()) if hung else ():
                    client.on_error(ccxt.RequestTimeout("the socket is open and sends nothing"))
                await self._sleep(_backoff(failures))
                failures += 1
                continue
            if failures or not known:
                self._notice("reconnected" if known else "connected", "the stream of the book")
                self.counters["reconnects"] += known
            failures, known = 0, True
            try:
                take(answer)
            except MALFORMED as error:
                self._malformed(f"a message of the stream ({type(error).__name__})")

    def _quoted(self, tickers: Any) -> None:
        for symbol, ticker in tickers.items():
            self._book(symbol, ticker.get("bid"), ticker.get("ask"), ticker.get("timestamp"))

    def _booked(self, book: Any) -> None:
        if book["bids"] and book["asks"]:
            self._book(book["symbol"], book["bids"][0][0], book["asks"][0][0], book.get("timestamp"))

    def _book(self, symbol: str, bid: Any, ask: Any, time: Any) -> None:
        now = self.clock.now()
        if symbol not in self.markets:
            self._malformed(f"a book of {str(symbol)[:40]}, which was not asked for")
        elif now - self._last_book.get(symbol, 0) >= 1000 * _BOOK_EVERY:
            try:
                event = book_of(symbol, bid, ask, time, now)
            except DataError as error:
                self._malformed(str(error))
                return
            self._last_book[symbol] = now
            self.counters["books"] += 1
            self._emit(lambda _: event)

    # -- settlements and clocks -------------------------------------------------------------------------------------

    async def _settle(self) -> None:
        for symbol in self.settings.symbols:
            while True:
                page = await self._fundings(symbol, self._settled[symbol] + 1)
                known = [event for event in page if event.at <= self.exchange_now()]
                for event in known:
                    self._settled[symbol] = event.at
                    self._emit(partial(Funding, event.symbol, event.rate, event.at))
                if not known:
                    break

    async def _until_settlement(self) -> None:
        now = self.exchange_now()
        hour = now // HOUR_MS * HOUR_MS
        looks = [hour + 1000 * look for look in (*_SETTLEMENT_LOOKS, 3600 + _SETTLEMENT_LOOKS[0])]
        await self._sleep((min(look for look in looks if look > now) - now) / 1000)

    async def _fundings(self, symbol: str, since: int, attempts: int = 1) -> list[Funding]:
        """Settlements from `since` (ms) on, in order; one page. Raises `FeedFailure`."""
        answer = await self.ask("fetch_funding_rate_history", symbol, since, _FUNDING_PAGE, attempts=attempts)
        events: dict[int, Funding] = {}
        for record in self._records(f"the funding of {symbol}", answer):
            try:
                event = funding_of(symbol, record, self.clock.now())
            except DataError as error:
                self._malformed(str(error))
            else:
                events[event.at] = event
        return [events[at] for at in sorted(events) if at >= since]

    async def _skew(self, attempts: int = 1) -> tuple[int, int]:
        """How far the exchange's clock is ahead of ours, and how wrong that may be, ms. Raises `FeedFailure`."""
        best = (0, 10**9)
        for _ in range(3):
            before = self.clock.now()
            answer = await self.ask("fetch_time", attempts=attempts)
            after = self.clock.now()
            try:
                exchange_time = number("the exchange's time", answer)
            except DataError as error:
                self._malformed(str(error))
                continue
            if (after - before) // 2 < best[1]:
                best = round(exchange_time - (before + after) / 2), (after - before) // 2
        return best

    def _adjust(self, skew: int, doubt: int) -> None:
        self._offset = skew if abs(skew) > doubt else 0  # within the doubt the clocks may be equal
        self.counters["skew"] = skew
        if abs(skew) - doubt > 1000 * _SKEW_NOTICED:
            self.counters["skewed"] += 1
            self._notice("clock_skew", f"the exchange's clock is {skew / 1000:+.1f} seconds from this machine's")

    # -- failures ---------------------------------------------------------------------------------------------------

    def _notice(self, kind: NoticeKind, words: str, symbol: str = "") -> None:
        at = self.exchange_now()
        self._emit(lambda known_at: Notice(kind, symbol, words, at, known_at))

    def _malformed(self, words: str) -> None:
        self.counters["malformed"] += 1
        self._notice("malformed", _words(DataError(words)))

    def _records(self, what: str, answer: Any) -> list[Any]:
        if not isinstance(answer, list):
            self._malformed(f"{what} are not a list: {str(answer)[:80]}")
            return []
        return answer

    def _failure(self, error: BaseException, what: str, status: int = 0) -> FeedFailure | None:
        """The name of an error of ccxt or of the network, which is counted, with the HTTP status; None for one that is
        a defect."""
        words = f"{what}: {_words(error)}"
        failure: FeedFailure | None = None
        if any(isinstance(one, socket.gaierror | aiohttp.ClientConnectorDNSError) for one in _chain(error)):
            failure = FeedFailure("dns", "dns", f"{words} (the name of the server cannot be resolved)")
        elif isinstance(error, ccxt.RateLimitExceeded | ccxt.DDoSProtection) or status in (418, 429):
            failure = FeedFailure("rate_limit", "rate_limits", words)
        elif isinstance(error, ccxt.RequestTimeout | TimeoutError):
            failure = FeedFailure("server_error", "timeouts", words)
        elif isinstance(error, ccxt.OnMaintenance):
            failure = FeedFailure("maintenance", "maintenance", words)
        elif isinstance(error, ccxt.NetworkError | aiohttp.ClientError | OSError) or status >= 500:
            failure = FeedFailure("server_error", "server_errors", words)
        elif isinstance(error, ccxt.BaseError):
            failure = FeedFailure("server_error", "refusals", words, passing=False)
        elif isinstance(error, MALFORMED):
            failure = FeedFailure("malformed", "malformed", f"{what}: an answer of another shape")
        if failure is not None:
            self.counters[failure.counter] += 1
        return failure

    def _check_markets(self) -> None:
        """Note the symbols' markets. Raises `UserError` for what the exchange does not have."""
        asked = self.settings
        for one in offered_markets(self.api, asked.market, asked.symbols, (asked.timeframe,)):
            if one.get("active") is False:
                raise UserError(f"{asked.exchange} does not trade {one['symbol']} at present; choose another symbol")
            self.markets[one["symbol"]] = one


def _noting_status(exchange: str) -> type[Any]:
    """ccxt.pro's class of an exchange, which also keeps the HTTP status of an answer: a server that fails may say so in
    a body that ccxt takes for a refusal."""
    base: type[Any] = getattr(ccxt.pro, exchange)

    def handle_errors(self: Any, code: Any, *rest: Any) -> Any:
        self.http_status = code
        return base.handle_errors(self, code, *rest)

    return type(exchange, (base,), {"handle_errors": handle_errors, "http_status": None})


def _known(candle: Candle, known_at: int) -> Candle:
    return replace(candle, known_at=known_at)


def _backoff(failures: int) -> float:
    """Seconds to wait after `failures` failures and one more: twice as long each time, with a random part."""
    return min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(failures, 10)) * random.uniform(0.5, 1.0)


def _words(error: BaseException) -> str:
    """An error in one line, without what stands behind the '?' of an address."""
    return _QUERY.sub("", " ".join((str(error) or type(error).__name__).split()))[:200]


def _chain(error: BaseException) -> list[BaseException]:
    """An error with what caused it; ccxt keeps some causes as arguments."""
    errors, left = [], [error]
    while left:
        one = left.pop()
        if one not in errors:
            errors.append(one)
            left += [more for more in (one.__cause__, one.__context__, *one.args) if isinstance(more, BaseException)]
    return errors
