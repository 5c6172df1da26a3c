"""Headlines of the synthetic market: short phrases of a tone, which may agree with the hidden regime."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from simulator.arrays import FloatArray
from simulator.market.events import NewsItem

MINUTE = 60_000
DELAY_MINUTES = (1, 30)  # from the event to when it can be read

POSITIVE = (
    "large holders keep buying",
    "fund inflows hit a new record",
    "network upgrade goes live without trouble",
    "major exchange adds new pairs",
    "bank opens custody for clients",
    "active users rise to a yearly high",
    "regulator clears a spot product",
    "developers beat the roadmap",
)
NEGATIVE = (
    "large holders keep selling",
    "fund outflows hit a new record",
    "network outage halts transfers",
    "major exchange drops some pairs",
    "bank closes accounts of clients",
    "active users fall to a yearly low",
    "regulator sues a large issuer",
    "developers delay the roadmap",
)
NEUTRAL = (
    "conference opens with many speakers",
    "community votes on a new logo",
    "wallet gets a new design",
    "report explains how fees work",
    "founder gives a long interview",
    "survey asks users about habits",
    "team publishes its monthly notes",
    "museum shows early mining machines",
)


def write_news(
    symbols: tuple[str, ...],
    open_time: npt.NDArray[np.int64],
    interval: int,
    signal: npt.NDArray[np.int8],
    *,
    arrival: float,
    neutral: float,
    accuracy: float | FloatArray,
    stream: np.random.Generator,
) -> tuple[NewsItem, ...]:
    """Headlines known by the end of the last bar, sorted by `known_at`: at most one a coin and bar, with probability
    `arrival`.

    `signal` is `(T, S)`, the regime in force in each bar: a headline is without tone with probability `neutral`; else
    its tone agrees with the sign of `signal` with probability `accuracy` (one, or one for each bar and coin), and is a
    coin's toss where that is 0. Which headlines come, and when, does not depend on `signal`.
    """
    arrives, moment, tone, agrees, choice, delay = np.moveaxis(stream.random((*signal.shape, 6)), -1, 0)
    items: list[tuple[int, int, NewsItem]] = []
    shortest, longest = DELAY_MINUTES
    end = int(open_time[-1]) + interval
    right = np.broadcast_to(np.asarray(accuracy, np.float64), signal.shape)
    for bar, column in np.argwhere(arrives < arrival):
        sign = int(signal[bar, column])
        if tone[bar, column] < neutral:
            phrases = NEUTRAL
        elif sign == 0:
            phrases = POSITIVE if agrees[bar, column] < 0.5 else NEGATIVE
        else:
            phrases = POSITIVE if (agrees[bar, column] < right[bar, column]) == (sign > 0) else NEGATIVE
        time = int(open_time[bar]) + int(moment[bar, column] * interval) // MINUTE * MINUTE
        known_at = time + (shortest + int(delay[bar, column] * (longest - shortest + 1))) * MINUTE
        text = phrases[int(choice[bar, column] * len(phrases))]
        if known_at > end:
            continue
        items.append((known_at, int(column), NewsItem(time, known_at, symbols[column], text)))
    return tuple(item for _, _, item in sorted(items, key=lambda entry: entry[:2]))
