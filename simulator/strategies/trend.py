"""Strategies that follow a trend: long while it points up, else flat."""

from __future__ import annotations

from simulator.errors import UserError
from simulator.market import indicators
from simulator.market.market import MarketView
from simulator.strategies.signals import LongFlat, recent


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


class MacdCross(LongFlat):
    """Long while the MACD is above its signal line, else flat. Looks at the last 4 x (slow + smoothing) bars."""

    name = "macd_cross"

    def __init__(self, fast: int = 12, slow: int = 26, smoothing: int = 9, exposure: float = 1.0) -> None:
        super().__init__(exposure)
        if not (2 <= fast < slow and smoothing >= 1):
            raise UserError(
                f"MacdCross(fast={fast}, slow={slow}, smoothing={smoothing}): give 2 <= fast < slow and smoothing "
                "from 1 up, in bars."
            )
        self.fast = fast
        self.slow = slow
        self.smoothing = smoothing
        self.warmup = indicators.macd_bars(slow, smoothing)

    def signal(self, view: MarketView, symbol: str) -> int:
        """1 above, -1 below, 0 where the lines are equal or there are too few bars."""
        bars = recent(view, symbol, indicators.macd_bars(self.slow, self.smoothing))
        if bars is None:
            return 0
        return _sign(indicators.macd(bars.close, self.fast, self.slow, self.smoothing).histogram)


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


def _sign(value: float) -> int:
    return int(value > 0.0) - int(value < 0.0)
