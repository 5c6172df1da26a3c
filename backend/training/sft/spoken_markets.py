"""The markets that a warm start uses.

Recorded bars often begin years before their headlines and their funding. A model that never saw a headline in its warm
start loses its format where the first one stands, and that is where it is validated. So it also learns on the same bars
with made-up headlines and funding, and with none of either. Nothing of a later part of the history is used.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cryptosentinel.conversation.headlines import AMOUNT, DATE, ENTITY, NUMBER, ordinary_words, words_beside_names
from cryptosentinel.team import derive_seed
from simulator.arrays import IntArray
from simulator.market.events import FundingEvent, NewsItem
from simulator.market.market import Market
from simulator.market.timeframes import DAY_MS, HOUR_MS
from simulator.synthetic.generator import NEGATIVE, POSITIVE

_SETTLEMENT = 8 * HOUR_MS
_LEVEL_LASTS = 9  # settlements: what `get_funding` is the mean of
_LEVELS_BPS = (0.0, 0.4, 1.0, 2.5, 8.0, 30.0)  # from nothing to the extremes of 2021
_MOST_WORDS, _LEAST_WORDS = 14, 4
_NEWS_DAYS = 1.2  # between two headlines of a coin, on average
_USUAL = 0.7  # of the words of a headline: those that are known to stand beside names
_TONED = 0.5  # of the headlines: those that hold a phrase which has a tone


def spoken_markets(market: Market, seed: int) -> list[Market]:
    """`market` alone where it is generated: all its parts are alike. For recorded bars also the same with headlines and
    funding made up for all of them, and without any."""
    if market.truth is not None:
        return [market]
    rng = np.random.default_rng(derive_seed(seed, "spoken markets"))
    return [
        market,
        replace(market, funding=_made_funding(market, rng), news=_made_news(market, rng)),
        replace(market, funding={}, news=()),
    ]


def _made_funding(market: Market, rng: np.random.Generator) -> dict[str, tuple[FundingEvent, ...]]:
    """Settlements every eight hours, of levels that change every three days."""
    times: IntArray = np.arange(market.open_time[0], market.open_time[-1] + market.interval, _SETTLEMENT)
    periods = -(-len(times) // _LEVEL_LASTS)
    made = {}
    for symbol in market.symbols:
        level = rng.choice(_LEVELS_BPS, size=periods) * rng.choice((-1.0, 1.0), size=periods)
        rates = 1e-4 * np.repeat(level, _LEVEL_LASTS)[: len(times)] * rng.uniform(0.6, 1.4, size=len(times))
        made[symbol] = tuple(FundingEvent(int(time), float(rate)) for time, rate in zip(times, rates, strict=True))
    return made


def _made_news(market: Market, rng: np.random.Generator) -> tuple[NewsItem, ...]:
    """Headlines of ordinary words and of what stands in the place of names, in no order that means anything. As in
    real ones many are words that stand beside names: of others a whole run is hidden with a name."""
    words = np.asarray([*ordinary_words(), *(ENTITY, NUMBER, DATE, AMOUNT) * 40], dtype=object)
    beside = np.asarray(words_beside_names(), dtype=object)
    toned = np.asarray([*POSITIVE, *NEGATIVE], dtype=object)
    first, last = int(market.open_time[0]), int(market.open_time[-1]) + market.interval
    count = int((last - first) / DAY_MS / _NEWS_DAYS * len(market.symbols))
    items = []
    for time in np.sort(rng.integers(first, last, size=count)):
        length = rng.integers(_LEAST_WORDS, _MOST_WORDS + 1)
        usual = rng.random(length) < _USUAL
        chosen = [str(word) for word in np.where(usual, rng.choice(beside, length), rng.choice(words, length))]
        if rng.random() < _TONED:
            chosen.insert(int(rng.integers(len(chosen) + 1)), str(rng.choice(toned)))
        text = " ".join(chosen)
        text = text.capitalize() if rng.random() < 0.5 else text.title() if rng.random() < 0.5 else text
        items.append(NewsItem(int(time), int(time), str(rng.choice(market.symbols)), text))
    return tuple(items)
