"""A recording with trades inside its bars: they are all of each bar, in order of time; all else is the recording's."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import DataError
from simulator.exchange.venue import Venue
from simulator.live.bar_assembly import BarAssembler
from simulator.live.events import BookLevels, BookTop, FeedEvent, FeedHeartbeat, MarketTrade
from simulator.live.recorded_feed import RecordedFeed
from tests.live_scenes import MINUTE, START, minutes
from tests.mock_binance.traded_feed import TradedFeed

BARS, SYMBOLS = 12, ("BTCUSDT", "ETHUSDT")


def heard(feed: RecordedFeed, since: int) -> list[FeedEvent]:
    feed.open(since)
    events = []
    while (event := feed.next(1.0)) is not None:
        events.append(event)
    return events


@settings(max_examples=20)
@given(trades=st.integers(4, 25), since=st.integers(0, BARS - 1), absent=st.sets(st.integers(1, BARS - 2), max_size=3))
def test_the_trades_are_all_of_each_bar_and_the_recording_is_as_it_was(
    trades: int, since: int, absent: set[int]
) -> None:
    market, begin = minutes(BARS, SYMBOLS, sorted(absent)), START + since * MINUTE
    feed = TradedFeed(market, Venue(), begin, trades=trades)
    events = heard(feed, begin)
    assert [event.known_at for event in events] == sorted(event.known_at for event in events)
    recorded = RecordedFeed(market, Venue(), begin)
    inside = MarketTrade | BookTop | BookLevels
    assert [one for one in events if not isinstance(one, inside)] == [
        one for one in heard(recorded, begin) if not isinstance(one, BookTop)
    ]
    assert feed.backfill(START, feed.clock.now()) == recorded.backfill(START, recorded.clock.now())
    assembler = BarAssembler(dict(feed.kinds), MINUTE, begin, 1e-4, "1s")
    bar = since
    for event in events:
        assembler.take(event)
        if not isinstance(event, FeedHeartbeat):  # which a bar ends with
            continue
        made, there = assembler.finish(event.at), set() if bar in absent else set(SYMBOLS)
        assert made.inside.keys() == made.depth.keys() == there
        assert all(math.isclose(half, 2e-4, rel_tol=1e-6) for half in made.half_spread.values())
        for symbol in there:
            assert sum(one[5] for one in made.inside[symbol]) == pytest.approx(made.candles[symbol][4])
        bar += 1
    assert bar == BARS
    assert assembler.lost == 0


def test_trades_that_would_come_before_the_bar_before_is_over_are_refused() -> None:
    with pytest.raises(DataError, match="30 trades in a bar of 1m are too many"):
        TradedFeed(minutes(5), Venue(), START, trades=30)
