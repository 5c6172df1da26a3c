"""Reference strategies: random trading of the same extent, and trading with full knowledge of the hidden state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.backtest.run import BacktestResult, orders_for_target
from simulator.errors import UserError
from simulator.exchange.exchange_records import AccountView
from simulator.exchange.orders import Order
from simulator.market.market import MarketView
from simulator.synthetic.oracle import OraclePolicy


class MatchedRandom:
    """Trades at random, but as much as another strategy: the difference between the two is skill.

    At each decision, and for each symbol apart, it moves with a fixed probability to an exposure drawn from the sizes
    that the others held (flat included), long with the probability of their long share; in between it holds. So mean
    exposure, long share and number of changes agree in expectation, whatever the market does. The first decision
    always draws. Moments and directions depend on the seed only. One instance serves one run.
    """

    name = "matched_random"

    def __init__(self, sizes: NDArray[np.float64], long_share: float, changes: float, seed: int) -> None:
        """`sizes`: absolute exposures to draw from; `changes`: changes per decision and symbol."""
        if len(sizes) == 0 or not (0.0 <= long_share <= 1.0 and changes >= 0.0):
            raise UserError("MatchedRandom needs some sizes, a long_share from 0 to 1 and changes from 0 up.")
        self.sizes = sizes
        self.long_share = long_share
        # Drawing flat while flat changes nothing, so more draws are needed than changes.
        flat = float(np.mean(sizes == 0.0))
        self.probability = min(1.0, changes / (1.0 - flat * flat)) if flat < 1.0 else 0.0
        self._rng = np.random.default_rng(seed)
        self._started: set[str] = set()

    @classmethod
    def matched_to(cls, results: Sequence[BacktestResult], seed: int) -> MatchedRandom:
        """Matched to what `results` did together. Pool several windows: the long share of one tells its trend."""
        if not results:
            raise UserError("MatchedRandom.matched_to needs at least one result.")
        held = np.concatenate([result.exposure[1:].ravel() for result in results])
        gross = float(np.abs(held).sum())
        long_share = float(np.maximum(held, 0.0).sum()) / gross if gross > 0.0 else 0.0
        changes = sum(len({(fill.bar, fill.symbol) for fill in result.fills}) for result in results)
        chances = sum(result.decisions * len(result.symbols) for result in results)
        return cls(np.abs(held), long_share, changes / chances, seed)

    def decide(self, view: MarketView, account: AccountView) -> Sequence[Order]:
        orders: list[Order] = []
        for symbol in view.symbols:
            # All three numbers are drawn every time, so the moments do not depend on what was drawn before.
            moves, size, long = self._rng.random(3).tolist()
            if symbol in self._started and moves >= self.probability:
                continue
            self._started.add(symbol)
            exposure = float(self.sizes[int(size * len(self.sizes))])
            sign = 1.0 if long < self.long_share else -1.0
            orders += orders_for_target(view, account, symbol, sign * exposure)
        return orders


class Oracle:
    """Follows the solved policy of a synthetic market's truth: what full knowledge of the regimes could earn.

    The policy decides each symbol apart; solve it for levels whose sum over the symbols fits the leverage cap, and for
    the costs and the rhythm of the run. Its columns must be those of the market of the run.
    """

    name = "oracle"

    def __init__(self, policy: OraclePolicy) -> None:
        self.policy = policy

    def decide(self, view: MarketView, account: AccountView) -> Sequence[Order]:
        orders: list[Order] = []
        for column, symbol in enumerate(view.symbols):
            wanted = self.policy.exposure(view.index, column, account.exposure[symbol])
            orders += orders_for_target(view, account, symbol, wanted)
        return orders
