"""A feed behind a bad network: what is said stays in order, what is lost can be asked for, and all is counted."""

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from simulator.live.clock import Clock, SimulatedClock
from simulator.live.events import Candle, FeedEvent, FeedHeartbeat, Funding, Notice
from simulator.market.instruments import MarketKind
from tests.live_scenes import MINUTE, START
from tests.mock_binance.faults import Faults
from tests.mock_binance.faulty_feed import FaultyFeed

BARS = 120


class _Listed:
    """A feed of listed candles of one symbol, with a heartbeat between any two."""

    name, timeframe = "listed", "1m"
    symbols: tuple[str, ...] = ("BTC/USDT",)
    kinds: Mapping[str, MarketKind] = {"BTC/USDT": "spot"}

    def __init__(self) -> None:
        self.clock: Clock = SimulatedClock(START)
        times = [START + k * MINUTE for k in range(BARS)]
        self.candles = [
            Candle("BTC/USDT", time, 1.0, 2.0, 0.5, 1.5, 3.0, at=time + MINUTE, known_at=time + MINUTE)
            for time in times
        ]
        self.left: list[FeedEvent] = []

    def open(self, since: int) -> None:
        for one in self.candles:
            self.left += [FeedHeartbeat(one.at - MINUTE // 2, one.at - MINUTE // 2), one]
        end = self.candles[-1].at
        self.left.append(Notice("end", "", "no more", end, end))

    def next(self, timeout_s: float) -> FeedEvent | None:
        if not self.left:
            return None
        event = self.left.pop(0)
        self.clock.wait_until(event.known_at, 0.0)
        return event

    def backfill(self, since: int, until: int) -> Sequence[Candle | Funding]:
        return [one for one in self.candles if since < one.at <= min(until, self.clock.now())]

    def counters(self) -> dict[str, int | float]:
        return {}

    def close(self) -> None:
        self.left.clear()


def heard(faults: Faults) -> tuple[FaultyFeed, list[FeedEvent]]:
    feed, events = FaultyFeed(_Listed(), faults), list[FeedEvent]()
    feed.open(START)
    while (event := feed.next(1.0)) is not None:
        events.append(event)
    return feed, events


share = st.floats(0.0, 0.2)


@given(
    st.builds(
        Faults,
        dropped=share,
        duplicated=share,
        delayed=share,
        reordered=share,
        malformed=share,
        delay=st.floats(0, 300),
        disconnects=st.floats(0, 20),
        seed=st.integers(0, 99),
    )
)
def test_time_never_falls_and_every_candle_came_or_was_lost_and_counted(faults: Faults) -> None:
    feed, events = heard(faults)
    known = [event.known_at for event in events]
    assert known == sorted(known)
    assert isinstance(events[-1], Notice) and events[-1].kind == "end"
    came = [event.open_time for event in events if isinstance(event, Candle)]
    lost = feed.injected["dropped"] + feed.injected["malformed"] + feed.injected["lost"]
    assert len(set(came)) >= BARS - lost
    assert {one.open_time for one in feed.backfill(0, START + BARS * MINUTE) if isinstance(one, Candle)} >= set(came)
    breaks = [event for event in events if isinstance(event, Notice) and event.kind == "disconnected"]
    assert len(breaks) == feed.injected["disconnects"]


def test_without_faults_nothing_changes_and_a_seed_repeats_itself() -> None:
    plain = _Listed()
    plain.open(START)
    assert heard(Faults())[1] == plain.left
    bad = Faults(dropped=0.1, duplicated=0.1, delayed=0.1, reordered=0.1, disconnects=5)
    assert heard(bad)[1] == heard(bad)[1] != plain.left
