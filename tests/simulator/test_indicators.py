"""Indicators by hand, and what they do with absent bars."""

from __future__ import annotations

import math

import numpy as np
import pytest

from simulator import indicators

CLOSE = np.array([10.0, 11.0, math.nan, 12.0, 9.0])


def test_values_by_hand_skip_absent_bars() -> None:
    assert indicators.sma(CLOSE, 3) == pytest.approx(32 / 3)
    moves = [math.log(11 / 10), math.log(12 / 11), math.log(9 / 12)]
    assert indicators.volatility(CLOSE, 3) == pytest.approx(float(np.std(moves, ddof=1)))
    assert indicators.volatility(np.full(6, 7.0), 5) == 0.0


def test_too_few_bars_give_nan() -> None:
    assert math.isnan(indicators.sma(CLOSE, 5))
    assert math.isnan(indicators.volatility(CLOSE, 4))
