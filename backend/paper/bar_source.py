"""A session's bars, made of the events of a feed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from backend.paper.journal import Journal
from simulator.live.bar_assembly import BarAssembler, LiveBar
from simulator.live.events import Candle, FeedEvent, FeedHeartbeat, Funding, Notice
from simulator.live.feed import Feed
from simulator.market.timeframes import format_time

GRACE_SECONDS = 5.0  # how long after its close a bar waits for symbols that have not come
WAIT_SECONDS = 0.1  # of real time at a time, for the next event


class FeedBars:
    """Bars of the events of a feed. `grace` (ms) is how long a bar waits for what is missing; `last` is the open time
    of the last bar, None: there is no last one. What is not used is noted in the journal."""

    def __init__(self, feed: Feed, assembler: BarAssembler, journal: Journal, grace: int, last: int | None) -> None:
        self._feed, self._assembler, self._journal = feed, assembler, journal
        self._grace, self._last = grace, last
        self._held: FeedEvent | None = None
        self._refused = Counter[str]()
        self._opened_at = feed.clock.now()  # bars that closed earlier have the same grace from here on
        self.ended = False  # whether there is no further bar

    def now(self) -> int:
        """The time by the feed's clock, ms."""
        return self._feed.clock.now()

    def skip(self) -> None:
        """The next bar is known from the journal."""
        self._assembler.skip()

    def counters(self) -> Mapping[str, int | float]:
        """What went wrong with the data since the feed was opened, by name."""
        met = Counter({name: round(count) for name, count in self._feed.counters().items()})
        return met + self._refused

    def next_bar(self, asked: Callable[[], bool]) -> LiveBar | None:
        """The next bar once it is over; None where there is none, or `asked` reports that something is asked of the
        session."""
        while True:
            if self._last is not None and self._assembler.open_time > self._last:
                self.ended = True
            if self.ended or asked():
                return None
            event, self._held = self._held or self._feed.next(WAIT_SECONDS), None
            moment = self._feed.clock.now() if event is None else event.known_at
            deadline = max(self._assembler.close, self._opened_at) + self._grace
            if moment > deadline:
                self._held = event
                # A clock that jumps from event to event would have stood at the deadline, too.
                known_at = deadline if self._feed.clock.jumps else moment
                if self._assembler.missing():
                    if not self._ask_again(known_at - self._grace, asked):
                        continue
                    if not self._feed.clock.jumps:  # the answer may have taken minutes
                        known_at = max(known_at, self._feed.clock.now())
                return self._assembler.finish(known_at)
            if isinstance(event, Notice):
                self._journal.write("notice", moment, {"kind": event.kind, "detail": event.detail})
                if event.kind == "end":
                    self.ended = True
                    return None
            elif event is not None and not isinstance(event, FeedHeartbeat):
                self._take(event, moment)
            if self._assembler.is_whole(moment):
                return self._assembler.finish(moment)

    def _take(self, event: FeedEvent, moment: int, asked: bool = False) -> None:
        """Use an event, or note why not; of one that was `asked` for again that it is there already is not news."""
        refused = self._assembler.take(event)
        if refused is not None and (not asked or refused.reason == "implausible"):
            what = f"{refused.what} of {refused.symbol} at {format_time(refused.at)}"
            self._journal.write("notice", moment, {"kind": refused.reason, "detail": what})
            self._refused[refused.reason] += 1

    def _ask_again(self, until: int, asked: Callable[[], bool]) -> bool:
        """Ask the feed once more for the bars up to `until` (ms); False where something was asked meanwhile."""
        since, until = self._assembler.open_time, max(until, self._assembler.close)
        if self._feed.clock.jumps:
            events = self._feed.backfill(since, until)
        else:
            answer: Future[Sequence[Candle | Funding]] = Future()
            ask = partial(_answer, answer, partial(self._feed.backfill, since, until))
            threading.Thread(target=ask, name="backfill", daemon=True).start()
            while not answer.done():
                with suppress(TimeoutError):
                    answer.result(WAIT_SECONDS)
                if asked():
                    return False
            events = answer.result()
        for event in events:
            self._take(event, self._feed.clock.now(), asked=True)
        return True


def _answer(answer: Future[Sequence[Candle | Funding]], ask: Callable[[], Sequence[Candle | Funding]]) -> None:
    try:
        answer.set_result(ask())
    except BaseException as error:  # noqa: BLE001  # it is raised in the thread that waits
        answer.set_exception(error)
