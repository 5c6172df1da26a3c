"""A shadow: a second team that decides on the bars of a session, with an account of its own at the simulated broker.

It is a session of its own, with its own journal, in a thread of its own: a shadow that thinks for long, hangs or fails
holds up nothing. It gets each bar once the trading session has written it, so it never knows more than that; bars that
it missed because the program was killed come from that journal. Where the clock jumps, as on recorded data that are
played as fast as they can be, nobody is late: there the trading session waits until the shadow has decided.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from backend.paper.bar_source import WAIT_SECONDS, SourceEnd
from backend.store.errors import StoreError
from simulator.live.bar_assembly import LiveBar
from simulator.live.clock import Clock


class SharedBars:
    """The bars of a trading session for its shadow. `past` are those that it has and the shadow has not; `clock` gives
    the trading session's clock."""

    def __init__(self, clock: Callable[[], Clock], past: Iterable[LiveBar] = ()) -> None:
        self._clock = clock
        self._waiting = deque(past)
        self._changed = threading.Condition()
        self._idle = False  # whether the shadow waits for a bar
        self._end: SourceEnd = ""

    @property
    def ended(self) -> SourceEnd:
        """See `BarSource`; bars that wait come first, unless the session is paused."""
        with self._changed:
            return "" if self._end == "over" and self._waiting else self._end

    def now(self) -> int:
        """See `BarSource`."""
        return self._clock().now()

    def skip(self) -> None:
        """See `BarSource`: the past begins after the shadow's journal."""

    def counters(self) -> Mapping[str, int | float]:
        """See `BarSource`: the trading session counts."""
        return {}

    def next_bar(self, asked: Callable[[], bool]) -> LiveBar | None:
        """See `BarSource`."""
        with self._changed:
            while not asked() and self._end != "paused":
                if self._waiting:
                    return self._waiting.popleft()
                if self._end:
                    return None
                self._idle = True
                self._changed.notify_all()
                self._changed.wait(WAIT_SECONDS)
            return None

    def put(self, bar: LiveBar) -> None:
        """Hand on `bar`."""
        with self._changed:
            self._waiting.append(bar)
            self._idle = False
            self._changed.notify_all()

    def settle(self, working: Callable[[], bool]) -> None:
        """Where the clock jumps, wait until all that was handed on is decided on, or the shadow is not `working` any
        more."""
        with self._changed:
            while self._clock().jumps and not (self._idle and not self._waiting) and working():
                self._changed.wait(WAIT_SECONDS)

    def end(self, how: SourceEnd) -> None:
        """No further bar comes."""
        with self._changed:
            self._end = how
            self._changed.notify_all()


class ShadowRun:
    """Runs `play`, the session of a shadow, in a thread, on the bars that it is given. `failed` gets what ended it
    before its time; the trading session goes on."""

    def __init__(self, bars: SharedBars, play: Callable[[], None], failed: Callable[[BaseException], None]) -> None:
        self._bars, self._play, self._failed = bars, play, failed
        self._thread = threading.Thread(target=self._work, name="shadow", daemon=True)
        self._left = False

    def start(self) -> None:
        """Begin, with what is due before the next bar."""
        self._thread.start()
        self._bars.settle(self._thread.is_alive)

    def take(self, bar: LiveBar) -> None:
        """The trading session has written `bar`."""
        if self._left:
            return
        self._bars.put(bar)
        self._bars.settle(self._thread.is_alive)

    def leave(self) -> None:
        """It is the shadow of this session no longer: it ends after the bars that it has."""
        self._left = True
        self._bars.end("over")

    def close(self, how: SourceEnd, patience: float) -> bool:
        """The trading session has ended. Waits at most `patience` seconds for the shadow; whether that ended, too."""
        if not self._left:
            self._bars.end(how)
        self._thread.join(patience)
        return not self._thread.is_alive()

    def _work(self) -> None:
        try:
            self._play()
        except BaseException as error:  # noqa: BLE001  # the trading session goes on, and the shadow's record has it
            with suppress(StoreError):  # the store may be why; a run without an end counts as abandoned
                self._failed(error)
