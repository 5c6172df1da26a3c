"""One exchange through ccxt.pro: asked with care, listened to, and every failure given a name.

Requests go one after the other. What an exchange asks to wait is waited, by everyone. Answers are bounded in size. No
key is ever needed or sent.
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
from collections.abc import Callable
from typing import Any

import aiohttp
import ccxt.pro

from simulator.data.download_client import ATTEMPTS, MarketType, aim, check_exchange, seconds_to_wait, server_of
from simulator.errors import RunFailed, UserError
from simulator.live.events import NoticeKind
from simulator.live.exchange_feed.answers import CLOSED_IN_STREAM
from simulator.live.exchange_feed.counters import FeedCounters
from simulator.live.loop_clock import LoopClock

LARGEST_ANSWER = 64 * 1024 * 1024  # bytes of one answer; all of an exchange's markets take about 15 million
FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0  # seconds between two attempts
_SLOW = 20.0  # seconds that a request may take
_QUERY = re.compile(r"\?\S+")
_MALFORMED = (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError)

OnClosed = Callable[[str, Any], None]


class FeedFailure(Exception):
    """A failure, with its kind of notice and its counter; `passing`: asking again may help."""

    def __init__(self, kind: NoticeKind, counter: str, words: str, *, passing: bool = True) -> None:
        super().__init__(words)
        self.kind, self.counter, self.passing = kind, counter, passing


class _BoundedResponse(aiohttp.ClientResponse):
    """A response that is not read beyond `LARGEST_ANSWER`, however much was promised or packed."""

    async def read(self) -> bytes:
        if self._body is None:
            parts, size = [], 0
            async for part in self.content.iter_chunked(65_536):
                size += len(part)
                if size > LARGEST_ANSWER:
                    self.close()
                    raise aiohttp.ClientPayloadError(f"an answer of more than {LARGEST_ANSWER} bytes")
                parts.append(part)
            self._body = b"".join(parts)
        return self._body


def _listening(exchange: str) -> type[Any]:
    """ccxt.pro's class of an exchange, which also says what it hears, and with what status REST answers."""
    base: type[Any] = getattr(ccxt.pro, exchange)
    closed_in = CLOSED_IN_STREAM.get(exchange)

    class Listening(base):
        def __init__(self, config: dict[str, Any], connection: ExchangeConnection) -> None:
            self.connection = connection
            super().__init__(config)

        def handle_message(self, client: Any, message: Any) -> None:
            self.connection.heard(client.url)
            try:
                super().handle_message(client, message)
            except _MALFORMED as error:
                # An exception here would end ccxt's loop of this socket without a word.
                self.connection.malformed(f"a message of the stream ({type(error).__name__})")

        def handle_ohlcv(self, client: Any, message: Any) -> None:
            if closed_in is not None:
                try:
                    for name, interval, row in closed_in(message):
                        self.connection.closed_in_stream(name, interval, row)
                except _MALFORMED:
                    self.connection.malformed("a candle of the stream has another shape")
            super().handle_ohlcv(client, message)

        def handle_errors(self, code: Any, reason: Any, url: Any, method: Any, headers: Any, *rest: Any) -> Any:
            if str(url).startswith("http"):
                self.connection.answered(code, headers)
            return super().handle_errors(code, reason, url, method, headers, *rest)

    return Listening


class ExchangeConnection:
    """ccxt.pro's object `api` for an exchange, made in the loop that is to use it; see `ask` and `close`.

    Args:
        url: server to ask instead of the exchange's own. on_closed: gets the symbol and row of each closed candle that
            a stream tells of. on_malformed: gets what could not be used, in words.

    Raises:
        UserError: an unknown exchange, a URL that cannot be used.
    """

    def __init__(
        self,
        exchange: str,
        market: MarketType,
        clock: LoopClock,
        counters: FeedCounters,
        *,
        url: str = "",
        on_closed: OnClosed,
        on_malformed: Callable[[str], None],
    ) -> None:
        check_exchange(exchange, ccxt.pro.exchanges)
        server = server_of(url) if url else None
        self.name, self.clock, self.counters = exchange, clock, counters
        self._on_closed, self._on_malformed = on_closed, on_malformed
        # A server that was named is no exchange: it sets no limit, or says so.
        config: dict[str, Any] = {
            "enableRateLimit": not url,
            "timeout": 1000 * clock.patience(_SLOW) / clock.speed,
            "options": {"defaultType": market},
            "session": aiohttp.ClientSession(response_class=_BoundedResponse, trust_env=not url),
        }
        self.api = _listening(exchange)(config, self)
        aim(self.api, market, server)
        self.symbols: dict[str, str] = {}  # the exchange's own name -> ours, of what is listened to
        self.interval_name = ""
        self.last_heard: dict[str, int] = {}
        self._answers: list[tuple[int, float | None]] = []  # status and Retry-After (seconds) of the request under way
        self._resume = 0
        self._one_at_a_time = asyncio.Lock()
        self._jitter = random.Random()

    async def close(self) -> None:
        """End all sockets and requests."""
        session = self.api.session
        await self.api.close()
        if session is not None:
            await session.close()

    # What the listening class says

    def heard(self, url: str) -> None:
        """A message came over the socket `url`."""
        self.last_heard[url] = self.clock.now()

    def malformed(self, words: str) -> None:
        """Something that came could not be used."""
        self._on_malformed(words)

    def closed_in_stream(self, name: str, interval: str, row: Any) -> None:
        """A stream says that a candle has closed."""
        symbol = self.symbols.get(name) if isinstance(name, str) else None
        if symbol is None or interval != self.interval_name:
            self._on_malformed("a candle of the stream is of something that was not asked for")
        else:
            self._on_closed(symbol, row)

    def answered(self, status: Any, headers: Any) -> None:
        """REST answered with this status."""
        wait = next((value for name, value in headers.items() if name.lower() == "retry-after"), None)
        self._answers.append((int(status), seconds_to_wait(wait)))

    # Asking

    async def ask(self, method: str, *arguments: Any, attempts: int = 1) -> Any:
        """The answer of ccxt's `method`.

        Raises:
            FeedFailure: no usable answer in so many attempts, or none that another attempt would change.
        """
        attempt = 0
        while True:
            try:
                async with self._one_at_a_time:
                    return await self._ask_once(method, *arguments)
            except FeedFailure as failure:
                attempt += 1
                if not failure.passing or attempt >= attempts:
                    raise
                await self.clock.sleep(self.backoff(attempt - 1))

    async def _ask_once(self, method: str, *arguments: Any) -> Any:
        pause = (self._resume - self.clock.now()) / 1000
        if pause > 0:
            self.counters.add("waited", pause)
            await self.clock.sleep(pause)
        self._answers.clear()
        self.counters.add("requests")
        try:
            return await getattr(self.api, method)(*arguments)
        except Exception as error:  # every failure gets a name; what has none is raised again
            status, wait = self._answers[-1] if self._answers else (None, None)
            failure = self.failure(error, f"{self.name}: {method}", status)
            if failure is None:
                raise
            self.counters.add(failure.counter)
            if wait is not None:
                self._resume = self.clock.now() + round(1000 * wait)
            raise failure from None

    def backoff(self, failures: int) -> float:
        """Seconds to wait after so many failures and one more: twice as long each time, with a random part."""
        return min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(failures, 10)) * self._jitter.uniform(0.5, 1.0)

    def failure(self, error: BaseException, what: str, status: int | None = None) -> FeedFailure | None:
        """The name of an error of ccxt or of the network, with the HTTP status; None for one that is a defect."""
        words = f"{what}: {self.words(error)}"
        if any(isinstance(one, socket.gaierror | aiohttp.ClientConnectorDNSError) for one in _chain(error)):
            return FeedFailure("dns", "dns", f"{words} (the name of the server cannot be resolved)")
        spoilt = [one for one in _chain(error) if isinstance(one, aiohttp.ClientPayloadError)]
        if spoilt:  # ccxt takes an answer that breaks off for a refusal
            return FeedFailure("malformed", "malformed", f"{words} ({str(spoilt[0])[:100]})")
        if isinstance(error, ccxt.RateLimitExceeded | ccxt.DDoSProtection) or status in (418, 429):
            return FeedFailure("rate_limit", "rate_limits", words)
        if isinstance(error, ccxt.RequestTimeout | TimeoutError):
            return FeedFailure("server_error", "timeouts", words)
        if isinstance(error, ccxt.OnMaintenance):
            return FeedFailure("maintenance", "maintenance", words)
        if isinstance(error, ccxt.NetworkError) or (status is not None and status >= 500):
            return FeedFailure("server_error", "server_errors", words)
        if isinstance(error, ccxt.BaseError):
            return FeedFailure("server_error", "refusals", words, passing=False)
        if isinstance(error, aiohttp.ClientError | OSError):
            return FeedFailure("server_error", "server_errors", words)
        if isinstance(error, _MALFORMED):
            return FeedFailure("malformed", "malformed", f"{what}: an answer of another shape ({type(error).__name__})")
        return None

    def words(self, error: BaseException) -> str:
        """An error in one line, without what stands behind the '?' of an address."""
        return _QUERY.sub("", " ".join((str(error) or type(error).__name__).split()))[:200]

    # Opening

    async def markets_of(
        self, symbols: tuple[str, ...], timeframe: str, market: MarketType
    ) -> dict[str, dict[str, Any]]:
        """ccxt's structures of the symbols' markets. Raises `UserError` for what the exchange does not have."""
        try:
            await self.ask("load_markets", attempts=ATTEMPTS)
        except FeedFailure as failure:
            if isinstance(failure.__context__, ccxt.AuthenticationError):
                words = f"{self.name} wants a key even for market data; choose another exchange"
                raise UserError(f"{words}: {failure}") from None
            kind = RunFailed if failure.passing else UserError
            hint = "; check --url, the network and the name of the exchange" if failure.passing else ""
            raise kind(f"{self.name} cannot be reached: {failure}{hint}") from None
        markets = {}
        for symbol in symbols:
            one = self.api.markets.get(symbol)
            if one is None or one["type"] != market:
                raise UserError(f"{self.name} has no {market} market {symbol}; {self._near(symbol, market)}")
            if one.get("active") is False:
                raise UserError(f"{self.name} does not trade {symbol} at present; choose another symbol")
            markets[symbol] = one
        offered = list(self.api.timeframes or {})
        if self.api.has.get("fetchOHLCV") is not True or timeframe not in offered:
            raise UserError(
                f"{self.name} offers no candles of {timeframe}; it has {', '.join(offered) or 'none'}; choose another"
                " timeframe or exchange"
            )
        # A perpetual without its funding would look cheaper to hold than it is.
        if market == "swap" and self.api.has.get("fetchFundingRateHistory") is not True:
            raise UserError(f"{self.name} offers no funding rates through ccxt; choose another exchange, or spot")
        self.symbols = {one["id"]: symbol for symbol, one in markets.items()}
        self.interval_name = str(self.api.timeframes[timeframe])
        return markets

    def _near(self, symbol: str, market: MarketType) -> str:
        there = sorted(name for name, one in self.api.markets.items() if one["type"] == market)
        base = symbol.partition("/")[0]
        near = [name for name in there if name.startswith(f"{base}/")]
        near += [name for name in there if name.startswith(base[:3]) and name not in near]
        return f"it has {', '.join((near or there)[:5]) or 'none of that kind'}; write it as ccxt does"


def _chain(error: BaseException) -> list[BaseException]:
    """An error with what caused it; ccxt keeps some causes as arguments."""
    errors, left = [], [error]
    while left:
        one = left.pop()
        if one not in errors:
            errors.append(one)
            left += [more for more in (one.__cause__, one.__context__, *one.args) if isinstance(more, BaseException)]
    return errors
