"""Strategies that bet on a return: they buy what has fallen and sell it once it has recovered."""

from __future__ import annotations

import math
from collections.abc import Sequence

from simulator.backtest.run import orders_for_target
from simulator.errors import UserError
from simulator.exchange.exchange_records import AccountView
from simulator.exchange.orders import Order
from simulator.market import indicators
from simulator.market.market import MarketView
from simulator.strategies.signals import LongFlat, checked_exposure, recent


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


class BollingerReversion(LongFlat):
    """Buys a close below the lower Bollinger band and sells once a close is above the middle."""

    name = "bollinger_reversion"

    def __init__(self, length: int = 20, width: float = 2.0, exposure: float = 1.0) -> None:
        super().__init__(exposure)
        if length < 2:
            raise UserError(f"BollingerReversion(length={length}): give at least 2 bars.")
        if not (math.isfinite(width) and width > 0.0):
            raise UserError(f"BollingerReversion(width={width}): give a positive number of standard deviations.")
        self.length = length
        self.width = width
        self.warmup = length

    def signal(self, view: MarketView, symbol: str) -> int:
        """1 below the lower band, -1 above the middle, 0 between or where there are too few bars."""
        bars = recent(view, symbol, self.length)
        if bars is None:
            return 0
        bands = indicators.bollinger(bars.close, self.length, self.width)
        close = float(bars.close[-1])
        return int(close < bands.lower) - int(close > bands.middle)


class BuyTheDip:
    """Buys what has fallen by `dip` from the highest close of the last `lookback` bars; sells at `gain` above entry.

    There is no stop: a dip that never ends is held to the end.
    """

    name = "buy_the_dip"

    def __init__(self, dip: float = 0.05, gain: float = 0.05, lookback: int = 72, exposure: float = 1.0) -> None:
        if not 0.0 < dip < 1.0:
            raise UserError(f"BuyTheDip(dip={dip}): give a fraction between 0 and 1, as 0.05 for 5 %.")
        if not (math.isfinite(gain) and gain > 0.0):
            raise UserError(f"BuyTheDip(gain={gain}): give a positive fraction, as 0.05 for 5 %.")
        if lookback < 2:
            raise UserError(f"BuyTheDip(lookback={lookback}): give at least 2 bars.")
        self.dip = dip
        self.gain = gain
        self.lookback = lookback
        self.warmup = lookback
        self.exposure = checked_exposure("BuyTheDip", exposure)

    def decide(self, view: MarketView, account: AccountView) -> Sequence[Order]:
        orders: list[Order] = []
        for symbol in view.symbols:
            bars = recent(view, symbol, self.lookback)
            if bars is None:
                continue
            close, entry = float(bars.close[-1]), account.entry_price[symbol]
            if entry is None:
                highest = float(bars.close[bars.present][-self.lookback :].max())
                if close <= (1.0 - self.dip) * highest:
                    orders += orders_for_target(view, account, symbol, self.exposure / len(view.symbols))
            elif close >= (1.0 + self.gain) * entry:
                orders += orders_for_target(view, account, symbol, 0.0)
        return orders
