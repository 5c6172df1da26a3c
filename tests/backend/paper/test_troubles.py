"""Troubles of the machine that a session runs on: a full disk, a network that hangs, a session in the background."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from backend.builders.market import limits_of
from backend.paper.feeds import FeedBars
from backend.paper.journal import Journal, entries_of
from backend.paper.monitor import METRICS, Monitor
from backend.paper.parity import check_parity
from backend.paper.switch import Switch, set_kill
from backend.store.errors import StoreError
from backend.store.records import JournalRecord, Record
from backend.store.store import Store
from simulator.live.bar_assembly import BarAssembler
from simulator.live.events import Candle, FeedEvent, Funding
from simulator.live.feed import Clock, SimulatedClock
from simulator.market.instruments import MarketKind
from simulator.market.timeframes import MINUTE_MS
from tests.backend.paper import paper_scenes as scene


@pytest.mark.parametrize("full_at", [9, 10])
def test_a_disk_that_fills_stops_the_session_and_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full_at: int
) -> None:
    """At a bar, at a decision: the command ends with the store's sentence, and with room again it goes on with
    the books of the undisturbed session."""
    with Store.open("mem://") as store, Store.open("mem://") as other:
        scene.begin(other, tmp_path / "other")
        written, write = [0], Store.put

        def full(self: Store, *records: Record) -> None:
            written[0] += isinstance(records[0], JournalRecord)
            if written[0] > full_at:
                raise StoreError("the store cannot be written: is the disk full? Free some space")
            write(self, *records)

        monkeypatch.setattr(Store, "put", full)
        with pytest.raises(StoreError, match="is the disk full"):
            scene.begin(store, tmp_path)
        monkeypatch.undo()
        assert len(entries_of(store, scene.RUN)) == full_at, "nothing took effect that is not written"
        assert 'what="session_dead"} 1' in (tmp_path / METRICS).read_text()
        assert scene.go_on(store, tmp_path).why == "finished"
        assert scene.books(entries_of(store, scene.RUN)) == scene.books(entries_of(other, scene.RUN))
        limits = limits_of(scene.settings().guard)
        found = check_parity(entries_of(store, scene.RUN), scene.named_team(), scene.ACCOUNT, limits, scene.SEED)
        assert found.differences == ()


class HangingFeed:
    """A live feed that says nothing, and whose requests hang."""

    def __init__(self) -> None:
        self.name, self.timeframe = "hanging", "1m"
        self.symbols: tuple[str, ...] = ("BTC/USDT",)
        self.kinds: Mapping[str, MarketKind] = {"BTC/USDT": "spot"}
        self.clock: Clock = SimulatedClock(100 * MINUTE_MS, 600.0)
        self.asked, self.over = threading.Event(), threading.Event()

    def next(self, timeout_s: float) -> FeedEvent | None:
        """Nothing."""
        time.sleep(min(timeout_s, 0.01))
        return None

    def backfill(self, since: int, until: int) -> Sequence[Candle | Funding]:
        """Hangs."""
        self.asked.set()
        self.over.wait(30.0)
        return ()

    def open(self, since: int) -> None:
        """Nothing."""

    def counters(self) -> Mapping[str, int | float]:
        """Nothing."""
        return {}

    def close(self) -> None:
        """Nothing."""


def test_the_kill_switch_acts_while_a_backfill_hangs(tmp_path: Path) -> None:
    feed = HangingFeed()
    assembler = BarAssembler({"BTC/USDT": "spot"}, MINUTE_MS, 100 * MINUTE_MS, 1e-4)
    switch = Switch(tmp_path)
    pulled = [0.0]

    def pull() -> None:
        feed.asked.wait(10.0)
        pulled[0] = time.monotonic()
        set_kill(tmp_path, "flatten")

    threading.Thread(target=pull, daemon=True).start()
    with Store.open("mem://") as store:
        bars = FeedBars(feed, assembler, Journal(store, "paper-1"), 1000, None)
        assert bars.next_bar(lambda: switch.order() is not None) is None
        assert time.monotonic() - pulled[0] < 5.0, "it was not waited for"
    assert not feed.over.is_set() and not bars.ended, "the session is asked, not over"
    feed.over.set()


class WrongFeed(HangingFeed):
    """Four minutes of which the second comes at a million times the price, from the stream and when asked for again."""

    def __init__(self) -> None:
        super().__init__()
        self._left = [self._candle(100 + number, price) for number, price in enumerate((1.0, 1e6, 1.01, 1.02))]

    @staticmethod
    def _candle(number: int, price: float) -> Candle:
        opens, closes = number * MINUTE_MS, (number + 1) * MINUTE_MS
        return Candle("BTC/USDT", opens, price, price, price, price, 5.0, closes, closes)

    def next(self, timeout_s: float) -> FeedEvent | None:
        """The candles one after the other."""
        return self._left.pop(0) if self._left else None

    def backfill(self, since: int, until: int) -> Sequence[Candle | Funding]:
        """The wrong candle again."""
        return [self._candle(101, 1e6)] if since == 101 * MINUTE_MS else []


def test_a_candle_at_a_million_times_its_price_is_not_traded_on(tmp_path: Path) -> None:
    marks = {"BTC/USDT": 1.0}
    assembler = BarAssembler({"BTC/USDT": "spot"}, MINUTE_MS, 100 * MINUTE_MS, 1e-4, closes=lambda: marks)
    monitor = Monitor("paper-1", tmp_path)
    with Store.open("mem://") as store:
        journal = Journal(store, "paper-1")
        journal.tell(monitor.entry)
        bars = FeedBars(WrongFeed(), assembler, journal, 1000, 103 * MINUTE_MS)
        made = [bar for _ in range(4) if (bar := bars.next_bar(lambda: False)) is not None]
    monitor.close()
    assert [bar.candles["BTC/USDT"][3] if bar.candles else None for bar in made] == [1.0, None, 1.01, 1.02]
    assert bars.counters()["implausible"] == 1
    assert 'alerts_total{session="paper-1",what="implausible_data"} 1' in (tmp_path / METRICS).read_text()


class LateFeed(HangingFeed):
    """Its clock stands long after the bars that the session lacks; what it is asked for is there."""

    def backfill(self, since: int, until: int) -> Sequence[Candle | Funding]:
        """The candle of the first bar."""
        self.asked.set()
        opens = 100 * MINUTE_MS
        return [Candle("BTC/USDT", opens, 1.0, 1.0, 1.0, 1.0, 5.0, opens + MINUTE_MS, self.clock.now())]


def test_an_old_bar_that_lacks_a_candle_is_asked_for_after_a_resume_too() -> None:
    feed = LateFeed()
    feed.clock = SimulatedClock(200 * MINUTE_MS, 1.0)  # the first look is before the grace is over
    assembler = BarAssembler({"BTC/USDT": "spot"}, MINUTE_MS, 100 * MINUTE_MS, 1e-4)
    with Store.open("mem://") as store:
        bar = FeedBars(feed, assembler, Journal(store, "paper-1"), 200, None).next_bar(lambda: False)
    assert feed.asked.is_set()
    assert bar is not None and bar.candles == {"BTC/USDT": (1.0, 1.0, 1.0, 1.0, 5.0)}


class SlowFeed(LateFeed):
    """What it is asked for takes a minute and a half to come."""

    def backfill(self, since: int, until: int) -> Sequence[Candle | Funding]:
        """The candle of the first bar, later."""
        assert isinstance(self.clock, SimulatedClock)
        self.clock.passed(90_000)
        return super().backfill(since, until)


def test_a_bar_that_was_waited_for_is_known_when_the_answer_came() -> None:
    """Else a decision at its close would count as taken at once, and its orders would fill at prices of then."""
    feed = SlowFeed()
    feed.clock = SimulatedClock(101 * MINUTE_MS + 1500, 1.0)
    assembler = BarAssembler({"BTC/USDT": "spot"}, MINUTE_MS, 100 * MINUTE_MS, 1e-4)
    with Store.open("mem://") as store:
        bar = FeedBars(feed, assembler, Journal(store, "paper-1"), 200, None).next_bar(lambda: False)
    assert bar is not None and bar.candles and bar.known_at >= 101 * MINUTE_MS + 1500 + 90_000
