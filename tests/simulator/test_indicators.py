"""Indicators by hand, and what they do with absent bars."""

from __future__ import annotations

import math

import numpy as np
import pytest

from simulator import indicators

NAN = math.nan
CLOSE = np.array([10.0, 11.0, NAN, 12.0, 9.0])


def test_values_by_hand_skip_absent_bars() -> None:
    assert indicators.sma(CLOSE, 3) == pytest.approx(32 / 3)
    assert indicators.momentum(CLOSE, 2) == pytest.approx(9 / 11 - 1)
    moves = [math.log(11 / 10), math.log(12 / 11), math.log(9 / 12)]
    assert indicators.volatility(CLOSE, 3) == pytest.approx(float(np.std(moves, ddof=1)))
    assert indicators.rsi(CLOSE, 3) == pytest.approx(100 * 2 / 5)
    # True ranges: max(12.5, 11) - min(11.5, 11) = 1.5; max(12.2, 12) - min(8, 12) = 4.2.
    high = np.array([10.5, 11.5, NAN, 12.5, 12.2])
    low = np.array([9.5, 10.5, NAN, 11.5, 8.0])
    assert indicators.atr(high, low, CLOSE, 2) == pytest.approx((1.5 + 4.2) / 2)


def test_too_few_bars_give_nan() -> None:
    assert math.isnan(indicators.sma(CLOSE, 5))
    assert math.isnan(indicators.momentum(CLOSE, 4))
    assert math.isnan(indicators.volatility(CLOSE, 4))
    assert math.isnan(indicators.rsi(CLOSE, 4))
    assert math.isnan(indicators.atr(CLOSE, CLOSE, CLOSE, 4))


def test_a_price_that_stands_still() -> None:
    still = np.full(6, 7.0)
    assert indicators.rsi(still, 5) == 50.0
    assert indicators.volatility(still, 5) == 0.0
    assert indicators.rsi(np.arange(1.0, 8.0), 5) == 100.0
