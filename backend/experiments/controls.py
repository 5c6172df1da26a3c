"""Controls of an experiment: arms that must not win, or that say how much there is to win; and markets in which nobody
should.

| control | what it is for |
| --- | --- |
| `always_long`, `always_short` | the market's own direction |
| `matched_random` | the same extent and rhythm without any skill |
| `untrained`, `untrained_greedy` | nano after its warm start, before any training |
| `teacher` | the scripted team that nano's language comes from |
| `single_agent`, `without_ROLE` | a team without its sub-agents, or without one of them, trained alike |
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cryptosentinel.agents.registry import STANDARD
from simulator.arrays import FloatArray
from simulator.market.events import FundingEvent, NewsItem, in_order
from simulator.market.market import Market
from simulator.strategies import AlwaysShort, Hold, MatchedRandom

TRAINED_HERE, UNTRAINED = "train", "untrained"  # teams that an experiment makes
TEACHER = "teacher"  # the scripted team of `nano.teacher`


@dataclass(frozen=True)
class ControlArm:
    """Who trades, the settings that make it the control, and whether it answers without sampling. `left_out` are the
    roles that its team is without."""

    team: str
    set: tuple[str, ...] = ()
    greedy: bool = False
    left_out: tuple[str, ...] = ()


def _without(*left_out: str) -> ControlArm:
    kept = [f'"{role}"' for role in STANDARD if role not in left_out]
    return ControlArm(TRAINED_HERE, (f"team.roles=[{', '.join(kept)}]",), left_out=left_out)


CONTROLS: dict[str, ControlArm] = {
    "always_long": ControlArm(Hold.name),
    "always_short": ControlArm(AlwaysShort.name),
    MatchedRandom.name: ControlArm(MatchedRandom.name),
    "untrained": ControlArm(UNTRAINED),
    "untrained_greedy": ControlArm(UNTRAINED, greedy=True),
    "teacher": ControlArm(TEACHER),
    "single_agent": _without(*STANDARD),
    **{f"without_{role}": _without(role) for role in STANDARD},
}


def time_reversed(market: Market) -> Market:
    """The market backwards: each bar's open and close change places, and headlines and funding come in mirrored order.

    What a strategy earns in both directions of time is no forecast. The law of a generated market is not that of its
    reverse, so the truth is left out, and with it the oracle. Series and order books are left out too.
    """
    first, last = int(market.open_time[0]), int(market.open_time[-1]) + market.interval

    def backwards(values: FloatArray) -> FloatArray:
        return np.ascontiguousarray(values[::-1])

    news = in_order(
        NewsItem(time=first + last - item.known_at, known_at=first + last - item.time, symbol=item.symbol,
                 text=item.text)
        for item in market.news
    )  # fmt: skip
    return replace(
        market,
        open=backwards(market.close),
        high=backwards(market.high),
        low=backwards(market.low),
        close=backwards(market.open),
        volume=backwards(market.volume),
        half_spread=backwards(market.half_spread),
        funding={
            symbol: tuple(FundingEvent(first + last - event.time, event.rate) for event in reversed(events))
            for symbol, events in market.funding.items()
        },
        news=news,
        truth=None,
        partial=None,
        series={},
        books={},
        signs=None,
        source=f"{market.source}, backwards",
    )


def shuffled_news(market: Market, seed: int) -> Market:
    """The market with its headlines at each other's times: what they say has nothing to do with what happens."""
    order = np.random.default_rng(seed).permutation(len(market.news))
    news = in_order(
        replace(slot, symbol=market.news[taken].symbol, text=market.news[taken].text)
        for slot, taken in zip(market.news, order.tolist(), strict=True)
    )
    return replace(market, news=news, source=f"{market.source}, headlines shuffled")
