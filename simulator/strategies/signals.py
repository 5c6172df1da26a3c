"""Strategies that are long or flat by a signal: those that follow a trend, and those that bet on a return."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from simulator.backtest.run import orders_for_target
from simulator.errors import UserError
from simulator.exchange.exchange_records import AccountView
from simulator.exchange.orders import Order
from simulator.market import indicators
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


# Trend


class SmaCross(LongFlat):
    """Long while the fast average of the closes is above the slow one, else flat; equal averages change nothing."""

    name = "sma_cross"

    def __init__(self, fast: int = 20, slow: int = 100, exposure: float = 1.0) -> None:
        super().__init__(exposure)
        if not 1 <= fast < slow:
            raise UserError(f"SmaCross(fast={fast}, slow={slow}): give 1 <= fast < slow, in bars.")
        self.fast = fast
        self.slow = slow
        self.warmup = slow

    def signal(self, view: MarketView, symbol: str) -> int:
        """1 above, -1 below, 0 where the averages are equal or there are too few bars."""
        close = view.bars(symbol, self.slow).close
        # With too few bars the slow average is NaN and both comparisons are false.
        return _sign(indicators.sma(close, self.fast) - indicators.sma(close, self.slow))


class EmaCross(LongFlat):
    """Long while the fast exponential average is above the slow one, else flat. Looks at the last 4 x slow bars."""

    name = "ema_cross"

    def __init__(self, fast: int = 12, slow: int = 48, exposure: float = 1.0) -> None:
        super().__init__(exposure)
        if not 1 <= fast < slow:
            raise UserError(f"EmaCross(fast={fast}, slow={slow}): give 1 <= fast < slow, in bars.")
        self.fast = fast
        self.slow = slow
        self.warmup = indicators.ema_bars(slow)

    def signal(self, view: MarketView, symbol: str) -> int:
        """1 above, -1 below, 0 where the averages are equal or there are too few bars."""
        bars = recent(view, symbol, indicators.ema_bars(self.slow))
        if bars is None:
            return 0
        return _sign(indicators.ema(bars.close, self.fast) - indicators.ema(bars.close, self.slow))


class DonchianBreakout(LongFlat):
    """Buys a close above the highest high of the `entry` bars before, sells one below the lowest low of the `leave`
    bars before."""

    name = "donchian_breakout"

    def __init__(self, entry: int = 48, leave: int = 24, exposure: float = 1.0) -> None:
        super().__init__(exposure)
        if not 2 <= leave <= entry:
            raise UserError(f"DonchianBreakout(entry={entry}, leave={leave}): give 2 <= leave <= entry, in bars.")
        self.entry = entry
        self.leave = leave
        self.warmup = entry + 1

    def signal(self, view: MarketView, symbol: str) -> int:
        """1 above the one channel, -1 below the other, 0 between or where there are too few bars."""
        bars = recent(view, symbol, self.entry + 1)
        if bars is None:
            return 0
        # The newest bar must not be in the channel that it is to break out of.
        high, low, close = bars.high[:-1], bars.low[:-1], float(bars.close[-1])
        if close > indicators.donchian(high, low, self.entry).upper:
            return 1
        return -1 if close < indicators.donchian(high, low, self.leave).lower else 0


# Reversion


class RsiReversion(LongFlat):
    """Buys when the relative strength index is below `oversold`, sells when it is above `overbought`.

    Looks at the last 8 x length + 1 bars.
    """

    name = "rsi_reversion"

    def __init__(
        self, length: int = 14, oversold: float = 30.0, overbought: float = 70.0, exposure: float = 1.0
    ) -> None:
        super().__init__(exposure)
        if length < 2:
            raise UserError(f"RsiReversion(length={length}): give at least 2 bars.")
        if not 0.0 < oversold < overbought < 100.0:
            raise UserError(
                f"RsiReversion(oversold={oversold}, overbought={overbought}): give 0 < oversold < overbought < 100."
            )
        self.length = length
        self.oversold = oversold
        self.overbought = overbought
        self.warmup = indicators.wilder_bars(length)

    def signal(self, view: MarketView, symbol: str) -> int:
        """1 oversold, -1 overbought, 0 between or where there are too few bars."""
        bars = recent(view, symbol, indicators.wilder_bars(self.length))
        if bars is None:
            return 0
        value = indicators.rsi(bars.close, self.length)
        return int(value < self.oversold) - int(value > self.overbought)


def _sign(value: float) -> int:
    return int(value > 0.0) - int(value < 0.0)
