"""How much of the oracle's earnings the evidence allows: `make bench ONLY=learning.evidence`.

The oracle of `learning.oracle_share` knows the hidden regimes; nobody who sees prices, headlines and funding alone can
earn as much. What can be earned by sight is found with the filter of the market's own law
(`simulator.synthetic.beliefs`). From its beliefs it acts as the oracle does, by the expected value of each exposure,
on the markets and windows of that benchmark. A team that reaches this share has nothing left to learn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from backend.builders.market import account_of, load_market, split
from backend.evaluation.compare import ORACLE_LEVELS, baselines, split_windows
from benchmarks.bench_learning_oracle_share import EVERYBODY, SEEDS, TARGET, config_of, share_interval
from benchmarks.run import Result
from simulator.backtest.run import orders_for_target, run_backtest
from simulator.exchange.exchange_records import AccountView
from simulator.exchange.orders import Order
from simulator.market.market import MarketView
from simulator.synthetic.beliefs import regime_beliefs
from simulator.synthetic.oracle import OraclePolicy, solve
from simulator.synthetic.truth import truth_of

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
    account, evaluation, every = account_of(config, market), config.evaluation, config.team.decide_every
    held_out = split(market, config.market, config.team.horizon_bars).held_out
    windows = split_windows(*held_out, evaluation.windows, evaluation.decisions_per_window, every)
    levels = np.linspace(-1.0, 1.0, ORACLE_LEVELS) / len(market.symbols)
    sighted = Sighted(solve(truth_of(market), account.costs, levels.tolist(), every), regime_beliefs(market))
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
