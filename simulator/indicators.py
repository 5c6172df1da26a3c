"""Indicators of a price series, each as of its last value.

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


def volatility(close: FloatArray, length: int) -> float:
    """Sample standard deviation of the last `length` log returns, per bar."""
    known = close[~np.isnan(close)]
    return float(np.diff(np.log(known[-1 - length :])).std(ddof=1)) if len(known) > length >= 2 else math.nan
