"""The best estimate of a synthetic market's regimes from public data: the Hamilton (1989) filter of the market's law.

It knows the parameters of the law and the volatility of every bar, and it observes prices, headlines and funding of all
coins. So it is the belief of an ideal analyst, where `simulator.synthetic.truth` is the hidden state itself.
"""

from __future__ import annotations

import itertools
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.arrays import FloatArray
from simulator.errors import DataError
from simulator.market.market import Market
from simulator.synthetic.headlines import NEGATIVE, POSITIVE
from simulator.synthetic.private import headline_accuracy
from simulator.synthetic.truth import truth_of

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
    """(N, N) from a bar's regimes to the next one's: with probability `market` all are drawn anew with one result, then
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
    funding (the new rate less the remembered part of the last one), coins as columns."""
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
