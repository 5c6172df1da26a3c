"""Indicators of a price series, each as of its last value.

All take arrays oldest first, skip absent (NaN) bars, and return NaN when too few values are left. Lengths are in bars;
one that no indicator can have raises `UserError`.

An exponential average depends on its whole past, so its value would depend on the length of the history. Here each
average uses a fixed number of the last known values: eight time constants. The weight of everything older would be
e^-8, a third of a thousandth. `ema_bars`, `macd_bars` and `wilder_bars` give these numbers.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import talib

from simulator.arrays import FloatArray
from simulator.errors import UserError

# How far back an average looks. The time constant is length / 2 bars (exponential) or length bars (Wilder's).
_TIME_CONSTANTS = 8


class Macd(NamedTuple):
    """Moving average convergence and divergence, in units of the price; `histogram` is `line - signal`."""

    line: float
    signal: float
    histogram: float


class Bands(NamedTuple):
    """A channel around an average, in units of the price."""

    lower: float
    middle: float
    upper: float


class Channel(NamedTuple):
    """Lowest low and highest high."""

    lower: float
    upper: float


def sma(close: FloatArray, length: int) -> float:
    """Simple moving average of the last `length` closes."""
    known = close[~np.isnan(close)]
    return float(known[-length:].sum()) / length if len(known) >= length else math.nan


def realised_volatility(close: FloatArray, length: int) -> float:
    """Sample standard deviation of the last `length` log returns, per bar."""
    known = close[~np.isnan(close)]
    return float(np.diff(np.log(known[-1 - length :])).std(ddof=1)) if len(known) > length >= 2 else math.nan


def ema_bars(length: int) -> int:
    """How many closes `ema` looks at."""
    return _TIME_CONSTANTS * length // 2


def macd_bars(slow: int, signal: int) -> int:
    """How many closes `macd` looks at: its signal averages over values that are averages themselves."""
    return ema_bars(slow) + ema_bars(signal)


def wilder_bars(length: int) -> int:
    """How many bars `rsi` and `atr` look at; the first one only gives the close that the next is compared with."""
    return _TIME_CONSTANTS * length + 1


def ema(close: FloatArray, length: int) -> float:
    """Exponential moving average with weight 2 / (length + 1) on the newest close, begun with a simple average of
    `length` closes."""
    _check("ema", length, 1)
    (known,) = _last(ema_bars(length), close)
    return float(talib.EMA(known, length)[-1]) if len(known) else math.nan


def macd(close: FloatArray, fast: int = 12, slow: int = 26, signal: int = 9) -> Macd:
    """Difference of a fast and a slow exponential average, and its own exponential average."""
    _check("macd: fast", fast, 2)
    _check("macd: slow", slow, fast + 1)
    _check("macd: signal", signal, 1)
    (known,) = _last(macd_bars(slow, signal), close)
    if not len(known):
        return Macd(math.nan, math.nan, math.nan)
    line, average, histogram = talib.MACD(known, fast, slow, signal)
    return Macd(float(line[-1]), float(average[-1]), float(histogram[-1]))


def rsi(close: FloatArray, length: int = 14) -> float:
    """Relative strength index with Wilder's averages: 0 where all moves went down, 100 where all went up.

    50 where no close moved: nothing is strong or weak then.
    """
    _check("rsi", length, 2)
    (known,) = _last(wilder_bars(length), close)
    if not len(known):
        return math.nan
    return 50.0 if known.min() == known.max() else float(talib.RSI(known, length)[-1])


def bollinger(close: FloatArray, length: int = 20, width: float = 2.0) -> Bands:
    """Simple average of the last `length` closes, and `width` of their population standard deviations to each side."""
    _check("bollinger", length, 2)
    (known,) = _last(length, close)
    if not len(known):
        return Bands(math.nan, math.nan, math.nan)
    upper, middle, lower = talib.BBANDS(known, length, width, width)
    return Bands(float(lower[-1]), float(middle[-1]), float(upper[-1]))


def donchian(high: FloatArray, low: FloatArray, length: int = 20) -> Channel:
    """Lowest low and highest high of the last `length` bars, the newest one included."""
    _check("donchian", length, 2)
    highs, lows = _last(length, high, low)
    if not len(highs):
        return Channel(math.nan, math.nan)
    return Channel(float(talib.MIN(lows, length)[-1]), float(talib.MAX(highs, length)[-1]))


def atr(high: FloatArray, low: FloatArray, close: FloatArray, length: int = 14) -> float:
    """Wilder's average of the true range, in units of the price."""
    _check("atr", length, 1)
    highs, lows, closes = _last(wilder_bars(length), high, low, close)
    return float(talib.ATR(highs, lows, closes, length)[-1]) if len(closes) else math.nan


def _last(count: int, *series: FloatArray) -> list[FloatArray]:
    """The last `count` rows in which all series are known; nothing where there are fewer."""
    known = ~np.isnan(series[0])
    for values in series[1:]:
        known &= ~np.isnan(values)
    rows = np.flatnonzero(known)[-count:]
    return [np.ascontiguousarray(values[rows if len(rows) == count else rows[:0]]) for values in series]


def _check(name: str, length: int, least: int) -> None:
    if length < least:
        raise UserError(f"{name} over {length} bars has no meaning; give at least {least}.")
