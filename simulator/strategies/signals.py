"""The common part of strategies that are long or flat by the sign of a signal."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from simulator.backtest.run import orders_for_target
from simulator.errors import UserError
from simulator.exchange.exchange_records import AccountView
from simulator.exchange.orders import Order
from simulator.market.market import Bars, MarketView


class LongFlat(ABC):
    """Buys a symbol's share of `exposure` on a signal above 0, sells it on one below 0, and holds on 0. `warmup` is how
    many bars must lie before its first decision."""

    name: str
    warmup: int = 0

    def __init__(self, exposure: float) -> None:
        self.exposure = checked_exposure(type(self).__name__, exposure)

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

    @abstractmethod
    def signal(self, view: MarketView, symbol: str) -> int:
        """1 buy, -1 sell, 0 hold; 0 also where too little is known."""


def recent(view: MarketView, symbol: str, count: int) -> Bars | None:
    """The last bars, enough to hold `count` present ones.

    None where the newest bar is absent, since nothing new is known then, and where fewer than `count` of the last
    2 x `count` bars are present.
    """
    for rows in (count, 2 * count):
        bars = view.bars(symbol, rows)
        if not bars.present[-1]:
            return None
        if np.count_nonzero(bars.present) >= count:
            return bars
    return None


def checked_exposure(owner: str, exposure: float) -> float:
    """`exposure` as it is. Raises `UserError` unless it is a positive finite number."""
    if not (math.isfinite(exposure) and exposure > 0.0):
        raise UserError(f"{owner}(exposure={exposure}): give a positive fraction of the equity, 1 for all of it.")
    return exposure
