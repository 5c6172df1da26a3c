"""Baselines that every team is measured against. Each sees only the `MarketView` and its own account.

Exposure is signed notional over equity; the strategies share it equally among the symbols, so that together they
hold at most `exposure`. A symbol without a price is left alone until it has one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simulator import indicators
from simulator.backtest import BacktestResult, orders_for_target
from simulator.errors import UserError
from simulator.market import MarketView
from simulator.metrics import YEAR_MS
from simulator.oracle import OraclePolicy
from simulator.orders import AccountView, Order


class Flat:
    """Never trades."""

    name = "flat"

    def decide(self, view: MarketView, account: AccountView) -> Sequence[Order]:
        return ()


class Hold:
    """Buys at its first decision and keeps it, without rebalancing."""

    name = "hold"

    def __init__(self, exposure: float = 1.0) -> None:
        self.exposure = exposure

    def decide(self, view: MarketView, account: AccountView) -> Sequence[Order]:
        waiting = {order.symbol for order in account.pending}
        share = self.exposure / len(view.symbols)
        orders: list[Order] = []
        for symbol in view.symbols:
            if account.positions[symbol] == 0.0 and symbol not in waiting:
                orders += orders_for_target(view, account, symbol, share)
        return orders


class AlwaysShort(Hold):
    """Sells short at its first decision and stays short: what a falling market gives away."""

    name = "always_short"

    def __init__(self, exposure: float = 1.0) -> None:
        super().__init__(-exposure)


class SmaCross:
    """Long while the fast average of the closes is above the slow one, else flat; equal averages change nothing."""

    name = "sma_cross"

    def __init__(self, fast: int = 20, slow: int = 100, exposure: float = 1.0) -> None:
        if not 1 <= fast < slow:
            raise UserError(f"SmaCross(fast={fast}, slow={slow}): give 1 <= fast < slow, in bars.")
        self.fast = fast
        self.slow = slow
        self.exposure = exposure

    def decide(self, view: MarketView, account: AccountView) -> Sequence[Order]:
        orders: list[Order] = []
        for symbol in view.symbols:
            signal = self.signal(view, symbol)
            holds = account.positions[symbol] != 0.0
            if signal > 0 and not holds:
                orders += orders_for_target(view, account, symbol, self.exposure / len(view.symbols))
            elif signal < 0 and holds:
                orders += orders_for_target(view, account, symbol, 0.0)
        return orders

    def signal(self, view: MarketView, symbol: str) -> int:
        """1 above, -1 below, 0 where the averages are equal or there are too few bars."""
        close = view.bars(symbol, self.slow).close
        # With too few bars the slow average is NaN and both comparisons are false.
        difference = indicators.sma(close, self.fast) - indicators.sma(close, self.slow)
        return int(difference > 0.0) - int(difference < 0.0)


class VolatilityTarget:
    """Long, sized so that the position's annual volatility is `target`: large in calm markets, small in wild ones.

    The size is the symbol's share of ``min(max_exposure, target / volatility of the last lookback bars)``; it is
    adjusted once it is off by more than `band` of itself.
    """

    name = "volatility_target"

    def __init__(self, target: float = 0.3, lookback: int = 42, max_exposure: float = 1.0, band: float = 0.2) -> None:
        if not (target > 0.0 and lookback >= 2 and max_exposure > 0.0 and band >= 0.0):
            raise UserError("VolatilityTarget needs target > 0, lookback >= 2, max_exposure > 0 and band >= 0.")
        self.target = target
        self.lookback = lookback
        self.max_exposure = max_exposure
        self.band = band

    def decide(self, view: MarketView, account: AccountView) -> Sequence[Order]:
        scale = math.sqrt(YEAR_MS / view.interval)
        orders: list[Order] = []
        for symbol in view.symbols:
            annual = scale * indicators.volatility(view.bars(symbol, self.lookback + 1).close, self.lookback)
            if math.isnan(annual):
                continue
            wanted = self.max_exposure if annual == 0.0 else min(self.max_exposure, self.target / annual)
            wanted /= len(view.symbols)
            if abs(wanted - account.exposure[symbol]) > self.band * wanted:
                orders += orders_for_target(view, account, symbol, wanted)
        return orders


class MatchedRandom:
    """Trades at random, but as much as somebody else did: what is left is skill.

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
