"""The feed that a configuration names, and the history before it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from backend.builders.market import Account
from backend.config.schema import Config
from simulator.backtest.run import Window
from simulator.live.feed import Feed
from simulator.live.recorded_feed import RecordedFeed
from simulator.market.growing import part_of
from simulator.market.market import Market


@dataclass(frozen=True)
class FeedStart:
    """A feed that is not opened yet, and the bars known before its first one."""

    feed: Feed
    history: Market


def build_feed(config: Config, market: Market, account: Account, window: Window) -> FeedStart:
    """The recorded bars of `market` from the close of the window's first bar to its last one.

    Raises `DataError` where there are none.
    """
    first = max(0, window.start + 1 - config.paper.history_bars)
    begin = int(market.open_time[window.start]) + market.interval
    speed = config.paper.speed or math.inf
    recorded = part_of(market, first, window.stop + 1, market.kinds)
    feed = RecordedFeed(recorded, account.venue, begin, speed)
    return FeedStart(feed, part_of(market, first, window.start + 1, feed.kinds))
