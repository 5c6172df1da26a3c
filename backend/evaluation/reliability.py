"""How well an analyst's probabilities fit what came: of all times that it said 60 %, did it come in 60 of 100?

A forecast is judged as in training: "flat" is a move over the horizon within a share of the volatility that was known
when it was made. Outcomes of forecasts that overlap in time depend on one another, so intervals come from a bootstrap
of blocks of time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from backend.decisions.document import ConversationDocument, StoredDecision
from backend.statistics.bootstrap import Interval
from cryptosentinel.agents.market_analyst import FLAT_BAND, ROLE, Analysis
from cryptosentinel.agents.role import SubAgent
from cryptosentinel.tools.context import horizon_volatility
from simulator.arrays import FloatArray, IntArray
from simulator.market.market import Market

CLASSES = ("down", "flat", "up")
BINS = 10
FEWEST = 10  # forecasts below which nothing is said, and statements of a bin below which it is not drawn
_SAMPLES = 1_000
_HORIZON = re.compile(r"up, flat or down in (\d+) bars\?")


@dataclass(frozen=True)
class JudgedForecast:
    """One answer about one coin at the close `time` (ms): `stated` are the probabilities of CLASSES, `came` is the
    index of what came, `bars` the horizon."""

    time: int
    symbol: str
    stated: tuple[float, float, float]
    came: int
    bars: int


@dataclass(frozen=True)
class ReliabilityBin:
    """All statements of probabilities in one tenth: their mean, in how many of them it came so, with the interval, and
    how many they were."""

    stated: float
    came: Interval
    count: int


@dataclass(frozen=True)
class Reliability:
    """The fit of an analyst's forecasts.

    Attributes:
        brier: mean squared distance of the stated probabilities from what came, half of it, 0 is best.
        skill: how much less that is than for whoever always states how often each outcome came, as a share.
        gap: mean distance of what was stated and what came over the bins, weighted by their counts.
    """

    forecasts: int
    brier: float
    skill: Interval
    gap: float
    bins: tuple[ReliabilityBin, ...]


def judged_forecasts(decisions: Sequence[StoredDecision], market: Market, horizon: int) -> list[JudgedForecast]:
    """The first valid forecast about each coin in each decision whose horizon the market has. `horizon` (bars) is that
    of a forecast that does not say it."""
    judged: dict[tuple[int, str], JudgedForecast] = {}
    for time, bar, bars, asked, answer in answers_in(decisions, market, horizon, ROLE, _HORIZON):
        symbol = str(asked["symbol"])
        came = _came(market, symbol, bar, bars)
        if isinstance(answer, Analysis) and came is not None:
            judged.setdefault((time, symbol), JudgedForecast(time, symbol, answer.distribution(), came, bars))
    return list(judged.values())


def answers_in(
    decisions: Sequence[StoredDecision], market: Market, horizon: int, role: SubAgent, pattern: re.Pattern[str]
) -> Iterator[tuple[int, int, int, Mapping[str, Any], Any]]:
    """Time, bar, horizon in bars, question and answer of every valid answer of `role` about a coin of the market, in
    decisions at closes that it has. `pattern` finds the horizon in a question, else it is `horizon`."""
    bar_of = {int(time) + market.interval: bar for bar, time in enumerate(market.open_time)}
    for decision in decisions:
        bar = bar_of.get(decision.time)
        for conversation in decision.document.conversations if bar is not None else ():
            if conversation.role == role.key and conversation.answer is not None:
                bars = horizon_of(conversation, pattern, horizon)
                if conversation.asked.get("symbol") in market.symbols:
                    answer = role.typed(conversation.answer)
                    yield decision.time, bar or 0, bars, conversation.asked, answer


def reliability_of(judged: Sequence[JudgedForecast], interval: int, seed: int = 0) -> Reliability | None:
    """The fit of the forecasts, which were made on bars of `interval` ms; None for fewer than FEWEST."""
    if len(judged) < FEWEST:
        return None
    ordered = sorted(judged, key=lambda one: one.time)
    stated = np.array([one.stated for one in ordered])  # (n, 3)
    came = np.eye(len(CLASSES))[[one.came for one in ordered]]
    place = np.clip((stated * BINS).astype(int), 0, BINS - 1)
    length = 2 * max(one.bars for one in ordered) * interval
    drawn = block_draws([one.time for one in ordered], length, np.random.default_rng(seed))
    losses = 0.5 * ((stated - came) ** 2).sum(axis=1)
    skills = np.array([_skill(losses[rows], came[rows]) for rows in drawn])
    bins = []
    gap = 0.0
    for number in range(BINS):
        inside = place == number
        count = int(inside.sum())
        if not count:
            continue
        mean, share = float(stated[inside].mean()), float(came[inside].mean())
        gap += count * abs(mean - share) / stated.size
        if count >= FEWEST:
            hits, counts = (came * inside).sum(axis=1), inside.sum(axis=1)
            totals = np.array([counts[rows].sum() for rows in drawn])
            shares = np.array([hits[rows].sum() for rows in drawn])[totals > 0] / totals[totals > 0]
            bins.append(ReliabilityBin(mean, percentiles(share, shares), count))
    skill = percentiles(_skill(losses, came), skills[np.isfinite(skills)])
    return Reliability(len(ordered), float(losses.mean()), skill, gap, tuple(bins))


def percentiles(value: float, drawn: FloatArray) -> Interval:
    """The value with the middle 95 % of what resamples gave."""
    low, high = (float(end) for end in np.percentile(drawn, [2.5, 97.5])) if len(drawn) else (math.nan, math.nan)
    return Interval(value, low, high)


def block_draws(times: Sequence[int], length: int, rng: np.random.Generator) -> list[IntArray]:
    """Rows of 1,000 resamples, drawn as blocks of time in which all coins stay together. `length` is that of a block in
    the unit of `times`: twice the longest horizon where outcomes overlap."""
    blocks: dict[int, list[int]] = {}
    for row, time in enumerate(times):
        blocks.setdefault((time - times[0]) // length, []).append(row)
    rows = [np.array(block, np.int64) for block in blocks.values()]
    return [np.concatenate([rows[place] for place in rng.integers(0, len(rows), len(rows))]) for _ in range(_SAMPLES)]


def _skill(losses: FloatArray, came: FloatArray) -> float:
    """One less the mean loss over that of always stating the shares of this very sample; NaN where only one outcome
    came, which needs no forecast."""
    shares = came.mean(axis=0)
    reference = 0.5 * float(((came - shares) ** 2).sum(axis=1).mean())
    return 1.0 - float(losses.mean()) / reference if reference > 0.0 else math.nan


def horizon_of(conversation: ConversationDocument, pattern: re.Pattern[str], horizon: int) -> int:
    """Over how many bars it was asked, by the first group of `pattern` in the first words of the user; `horizon` where
    they do not say it. A trained team keeps the horizon of its training."""
    for message in conversation.messages:
        if message.role == "user":
            asked = pattern.search(message.content)
            return int(asked[1]) if asked else horizon
    return horizon


def move_of(market: Market, symbol: str, bar: int, bars: int) -> float | None:
    """The price's move over `bars` bars after the close of `bar`, as a share; None where a price is missing."""
    if bar + bars >= len(market):
        return None
    now, later = market.view(bar).last_close(symbol), float(market.close[bar + bars, market.column(symbol)])
    return later / now - 1.0 if now > 0.0 and math.isfinite(later) else None


def _came(market: Market, symbol: str, bar: int, bars: int) -> int | None:
    """The index of what came `bars` bars after the close of `bar`; None where a price or the volatility is missing."""
    move, volatility = move_of(market, symbol, bar, bars), horizon_volatility(market.view(bar), symbol, bars)
    if move is None or volatility is None:
        return None
    band = FLAT_BAND * volatility
    return 0 if move < -band else 2 if move > band else 1
