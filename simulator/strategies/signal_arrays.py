"""The signals of the shipped strategies that are long or flat, at every bar at once: for a search among thousands of
parameters.

A strategy itself looks at the last bars of a view, and its exponential averages at eight time constants of them. Here
an average runs over the whole history, so that its value can differ by a third of a thousandth, and a signal where two
lines all but touch. What is found by these arrays is played by the strategy itself before it is reported.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import talib

from simulator.arrays import FloatArray
from simulator.market.market import Market
from simulator.strategies.reversion import BollingerReversion, RsiReversion
from simulator.strategies.signals import LongFlat
from simulator.strategies.trend import DonchianBreakout, EmaCross, MacdCross, SmaCross

_Signal = Callable[..., FloatArray]


def signal_array(strategy: LongFlat, high: FloatArray, low: FloatArray, close: FloatArray) -> FloatArray | None:
    """(T,): above 0 to buy, below 0 to sell, 0 or NaN to hold, at each close of one symbol's bars, all present. None
    for a strategy that is not known here."""
    made = _SIGNALS.get(type(strategy))
    return None if made is None else made(strategy, high, low, close)


def long_flat_targets(strategy: LongFlat, market: Market, start: int, every: int) -> FloatArray | None:
    """(T, S): the exposures that the strategy goes to when it decides at the close of bar `start` and every `every`
    bars from there on, NaN where it changes nothing, as `run_signals` takes them. None where it cannot be said at once:
    of another strategy, and of symbols that lack bars."""
    targets = np.full((len(market), len(market.symbols)), np.nan)
    if not market.present.all():
        return None
    decided = np.arange(start, len(market), every)
    for column in range(len(market.symbols)):
        bars = (np.ascontiguousarray(values[:, column]) for values in (market.high, market.low, market.close))
        signal = signal_array(strategy, *bars)
        if signal is None:
            return None
        side = np.sign(np.nan_to_num(signal[decided]))
        # The last side that was not 0 holds; before the first one nothing is held.
        newest = np.maximum.accumulate(np.where(side != 0.0, np.arange(len(side)), -1))
        holds = np.where(newest >= 0, side[newest] > 0.0, False)
        changed = np.diff(holds, prepend=False)
        targets[decided[changed], column] = np.where(holds[changed], strategy.exposure / len(market.symbols), 0.0)
    return targets


def _sma(strategy: SmaCross, high: FloatArray, low: FloatArray, close: FloatArray) -> FloatArray:
    return np.asarray(_mean(close, strategy.fast) - _mean(close, strategy.slow))


def _ema(strategy: EmaCross, high: FloatArray, low: FloatArray, close: FloatArray) -> FloatArray:
    fast, slow = (close if length == 1 else talib.EMA(close, length) for length in (strategy.fast, strategy.slow))
    return np.asarray(fast - slow)


def _macd(strategy: MacdCross, high: FloatArray, low: FloatArray, close: FloatArray) -> FloatArray:
    return np.asarray(talib.MACD(close, strategy.fast, strategy.slow, strategy.smoothing)[2])


def _donchian(strategy: DonchianBreakout, high: FloatArray, low: FloatArray, close: FloatArray) -> FloatArray:
    upper, lower = talib.MAX(high, strategy.entry), talib.MIN(low, strategy.leave)
    before = [np.concatenate([[np.nan], line[:-1]]) for line in (upper, lower)]
    return np.where(close > before[0], 1.0, np.where(close < before[1], -1.0, 0.0))


def _rsi(strategy: RsiReversion, high: FloatArray, low: FloatArray, close: FloatArray) -> FloatArray:
    value = talib.RSI(close, strategy.length)
    return np.where(value < strategy.oversold, 1.0, np.where(value > strategy.overbought, -1.0, 0.0))


def _bollinger(strategy: BollingerReversion, high: FloatArray, low: FloatArray, close: FloatArray) -> FloatArray:
    _, middle, lower = talib.BBANDS(close, strategy.length, strategy.width, strategy.width)
    return np.where(close < lower, 1.0, np.where(close > middle, -1.0, 0.0))


def _mean(close: FloatArray, length: int) -> FloatArray:
    return close if length == 1 else np.asarray(talib.SMA(close, length))


_SIGNALS: dict[type[LongFlat], _Signal] = {
    SmaCross: _sma,
    EmaCross: _ema,
    MacdCross: _macd,
    DonchianBreakout: _donchian,
    RsiReversion: _rsi,
    BollingerReversion: _bollinger,
}
