"""The oracle: the best policy net of costs for one who sees the hidden state but not the noise.

It maximizes the long-run mean of expected log growth a decision,

    growth(r, e) - |e - e0| (fee + m half_spread),   growth = sum over the bars of  e (drift - funding) - e^2 vol^2 / 2,

by relative value iteration (Puterman 1994, section 8.5) over (regime r, bars left of a spread spike, position). The
values use the mean volatility and the mean spread of a spike; the decision itself uses the present ones, and in a
market of private knowledge also the present spread and the jumps that the crowding lets expect. It is the best response
to the model, up to these averages. It is not an upper bound on realized returns: in a single window noise can favor
another policy.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from simulator.arrays import FloatArray
from simulator.errors import DataError
from simulator.market.market import Market
from simulator.market.timeframes import interval_of
from simulator.synthetic.dynamics import FUNDING_INTERVAL, Parameters
from simulator.synthetic.generator import NEGATIVE, POSITIVE
from simulator.synthetic.private import headline_accuracy, jump_variance
from simulator.synthetic.truth import Truth, truth_of

_TOLERANCE = 1e-10  # of the values, in log growth
_MOST_ITERATIONS = 100_000


class LinearCosts(Protocol):
    """The part of the trading costs that grows with the traded notional; `simulator.exchange.costs.Costs` has it."""

    @property
    def maker_fee(self) -> float: ...

    @property
    def taker_fee(self) -> float: ...

    @property
    def spread_multiplier(self) -> float: ...


@dataclass(frozen=True)
class OraclePolicy:
    """A solved policy. `ahead` is `(S, 3, N, L)`: the value after a decision, by symbol, regime (bear, range, bull),
    bars left of a spike and chosen level."""

    truth: Truth
    levels: FloatArray  # (L,)
    decide_every: int
    taker_fee: float
    spread_multiplier: float
    ahead: FloatArray

    def exposure(self, index: int, column: int, current_exposure: float) -> float:
        """The exposure to hold from the close of bar `index` on, given the one held now. One of the levels, or the
        present exposure left as it is where no change pays for its costs."""
        truth = self.truth
        left = int(truth.spike_left[index, column])
        choices = np.append(self.levels, current_exposure)
        ahead = self.ahead[column, int(truth.regime[index, column]) + 1, left]
        kept = np.interp(current_exposure, self.levels, ahead)
        spread = _next_spread(truth.law, float(truth.spike_height[index, column]) if left else None)
        variance = float(truth.vol[index, column]) ** 2 * self.decide_every
        if truth.private is not None:  # liquidity and crowding as they are, which the values ahead do not know
            spread = float(truth.private.wide[index, column]) or spread
            variance += jump_variance(bool(truth.private.crowded[index, column]), self.decide_every)
        cost = np.abs(choices - current_exposure) * (self.taker_fee + self.spread_multiplier * spread)
        value = np.append(ahead, kept) - choices**2 * variance / 2 - cost
        best = int(np.argmax(value[:-1]))
        # Leaving the position alone wins a tie, so that no order is sent for nothing.
        return float(choices[best]) if value[best] > value[-1] + 1e-15 else current_exposure


def solve(truth: Truth, costs: LinearCosts, exposures: Sequence[float], decide_every: int = 1) -> OraclePolicy:
    """The best policy for one who knows regime, drift, volatility and spread state, but not the noise.

    `exposures` are the signed fractions of equity to choose from, `decide_every` the bars between decisions.
    Raises `DataError` for unusable exposures or intervals.
    """
    levels = np.unique(np.asarray(exposures, np.float64))  # sorted, as interpolation between them needs
    if not len(levels) or not np.isfinite(levels).all():
        raise DataError("oracle: levels must be finite exposures, at least one")
    if decide_every < 1:
        raise DataError(f"oracle: decide_every is {decide_every}; it must be at least 1")
    law = truth.law
    weights = np.array(truth.config.regime_weights())
    redraw = 1 - (1 - law.redraw_market) * (1 - law.redraw_own)
    step = (1 - redraw) * np.eye(3) + redraw * weights[None, :]
    spike_step = _spike_chain(law)
    to_regime = np.linalg.matrix_power(step, decide_every)
    to_spike = np.linalg.matrix_power(spike_step, decide_every)
    # Expected number of bars in each regime until the next decision, the coming bar included.
    stay = sum((np.linalg.matrix_power(step, bar) for bar in range(decide_every)), start=np.zeros((3, 3)))

    sign = np.array([-1.0, 0.0, 1.0])
    settlements = interval_of(truth.config.timeframe) / FUNDING_INTERVAL  # a bar
    # Without edge funding follows a regime of its own, whose mean is 0.
    carry = law.funding_scale * settlements * sign * law.edge
    mean_height = (law.spike_low + law.spike_high) / 2
    spreads = np.array([_next_spread(law, mean_height if left else None) for left in range(len(spike_step))])
    price = costs.taker_fee + costs.spread_multiplier * spreads
    switch = np.abs(levels[:, None] - levels[None, :])  # (held, chosen)
    gain = np.stack([(stay @ (sign * drift - carry))[:, None] * levels for drift in law.bull_drift])  # (S, 3, L)
    risk = decide_every * law.volatility[:, None] ** 2 * levels**2 / 2  # (S, L)

    value = np.zeros((len(law.bull_drift), 3, len(spike_step), len(levels)))
    for _ in range(_MOST_ITERATIONS):
        later = np.einsum("rq,nm,sqml->srnl", to_regime, to_spike, value)
        ahead = gain[:, :, None, :] + later
        net = (ahead - risk[:, None, None, :])[:, :, :, None, :] - price[:, None, None] * switch
        updated = net.max(axis=4)
        updated -= updated.max(axis=(1, 2, 3), keepdims=True)
        change = np.abs(updated - value).max()
        value = updated
        if change < _TOLERANCE:
            break
    return OraclePolicy(truth, levels, decide_every, costs.taker_fee, costs.spread_multiplier, ahead)


def _next_spread(law: Parameters, spike: float | None) -> float:
    """Expected half spread of the coming bar: that of the running spike, or the mean when none runs."""
    if spike is not None:
        return spike
    return (1 - law.spike_onset) * law.spread_base + law.spike_onset * (law.spike_low + law.spike_high) / 2


def _spike_chain(law: Parameters) -> FloatArray:
    """`(N, N)` transition matrix of the bars left of a spike, N the longest spike."""
    count = law.spike_longest
    chain = np.zeros((count, count))
    chain[0, 0] = 1 - law.spike_onset
    for length in range(law.spike_shortest, law.spike_longest + 1):
        chain[0, length - 1] += law.spike_onset / (law.spike_longest - law.spike_shortest + 1)
    for left in range(1, count):
        chain[left, left - 1] = 1.0
    return chain


# The best estimate of the regimes from public data: the Hamilton (1989) filter of the market's law. It knows the
# parameters of the law and the volatility of every bar, and it observes prices, headlines and funding of all coins. So
# it is the belief of an ideal analyst, where `simulator.synthetic.truth` is the hidden state itself.

REGIMES = (-1, 0, 1)
MOST_COINS = 6  # the filter is over the regimes of all coins together, 3^S states


def regime_beliefs(market: Market) -> FloatArray:
    """Probabilities of bear, range and bull of each coin in the bar after each bar, (T, S, 3), from what is known at
    its close. Exact but for headlines that are read a bar after they were written.

    The filter is over the regimes of all coins together, since a part of their changes is common. Raises `DataError`
    for a market whose law is not known, or of more than `MOST_COINS` coins.
    """
    truth = truth_of(market)
    law, config, coins = truth.law, truth.config, len(market.symbols)
    if coins > MOST_COINS:
        raise DataError(
            f"{market.source}: beliefs about {coins} coins are over 3^{coins} states; use {MOST_COINS} coins at most"
        )
    weights = np.array(config.regime_weights())
    states = np.array(list(itertools.product(REGIMES, repeat=coins)))  # (3^S, S)
    onward = _transition(states, weights, law.redraw_market, law.redraw_own)
    headlines, settlements = _observations(market)
    returns = np.diff(np.log(market.close), axis=0)
    accuracy = np.full(market.close.shape, config.news_accuracy)
    if truth.private is not None:
        returns -= np.log(truth.private.jump[1:])  # a jump is seen as one, and says nothing of the drift
        accuracy = headline_accuracy(truth.private, config.news_accuracy)
    shocks = np.linalg.inv(np.full((coins, coins), law.correlation) + np.eye(coins) * (1.0 - law.correlation))
    kick = law.funding_noise * np.sqrt(1.0 - law.funding_memory**2)
    belief = np.array([prod(weights[state + 1]) for state in states])
    found = np.empty((len(market), coins, 3))
    for bar in range(len(market)):
        likely = np.zeros(len(states))
        if bar:
            volatility = truth.vol[bar - 1]
            z = (returns[bar - 1] - (states * law.bull_drift - volatility**2 / 2)) / volatility
            distance = np.einsum("js,st,jt->j", z, shocks, z) / (config.tail_freedom - 2.0)
            likely -= (config.tail_freedom + coins) / 2 * np.log1p(distance)
        for column, tone in headlines[bar]:
            right = accuracy[bar, column]
            agrees = np.where(states[:, column] == tone, right, 1.0 - right)
            likely += np.log(np.where(states[:, column] == 0, 0.5, agrees))
        for column, change in settlements[bar]:
            likely -= ((change - (1.0 - law.funding_memory) * states[:, column]) / kick) ** 2 / 2
        belief = belief * np.exp(likely - likely.max())
        belief = (belief / belief.sum()) @ onward
        found[bar] = np.stack([belief @ (states == sign) for sign in REGIMES], axis=1)
    return found


def _transition(states: FloatArray, weights: FloatArray, market: float, own: float) -> FloatArray:
    """(N, N) from a bar's regimes to the next one's: with probability `market` all are redrawn with one result, then
    each alone with probability `own`."""
    alone = (1.0 - own) * np.eye(3) + own * weights[None, :]
    each: npt.NDArray[np.floating[Any]] = np.ones((1, 1))
    for _ in range(states.shape[1]):
        each = np.kron(each, alone)
    common = np.zeros((len(states), len(states)))
    for sign, weight in zip(REGIMES, weights, strict=True):
        common[:, (states == sign).all(axis=1)] += weight
    return ((1.0 - market) * np.eye(len(states)) + market * common) @ each


def _observations(market: Market) -> tuple[list[list[tuple[int, int]]], list[list[tuple[int, float]]]]:
    """By the bar at whose close it is known first: coin and tone of each headline, and the innovation of each coin's
    funding (the new rate minus the remembered part of the last one), coins as columns."""
    law, closes = truth_of(market).law, market.open_time + market.interval
    headlines: list[list[tuple[int, int]]] = [[] for _ in range(len(market))]
    for item in market.news:
        tone = (item.text in POSITIVE) - (item.text in NEGATIVE)
        if tone:
            headlines[int(np.searchsorted(closes, item.known_at))].append((market.symbols.index(item.symbol), tone))
    settlements: list[list[tuple[int, float]]] = [[] for _ in range(len(market))]
    for column, symbol in enumerate(market.symbols):
        for last, event in itertools.pairwise(market.funding[symbol]):
            change = (event.rate - law.funding_memory * last.rate) / law.funding_scale
            settlements[int(np.searchsorted(closes, event.time))].append((column, change))
    return headlines, settlements
