"""A feed with a bad network in front of it: any feed, with events dropped, doubled, delayed, reordered and cut off.

The faults are those of the mock exchange, drawn from a seed for events instead of messages. A candle that is dropped is
still there when it is asked for (`backfill`), as on an exchange. Heartbeats and notices pass.
"""

from __future__ import annotations

import math
import random
from bisect import insort
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from simulator.live.clock import Clock
from simulator.live.events import Candle, FeedEvent, FeedHeartbeat, Funding, Notice
from simulator.live.feed import Feed
from simulator.market.instruments import MarketKind
from simulator.market.timeframes import DAY_MS, HOUR_MS
from tests.mock_binance.faults import FaultDraws, Faults

_LEAST_BREAKS = 1e-3  # an hour; less than that is none
_BREAK = 5_000  # ms that a broken connection takes to be back


class FaultyFeed:
    """`inner` as it looks through a network with `faults`; a `simulator.live.feed.Feed` itself.

    Of the faults it takes the shares of messages, `delay`, `disconnects`, and bursts, in which `backfill` gives
    nothing. What happens at a time depends on the seed and that time only, so a feed that is opened later has the same
    faults from there on. While it is disconnected events are lost;
    candles and settlements of that time come with the reconnection. `injected` counts what was done, by name.
    """

    def __init__(self, inner: Feed, faults: Faults) -> None:
        self._inner, self._faults = inner, faults
        self.name, self.symbols, self.timeframe = inner.name, inner.symbols, inner.timeframe
        self.kinds: Mapping[str, MarketKind] = inner.kinds
        self.clock: Clock = inner.clock
        self.injected: Counter[str] = Counter()
        self._draw, self._drawn_for = random.Random(), -1  # seeded anew for each time of events
        self._late: list[tuple[int, int, FeedEvent]] = []  # due time (ms), a number that keeps their order, the event
        self._count = 0
        self._ready: list[FeedEvent] = []
        self._held: FeedEvent | None = None
        self._break_at = math.inf
        self._lost_since: int | None = None
        self._latest = 0
        # Of the draws only those of messages: there is no end up to which moments could be drawn.
        self._draws = FaultDraws(faults, 0, 0, self.injected)

    def open(self, since: int) -> None:
        """See `Feed.open`."""
        self._inner.open(since)
        self._break_at = self._next_break(self.clock.now())

    def next(self, timeout_s: float) -> FeedEvent | None:
        """See `Feed.next`."""
        while not self._ready:
            event = self._inner.next(timeout_s)
            if event is None:
                return None
            self._pass(event)
        event = self._ready.pop(0)
        self._latest = max(self._latest, event.known_at)
        return event if event.known_at == self._latest else replace(event, known_at=self._latest)

    def backfill(self, since: int, until: int) -> Sequence[Candle | Funding]:
        """See `Feed.backfill`."""
        if self._in_burst(self.clock.now()):
            self.injected["burst"] += 1
            return ()
        return self._inner.backfill(since, until)

    def counters(self) -> Mapping[str, int | float]:
        """See `Feed.counters`."""
        return self._inner.counters()

    def close(self) -> None:
        """See `Feed.close`."""
        self._inner.close()

    def _pass(self, event: FeedEvent) -> None:
        """Let an event through, or do to it what is drawn."""
        now = event.known_at
        ended = isinstance(event, Notice) and event.kind == "end"
        while self._late and (ended or self._late[0][0] <= now):
            self._ready.append(self._late.pop(0)[2])
        if ended and self._held is not None:
            self._ready.append(self._held)
        if isinstance(event, Notice):
            self._ready.append(event)
            return
        if self._break_at <= now and self._lost_since is None:
            self._lost_since = now
            self.injected["disconnects"] += 1
            self._ready.append(Notice("disconnected", "", "the connection was cut", now, now))
        if self._lost_since is not None:
            if now < self._lost_since + _BREAK:
                self.injected["lost"] += not isinstance(event, FeedHeartbeat)
                return
            self._ready.append(Notice("reconnected", "", "the connection is back", now, now))
            # A feed makes up for what it missed by itself; trades and books of the time are gone.
            self._ready += [replace(one, known_at=now) for one in self._inner.backfill(self._lost_since - 1, now)]
            self._lost_since = None
            self._break_at = self._next_break(now)
        if isinstance(event, FeedHeartbeat):
            self._ready.append(event)
        else:
            self._disturb(event, now)

    def _next_break(self, now: int) -> float:
        """The first break after `now`; breaks of an hour are a Poisson process of that hour's own."""
        if self._faults.disconnects < _LEAST_BREAKS:
            return math.inf
        hour = now // HOUR_MS
        while True:
            draw, moment = random.Random(f"{self._faults.seed}:breaks:{hour}"), float(hour * HOUR_MS)
            while (moment := moment + HOUR_MS * draw.expovariate(self._faults.disconnects)) < (hour + 1) * HOUR_MS:
                if moment > now:
                    return moment
            hour += 1

    def _in_burst(self, now: int) -> bool:
        """Whether requests fail: in `bursts` stretches of each day, on average."""
        if not self._faults.bursts:
            return False
        for day in (now // DAY_MS - 1, now // DAY_MS):
            draw = random.Random(f"{self._faults.seed}:bursts:{day}")
            many = int(self._faults.bursts) + (draw.random() < self._faults.bursts % 1.0)
            begins = [(day + draw.random()) * DAY_MS for _ in range(many)]
            if any(begin <= now < begin + 1000 * self._faults.burst for begin in begins):
                return True
        return False

    def _disturb(self, event: FeedEvent, now: int) -> None:
        if event.at != self._drawn_for:
            self._drawn_for = event.at
            self._draw.seed(f"{self._faults.seed}:{event.at}")
        fault = self._draws.message(self._draw)
        if fault == "malformed":
            self._ready.append(Notice("malformed", "", f"a {type(event).__name__} that could not be read", now, now))
        elif fault == "delayed":
            self._count += 1
            due = now + round(1000 * self._draw.uniform(0.0, self._faults.delay))
            insort(self._late, (due, self._count, replace(event, known_at=due)))
        elif fault == "reordered" and self._held is None:
            self._held = event
            return
        elif fault != "dropped":
            self._ready += [event] * (2 if fault == "duplicated" else 1)
        if self._held is not None:
            self._ready.append(self._held)
            self._held = None
