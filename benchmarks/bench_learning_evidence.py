"""How much of the oracle's earnings the evidence allows: `make bench ONLY=learning.evidence`.

The oracle of `learning.oracle_share` knows the hidden regimes; nobody who sees prices, headlines and funding alone can
earn as much. What can be earned by sight is found with the filter (Hamilton 1989) of the market's own law. It knows the
law's numbers and the volatility of every bar, and of the regimes what the public data of all coins tell; exactly so but
for headlines that are read a bar after they were written. From its beliefs it acts as the oracle does, by the expected
value of each exposure, on the markets and windows of that benchmark. A team that reaches this share has nothing left to
learn.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from backend.evaluation.compare import ORACLE_LEVELS, baselines, split_windows
from backend.markets import account_of, load_market, split
from benchmarks.bench_learning_oracle_share import EVERYBODY, SEEDS, TARGET, config_of, share_interval
from benchmarks.run import Result
from simulator.backtest import orders_for_target, run_backtest
from simulator.headlines import NEGATIVE, POSITIVE
from simulator.market import Market, MarketView
from simulator.oracle import OraclePolicy
from simulator.orders import Order
from simulator.records import AccountView

FloatArray = npt.NDArray[np.float64]

BY_NAME_ONLY = True  # it says something of the market, not of the code


def run() -> list[Result]:
    """The row `learning.evidence`."""
    seen, known = zip(*(_returns(seed) for seed in SEEDS), strict=True)
    share, low, high = share_interval(np.array(seen), np.array(known))
    each = ", ".join(f"{sum(mine) / sum(all_):.0%}" for mine, all_ in zip(seen, known, strict=True))
    return [
        Result(
            name="learning.evidence",
            value=100 * share,
            unit="% of the oracle's earnings",
            against=f"oracle; 95 % interval {low:.0%} to {high:.0%}, seeds {each}",
            ratio=share,
            target=TARGET,  # the aim of `learning.oracle_share` can be reached by sight
            met=share >= TARGET,
        )
    ]


def _returns(seed: int) -> tuple[list[float], list[float]]:
    """Returns of a seed's held-out windows of one who believes what the data tell, and of the oracle."""
    config = config_of(seed, EVERYBODY)
    market = load_market(config.market, config.costs)
    assert market.truth is not None
    account, evaluation, every = account_of(config, market), config.evaluation, config.team.decide_every
    held_out = split(market, config.market, config.team.horizon_bars).held_out
    windows = split_windows(*held_out, evaluation.windows, evaluation.decisions_per_window, every)
    levels = np.linspace(-1.0, 1.0, ORACLE_LEVELS) / len(market.symbols)
    sighted = Sighted(market.truth.oracle(account.costs, levels.tolist(), every), beliefs(market))
    mine = [run_backtest(market, sighted, window, **account.terms) for window in windows]
    theirs = baselines(("oracle",), market, windows, account, mine, evaluation.seed)["oracle"]
    return [one.metrics["total_return"] for one in mine], [one.metrics["total_return"] for one in theirs]


class Sighted:
    """The oracle's policy, followed from beliefs (T, S, 3) in its place."""

    name = "sighted"

    def __init__(self, policy: OraclePolicy, believed: FloatArray) -> None:
        self.policy, self.believed = policy, believed

    def decide(self, view: MarketView, account: AccountView) -> Sequence[Order]:
        orders: list[Order] = []
        for column, symbol in enumerate(view.symbols):
            belief = self.believed[view.index, column]
            wanted = self.policy.believing(belief, view.index, column, account.exposure[symbol])
            orders += orders_for_target(view, account, symbol, wanted)
        return orders


def beliefs(market: Market) -> FloatArray:
    """Probabilities of bear, range and bull of each coin after each bar, (T, S, 3), from prices, headlines and funding
    until then. The filter is over the regimes of all coins together, since a part of their changes is common."""
    truth = market.truth
    assert truth is not None
    law, config, coins = truth.law, truth.config, len(market.symbols)
    weights = np.array(config.regime_weights())
    states = np.array(list(itertools.product((-1, 0, 1), repeat=coins)))  # (3^S, S)
    onward = _transition(states, weights, law.redraw_market, law.redraw_own)
    heard, settled = _told(market)
    returns = np.diff(np.log(market.close), axis=0)
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
        for column, tone in heard[bar]:
            agrees = np.where(states[:, column] == tone, config.news_accuracy, 1.0 - config.news_accuracy)
            likely += np.log(np.where(states[:, column] == 0, 0.5, agrees))
        for column, change in settled[bar]:
            likely -= ((change - (1.0 - law.funding_memory) * states[:, column]) / kick) ** 2 / 2
        belief = belief * np.exp(likely - likely.max())
        belief = (belief / belief.sum()) @ onward
        found[bar] = np.stack([belief @ (states == sign) for sign in (-1, 0, 1)], axis=1)
    return found


def _transition(states: FloatArray, weights: FloatArray, market: float, own: float) -> FloatArray:
    """(N, N) from a bar's regimes to the next one's: with probability `market` all are drawn anew with one result, then
    each alone with probability `own`."""
    alone = (1.0 - own) * np.eye(3) + own * weights[None, :]
    each: npt.NDArray[np.floating[Any]] = np.ones((1, 1))
    for _ in range(states.shape[1]):
        each = np.kron(each, alone)
    common = np.zeros((len(states), len(states)))
    for sign, weight in zip((-1, 0, 1), weights, strict=True):
        common[:, (states == sign).all(axis=1)] += weight
    return ((1.0 - market) * np.eye(len(states)) + market * common) @ each


def _told(market: Market) -> tuple[list[list[tuple[int, int]]], list[list[tuple[int, float]]]]:
    """By the bar at whose close it is known first: headlines' coins and tones, and the coins' new funding less what it
    remembers of the last, both in columns."""
    assert market.truth is not None
    law, closes = market.truth.law, market.open_time + market.interval
    heard: list[list[tuple[int, int]]] = [[] for _ in range(len(market))]
    for item in market.news:
        tone = (item.text in POSITIVE) - (item.text in NEGATIVE)
        if tone:
            heard[int(np.searchsorted(closes, item.known_at))].append((market.symbols.index(item.symbol), tone))
    settled: list[list[tuple[int, float]]] = [[] for _ in range(len(market))]
    for column, symbol in enumerate(market.symbols):
        for last, event in itertools.pairwise(market.funding[symbol]):
            change = (event.rate - law.funding_memory * last.rate) / law.funding_scale
            settled[int(np.searchsorted(closes, event.time))].append((column, change))
    return heard, settled
