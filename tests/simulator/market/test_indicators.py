"""Indicators against independent formulas on random prices, and what they do with absent and with too few bars."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.arrays import FloatArray
from simulator.errors import UserError
from simulator.market import indicators

CLOSE = np.array([10.0, 11.0, math.nan, 12.0, 9.0])
SEEDS = st.integers(0, 2**32 - 1)
LENGTHS = st.integers(2, 30)


def bars(seed: int, count: int, scale: float = 100.0) -> tuple[FloatArray, FloatArray, FloatArray]:
    """High, low and close of a random walk."""
    rng = np.random.default_rng(seed)
    close = scale * np.exp(np.cumsum(rng.normal(0.0, 0.01, count)))
    wick = rng.uniform(0.0, 0.01, (2, count))
    return close * (1.0 + wick[0]), close * (1.0 - wick[1]), close


def averaged(values: Sequence[float], length: int, weight: float) -> pd.Series[float]:
    """Exponential averages that begin with the simple one of the first `length` values."""
    begun = [float(np.mean(values[:length])), *values[length:]]
    return pd.Series(begun).ewm(alpha=weight, adjust=False).mean()


def test_values_by_hand_skip_absent_bars() -> None:
    assert indicators.sma(CLOSE, 3) == pytest.approx(32 / 3)
    moves = [math.log(11 / 10), math.log(12 / 11), math.log(9 / 12)]
    assert indicators.realised_volatility(CLOSE, 3) == pytest.approx(float(np.std(moves, ddof=1)))
    assert indicators.realised_volatility(np.full(6, 7.0), 5) == 0.0


def test_too_few_bars_give_nan() -> None:
    assert math.isnan(indicators.sma(CLOSE, 5))
    assert math.isnan(indicators.realised_volatility(CLOSE, 4))


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, length=LENGTHS, scale=st.sampled_from([1e-7, 1.0, 6e4]))
def test_ema(seed: int, length: int, scale: float) -> None:
    close = bars(seed, 4 * length + 7, scale)[2]
    expected = averaged(list(close[-4 * length :]), length, 2.0 / (length + 1)).iloc[-1]
    assert indicators.ema(close, length) == pytest.approx(expected, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, fast=st.integers(2, 10), more=st.integers(1, 10), smoothing=st.integers(1, 10))
def test_macd(seed: int, fast: int, more: int, smoothing: int) -> None:
    slow = fast + more
    count = 4 * (slow + smoothing)
    close = list(bars(seed, count + 5)[2])
    known = close[-count:]
    # Both averages begin at the same bar: the fast one with the closes just before it.
    quick = averaged(known[slow - fast :], fast, 2.0 / (fast + 1)).to_numpy()
    line = quick - averaged(known, slow, 2.0 / (slow + 1)).to_numpy()
    signal = averaged(list(line), smoothing, 2.0 / (smoothing + 1)).iloc[-1]
    got = indicators.macd(np.array(close), fast, slow, smoothing)
    assert got == pytest.approx((line[-1], signal, line[-1] - signal), rel=1e-7, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, length=LENGTHS, scale=st.sampled_from([1e-7, 1.0, 6e4]))
def test_rsi(seed: int, length: int, scale: float) -> None:
    close = bars(seed, 8 * length + 9, scale)[2]
    moves = np.diff(close[-8 * length - 1 :])
    gain = averaged(list(np.maximum(moves, 0.0)), length, 1.0 / length).iloc[-1]
    loss = averaged(list(np.maximum(-moves, 0.0)), length, 1.0 / length).iloc[-1]
    assert indicators.rsi(close, length) == pytest.approx(100.0 * gain / (gain + loss), rel=1e-7)


def test_rsi_where_all_moves_agree_or_none_is_made() -> None:
    rising = np.arange(1.0, 60.0)
    assert indicators.rsi(rising, 5) == pytest.approx(100.0)
    assert indicators.rsi(rising[::-1].copy(), 5) == pytest.approx(0.0)
    assert indicators.rsi(np.full(60, 3.0), 5) == 50.0


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, length=LENGTHS, width=st.floats(0.1, 4.0), scale=st.sampled_from([1e-7, 1.0, 6e4]))
def test_bollinger(seed: int, length: int, width: float, scale: float) -> None:
    close = bars(seed, length + 3, scale)[2]
    rolling = pd.Series(close).rolling(length)
    middle, deviation = rolling.mean().iloc[-1], rolling.std(ddof=0).iloc[-1]
    expected = (middle - width * deviation, middle, middle + width * deviation)
    assert indicators.bollinger(close, length, width) == pytest.approx(expected, rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, length=LENGTHS)
def test_donchian(seed: int, length: int) -> None:
    high, low, _ = bars(seed, length + 4)
    expected = (pd.Series(low).rolling(length).min().iloc[-1], pd.Series(high).rolling(length).max().iloc[-1])
    assert indicators.donchian(high, low, length) == expected


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, length=st.integers(1, 30))
def test_atr(seed: int, length: int) -> None:
    high, low, close = bars(seed, 8 * length + 6)
    before = np.roll(close, 1)
    spans = pd.DataFrame([high - low, np.abs(high - before), np.abs(low - before)]).max()
    expected = averaged(list(spans[-8 * length :]), length, 1.0 / length).iloc[-1]
    assert indicators.atr(high, low, close, length) == pytest.approx(expected, rel=1e-9)


Call = Callable[[FloatArray, FloatArray, FloatArray], float | tuple[float, ...]]
CALLS: dict[str, tuple[int, Call]] = {  # the bars that it looks at
    "ema": (24, lambda high, low, close: indicators.ema(close, 6)),
    "macd": (44, lambda high, low, close: indicators.macd(close, 4, 8, 3)),
    "rsi": (49, lambda high, low, close: indicators.rsi(close, 6)),
    "bollinger": (6, lambda high, low, close: indicators.bollinger(close, 6)),
    "donchian": (6, lambda high, low, close: indicators.donchian(high, low, 6)),
    "atr": (49, lambda high, low, close: indicators.atr(high, low, close, 6)),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("seed", range(5))
def test_only_a_fixed_number_of_present_bars_counts(name: str, seed: int) -> None:
    needed, call = CALLS[name]
    series = bars(seed, 100)
    shortest = call(*(values[-needed:] for values in series))
    assert not np.isnan(shortest).any()
    assert call(*series) == shortest
    gaps = np.sort(np.random.default_rng(seed).choice(np.arange(101), 20))
    assert call(*(np.insert(values, gaps, math.nan) for values in series)) == shortest
    assert np.isnan(call(*(values[1 - needed :] for values in series))).all()
    assert np.isnan(call(*(values[:0] for values in series))).all()


@pytest.mark.parametrize(
    "call",
    [
        lambda: indicators.ema(CLOSE, 0),
        lambda: indicators.macd(CLOSE, 1, 5, 2),
        lambda: indicators.macd(CLOSE, 5, 5, 2),
        lambda: indicators.macd(CLOSE, 2, 5, 0),
        lambda: indicators.rsi(CLOSE, 1),
        lambda: indicators.bollinger(CLOSE, 1),
        lambda: indicators.donchian(CLOSE, CLOSE, 1),
        lambda: indicators.atr(CLOSE, CLOSE, CLOSE, 0),
    ],
)
def test_a_length_that_means_nothing_is_refused(call: Callable[[], object]) -> None:
    with pytest.raises(UserError, match="give at least"):
        call()
