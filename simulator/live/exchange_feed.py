"""The feed of a live exchange, as a session pulls from it: its event loop runs in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

from simulator.data.venue import rules_from_ccxt
from simulator.errors import RunFailed
from simulator.exchange.rules import SymbolRules
from simulator.live.events import BookTop, Candle, FeedEvent, FeedHeartbeat, Funding
from simulator.live.feed import Clock, RealClock
from simulator.live.listener import FeedFailure, FeedSettings, Listener
from simulator.market.instruments import MarketKind

MOST_KEPT = 50_000  # events that wait for the session; books beyond are dropped
_BEAT = 1_000  # ms of silence after which a heartbeat is given
_CLOSING = 10.0  # seconds
_STEP = 0.05  # seconds between two looks at the clock while nothing comes


class ExchangeFeed:
    """A `simulator.live.feed.Feed` of the exchange that `settings` names.

    Args:
        clock: of the session. speed: how fast it runs, where the exchange is one that plays faster too.
    """

    def __init__(self, settings: FeedSettings, clock: Clock | None = None, speed: float = 1.0) -> None:
        self.settings = settings
        self.name, self.symbols, self.timeframe = settings.exchange, settings.symbols, settings.timeframe
        kind: MarketKind = "perpetual" if settings.market == "swap" else "spot"
        self.kinds: Mapping[str, MarketKind] = dict.fromkeys(settings.symbols, kind)
        self.clock: Clock = clock or RealClock()
        self._speed = speed
        self._kept: deque[FeedEvent] = deque()
        self._change = threading.Condition()
        self._latest = 0
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._listener: Listener | None = None

    def counters(self) -> Mapping[str, int | float]:
        """What it did and met so far, by name: requests, candles, books; gaps, disconnects, reconnects, hung sockets,
        malformed answers; timeouts, server_errors, maintenance, rate_limits, dns, refusals; the skew of the clocks (ms)
        and how often it was noticed."""
        return {} if self._listener is None else dict(self._listener.counters)

    def connect(self) -> None:
        """Reach the exchange, and check what is asked of it; from then on it can be asked about the past.

        Raises:
            UserError: the exchange does not have what is asked for, or the clocks differ by too much.
            RunFailed: it cannot be reached.
        """
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"feed-{self.name}", daemon=True)
        self._thread.start()
        try:
            self._call(self._connect())
        except BaseException:
            self.close()
            raise

    def open(self, since: int) -> None:
        """See `Feed.open`; connects first, unless that was done. Raises also `RunFailed` where the exchange cannot be
        reached."""
        if self._thread is None:
            self.connect()
        try:
            self._call(self._listening().open(since))
        except BaseException:
            self.close()
            raise

    def exchange_now(self) -> int:
        """The exchange's clock, ms, as far as it was measured."""
        return self._listening().exchange_now()

    def past(self, since: int, until: int) -> Sequence[Candle | Funding]:
        """As `backfill`, for a caller that cannot do without. Raises `RunFailed` where the exchange does not give
        it."""
        try:
            return self._call(self._listening().past(since, until))
        except FeedFailure as failure:
            raise RunFailed(
                f"{self.name} does not give its candles of {self.timeframe}: {failure}; choose another timeframe or "
                "other symbols, or try later"
            ) from None

    def rules(self) -> dict[str, SymbolRules]:
        """The exchange's rules of each symbol: steps, smallest orders, fees. What its public data does not say, as the
        margin tiers of most exchanges, restricts nothing. Raises `DataError` for metadata that cannot be used."""
        listener = self._listening()
        mode = listener.api.precisionMode
        return {symbol: rules_from_ccxt(listener.markets[symbol], None, mode) for symbol in self.symbols}

    def next(self, timeout_s: float) -> FeedEvent | None:
        """See `Feed.next`."""
        deadline = time.monotonic() + timeout_s
        while True:
            with self._change:
                if self._kept:
                    return self._kept.popleft()
                if self._listener is not None and self._listener.defect is not None:
                    raise RunFailed(f"the feed of {self.name} ended") from self._listener.defect
                now = max(self.clock.now(), self._latest)
                if now - self._latest >= _BEAT:
                    self._latest = now
                    return FeedHeartbeat(now, now)
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self._change.wait(min(left, _STEP))

    def backfill(self, since: int, until: int) -> Sequence[Candle | Funding]:
        """See `Feed.backfill`."""
        return self._call(self._listening().backfill(since, until))

    def close(self) -> None:
        """See `Feed.close`."""
        if self._thread is None:
            return
        try:
            if self._listener is not None:
                with suppress(TimeoutError):  # a socket that does not let itself be closed ends with the loop
                    self._call(self._listener.close(), _CLOSING)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CLOSING)
            self._thread = None
            self._loop.close()

    async def _connect(self) -> None:
        self._listener = Listener(self.settings, self.clock, self._emit, self._speed)
        await self._listener.connect()

    def _listening(self) -> Listener:
        if self._listener is None:
            raise RunFailed(f"the feed of {self.name} is not open; open it first")
        return self._listener

    def _call(self, job: Coroutine[Any, Any, Any], timeout: float | None = None) -> Any:
        """The result of a coroutine in the feed's loop, waited for in the caller's thread."""
        return asyncio.run_coroutine_threadsafe(job, self._loop).result(timeout)

    def _emit(self, make: Callable[[int], FeedEvent]) -> None:
        """Keep an event for `next`, known now. Called in the feed's thread."""
        with self._change:
            known_at = max(self.clock.now(), self._latest)
            event = make(known_at)
            if len(self._kept) < MOST_KEPT or not isinstance(event, BookTop):
                self._latest = known_at
                self._kept.append(event)
                self._change.notify()
