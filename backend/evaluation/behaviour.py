"""What a team did, beside what it earned: whether the losses that RiskAnalyst states are passed as often as they
should be, what execution cost against the price at the decision, and whom the manager asks.

Losses are judged as in training: those of the proposed side over the horizon, on the bars that came.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from backend.decisions.backtest_document import BacktestDocument
from backend.decisions.document import StoredDecision
from backend.evaluation.reliability import FEWEST, answers_in, block_draws, move_of, percentiles
from backend.statistics.bootstrap import Interval
from cryptosentinel.agents.registry import MANAGER
from cryptosentinel.agents.risk_analyst import ROLE, Verdict
from simulator.arrays import FloatArray
from simulator.market.market import Market

STATED_LEVEL = 0.95  # of the loss that RiskAnalyst states
_HORIZON = re.compile(r"(\d+) bars\. Verdict\?")


@dataclass(frozen=True)
class JudgedLoss:
    """One verdict about one position at the close `time` (ms). `stated` is the loss that it gave as its 95 % quantile,
    `came` the loss over the next `bars` bars, both as shares of the position's notional; a gain is negative."""

    time: int
    symbol: str
    stated: float
    came: float
    bars: int


@dataclass(frozen=True)
class LossCoverage:
    """How often stated losses were passed.

    Attributes:
        verdicts: how many can be judged.
        passed: share of them whose loss was above the stated one, with its 95 % interval; 0.05 is right.
        skill: how much less their pinball loss is than for always stating the 95 % quantile of these very losses, as a
            share, with its interval; at most 1.
    """

    verdicts: int
    passed: Interval
    skill: Interval


@dataclass(frozen=True)
class Shortfall:
    """What execution cost: the price of the fills against the last close before the decision (the arrival price), in
    basis points of the traded value (Perold 1988, of the part that was executed).

    Attributes:
        fills: how many; `traded`: their value at the arrival prices, in money.
        total: all of it with fees; above 0 it cost something. The interval is over decisions.
        spread, fees: the parts of it that the exchange recorded as half spread and impact, and as fees.
        timing: the rest, the move of the price until the fill.
    """

    fills: int
    traded: float
    total: Interval
    spread: float
    fees: float
    timing: float


def judged_losses(decisions: Sequence[StoredDecision], market: Market, horizon: int) -> list[JudgedLoss]:
    """The first valid verdict about each coin and side in each decision whose horizon the market has. `horizon` (bars)
    is that of a question that does not say it. A proposal to be flat is judged as one to be long, as in training."""
    judged: dict[tuple[int, str, str], JudgedLoss] = {}
    for time, bar, bars, asked, answer in answers_in(decisions, market, horizon, ROLE, _HORIZON):
        symbol, side = str(asked["symbol"]), str(asked.get("side", ""))
        move = move_of(market, symbol, bar, bars)
        if isinstance(answer, Verdict) and move is not None:
            loss = move if side == "short" else -move
            judged.setdefault((time, symbol, side), JudgedLoss(time, symbol, answer.loss / 100.0, loss, bars))
    return list(judged.values())


def loss_coverage(judged: Sequence[JudgedLoss], interval: int, seed: int = 0) -> LossCoverage | None:
    """How often stated losses were passed, on bars of `interval` ms; None for fewer than FEWEST verdicts. Losses that
    overlap in time depend on one another: intervals come from a bootstrap of blocks of time."""
    if len(judged) < FEWEST:
        return None
    ordered = sorted(judged, key=lambda loss: loss.time)
    stated, came = np.array([loss.stated for loss in ordered]), np.array([loss.came for loss in ordered])
    passed = (came > stated).astype(float)
    pinball = _pinball(stated, came)
    times = [loss.time for loss in ordered]
    length = 2 * max(loss.bars for loss in ordered) * interval
    drawn = block_draws(times, length, np.random.default_rng(seed))
    skills = np.array([_skill(pinball[rows], came[rows]) for rows in drawn])
    return LossCoverage(
        len(ordered),
        percentiles(float(passed.mean()), np.array([passed[rows].mean() for rows in drawn])),
        percentiles(_skill(pinball, came), skills[np.isfinite(skills)]),
    )


def shortfall_of(
    decisions: Sequence[StoredDecision], result: BacktestDocument, market: Market, seed: int = 0
) -> Shortfall | None:
    """What the execution of a team's orders cost; None where no fill has a decision and a price before it.

    Exits that were no order of a decision are left out: stops and targets, which have a price of their own, and what
    the venue forced. A fill belongs to the last decision before it with an order for its coin.
    """
    bar_of = {time: result.start + row for row, time in enumerate(result.times)}
    ordered_at: dict[str, list[int]] = {}
    for decision in sorted(decisions, key=lambda decision: decision.time):
        bar = bar_of.get(decision.time)
        for symbol in {order.symbol for order in decision.document.orders} if bar is not None else ():
            ordered_at.setdefault(symbol, []).append(bar or 0)
    traded, costs, spreads, fees, bars = [], [], [], [], []
    for fill in result.fills:
        place = bisect_left(ordered_at.get(fill.symbol, []), fill.bar) - 1
        if fill.reason != "order" or place < 0:
            continue
        decided = ordered_at[fill.symbol][place]
        arrival = _close_at(market, fill.symbol, result.times[decided - result.start])
        if not math.isfinite(arrival):
            continue
        traded.append(abs(fill.quantity) * arrival)
        costs.append(fill.quantity * (fill.price - arrival) + fill.fee)
        spreads.append(fill.spread_cost + fill.impact_cost)
        fees.append(fill.fee)
        bars.append(decided)
    value = math.fsum(traded)
    if not value:
        return None
    values, paid = np.array(traded), np.array(costs)
    drawn = block_draws(bars, 1, np.random.default_rng(seed))
    resampled = np.array([1e4 * paid[rows].sum() / values[rows].sum() for rows in drawn])
    total, spread, fee = (1e4 * math.fsum(part) / value for part in (costs, spreads, fees))
    return Shortfall(len(traded), value, percentiles(total, resampled), spread, fee, total - spread - fee)


def calls_of(decisions: Sequence[StoredDecision]) -> dict[str, float]:
    """How often each sub-agent that was asked at all was asked in a decision, by its key, on average."""
    if not decisions:
        return {}
    asked = [
        conversation.role
        for decision in decisions
        for conversation in decision.document.conversations
        if conversation.role != MANAGER.key
    ]
    return {role: asked.count(role) / len(decisions) for role in sorted(set(asked), key=asked.index)}


def _pinball(stated: FloatArray | float, came: FloatArray) -> FloatArray:
    """The loss of a stated quantile (Koenker and Bassett 1978), of each of `came`."""
    excess = came - stated
    losses: FloatArray = np.maximum(STATED_LEVEL * excess, (STATED_LEVEL - 1.0) * excess)
    return losses


def _skill(pinball: FloatArray, came: FloatArray) -> float:
    """One less the mean loss over that of always stating the quantile of this very sample; NaN where the losses are all
    equal, which needs no forecast."""
    quantile = float(np.quantile(came, STATED_LEVEL, method="inverted_cdf"))
    reference = float(_pinball(quantile, came).mean())
    return 1.0 - float(pinball.mean()) / reference if reference > 0.0 else math.nan


def _close_at(market: Market, symbol: str, time: int) -> float:
    """The last close of a coin at the moment `time` (ms); NaN where the market has none."""
    bar = (time - int(market.open_time[0])) // market.interval - 1
    if symbol not in market.symbols or not 0 <= bar < len(market):
        return math.nan
    return market.view(bar).last_close(symbol)
