"""Strategies that hold without a view on the direction: they earn the return of the market itself."""

from __future__ import annotations

import math
from collections.abc import Sequence

from simulator.backtest.run import orders_for_target
from simulator.errors import UserError
from simulator.exchange.exchange_records import AccountView
from simulator.exchange.orders import Order
from simulator.market import indicators
from simulator.market.market import MarketView
from simulator.market.timeframes import YEAR_MS
from simulator.strategies.signals import checked_exposure, recent


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
        self._holds_all = False

    def fit(self, view: MarketView) -> None:
        """Begin a run: nothing is held yet."""
        self._holds_all = False

    def decide(self, view: MarketView, account: AccountView) -> Sequence[Order]:
        if self._holds_all:  # what is long without debt stays so, and an account of each bar takes its time
            return ()
        waiting = {order.symbol for order in account.pending}
        share = self.exposure / len(view.symbols)
        orders: list[Order] = []
        for symbol in view.symbols:
            if account.positions[symbol] == 0.0 and symbol not in waiting:
                orders += orders_for_target(view, account, symbol, share)
        self._holds_all = 0.0 < self.exposure <= 1.0 and all(account.positions.values())
        return orders


class AlwaysShort(Hold):
    """Sells short at its first decision and stays short: what a falling market gives away."""

    name = "always_short"

    def __init__(self, exposure: float = 1.0) -> None:
        super().__init__(-exposure)


class EqualWeight:
    """Long all symbols in equal parts, brought back to them.

    A symbol's part is adjusted once it is off by more than `band` of itself, at a bar that is present: the price of
    another one is old, and so is what it says about the weight.
    """

    name = "equal_weight"

    def __init__(self, exposure: float = 1.0, band: float = 0.1) -> None:
        self.exposure = checked_exposure("EqualWeight", exposure)
        self.band = _checked_band("EqualWeight", band)

    def decide(self, view: MarketView, account: AccountView) -> Sequence[Order]:
        share = self.exposure / len(view.symbols)
        orders: list[Order] = []
        for symbol in view.symbols:
            if recent(view, symbol, 1) is not None and abs(share - account.exposure[symbol]) > self.band * share:
                orders += orders_for_target(view, account, symbol, share)
        return orders


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
        self.warmup = lookback + 1
        self.max_exposure = max_exposure
        self.band = band

    def decide(self, view: MarketView, account: AccountView) -> Sequence[Order]:
        scale = math.sqrt(YEAR_MS / view.interval)
        orders: list[Order] = []
        for symbol in view.symbols:
            annual = scale * indicators.realised_volatility(view.bars(symbol, self.lookback + 1).close, self.lookback)
            if math.isnan(annual):
                continue
            wanted = self.max_exposure if annual == 0.0 else min(self.max_exposure, self.target / annual)
            wanted /= len(view.symbols)
            if abs(wanted - account.exposure[symbol]) > self.band * wanted:
                orders += orders_for_target(view, account, symbol, wanted)
        return orders


def _checked_band(owner: str, band: float) -> float:
    # Who holds nothing is off by 1: a band that wide would never buy.
    if not 0.0 <= band < 1.0:
        raise UserError(f"{owner}(band={band}): give a fraction of a part from 0 to below 1, as 0.1 for a tenth.")
    return band
