"""Technical indicators of a price series, each as of its last value.

All take arrays oldest first, skip absent (NaN) bars, and return NaN when too few values are left.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def sma(close: FloatArray, length: int) -> float:
    """Simple moving average of the last `length` closes."""
    known = close[~np.isnan(close)]
    return float(known[-length:].sum()) / length if len(known) >= length else math.nan


def momentum(close: FloatArray, length: int) -> float:
    """Simple return over the last `length` bars."""
    known = close[~np.isnan(close)]
    return float(known[-1] / known[-1 - length]) - 1.0 if len(known) > length else math.nan


def volatility(close: FloatArray, length: int) -> float:
    """Sample standard deviation of the last `length` log returns, per bar."""
    known = close[~np.isnan(close)]
    return float(np.diff(np.log(known[-1 - length :])).std(ddof=1)) if len(known) > length >= 2 else math.nan


def rsi(close: FloatArray, length: int = 14) -> float:
    """Relative strength index, 0 to 100, with plain means over the last `length` changes (Cutler's form).

    50 when the price did not move at all.
    """
    known = close[~np.isnan(close)]
    if len(known) <= length:
        return math.nan
    changes = np.diff(known[-1 - length :])
    gain, loss = float(changes[changes > 0.0].sum()), float(-changes[changes < 0.0].sum())
    return 100.0 * gain / (gain + loss) if gain + loss > 0.0 else 50.0


def atr(high: FloatArray, low: FloatArray, close: FloatArray, length: int = 14) -> float:
    """Average true range: plain mean over the last `length` bars, in price units."""
    present = ~np.isnan(close)
    high, low, close = high[present], low[present], close[present]
    if len(close) <= length:
        return math.nan
    before = close[-1 - length : -1]
    ranges = np.maximum(high[-length:], before) - np.minimum(low[-length:], before)
    return float(ranges.mean())
