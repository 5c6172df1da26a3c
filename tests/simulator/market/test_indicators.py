"""Indicators against independent formulas on random prices, and what they do with absent and with too few bars."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

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


def macd_again(high: FloatArray, low: FloatArray, close: FloatArray, length: int) -> tuple[float, ...]:
    """Of `length`, twice that and half of it. Both averages begin at the same bar: the fast one with the closes just
    before it."""
    fast, slow, smoothing = length, 2 * length, 1 + length // 2
    known = list(close[-4 * (slow + smoothing) :])
    line = averaged(known[slow - fast :], fast, 2.0 / (fast + 1)).to_numpy()
    line = line - averaged(known, slow, 2.0 / (slow + 1)).to_numpy()
    signal = averaged(list(line), smoothing, 2.0 / (smoothing + 1)).iloc[-1]
    return line[-1], signal, line[-1] - signal


def rsi_again(high: FloatArray, low: FloatArray, close: FloatArray, length: int) -> float:
    moves = np.diff(close[-8 * length - 1 :])
    gain, loss = (averaged(list(np.maximum(s * moves, 0.0)), length, 1.0 / length).iloc[-1] for s in (1.0, -1.0))
    return float(100.0 * gain / (gain + loss))


def bollinger_again(high: FloatArray, low: FloatArray, close: FloatArray, length: int) -> tuple[float, ...]:
    rolling = pd.Series(close).rolling(length)
    middle, deviation = rolling.mean().iloc[-1], rolling.std(ddof=0).iloc[-1]
    return middle - 1.7 * deviation, middle, middle + 1.7 * deviation


def atr_again(high: FloatArray, low: FloatArray, close: FloatArray, length: int) -> float:
    before = np.roll(close, 1)
    spans = pd.DataFrame([high - low, np.abs(high - before), np.abs(low - before)]).max()
    return float(averaged(list(spans[-8 * length :]), length, 1.0 / length).iloc[-1])


# The indicator and an independent formula, from high, low, close and a length; and how many bars it looks at.
Call = Callable[..., float | tuple[float, ...]]
CALLS: dict[str, tuple[Call, Call, Callable[[int], int]]] = {
    "ema": (
        lambda high, low, close, n: indicators.ema(close, n),
        lambda high, low, close, n: float(averaged(list(close[-4 * n :]), n, 2.0 / (n + 1)).iloc[-1]),
        lambda n: 4 * n,
    ),
    "macd": (
        lambda high, low, close, n: indicators.macd(close, n, 2 * n, 1 + n // 2), macd_again,
        lambda n: 4 * (2 * n + 1 + n // 2),
    ),
    "rsi": (lambda high, low, close, n: indicators.rsi(close, n), rsi_again, lambda n: 8 * n + 1),
    "bollinger": (lambda high, low, close, n: indicators.bollinger(close, n, 1.7), bollinger_again, lambda n: n),
    "donchian": (
        lambda high, low, close, n: indicators.donchian(high, low, n),
        lambda high, low, close, n: (float(low[-n:].min()), float(high[-n:].max())),
        lambda n: n,
    ),
    "atr": (lambda high, low, close, n: indicators.atr(high, low, close, n), atr_again, lambda n: 8 * n + 1),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, length=LENGTHS, scale=st.sampled_from([1e-7, 1.0, 6e4]))
def test_agrees_with_an_independent_formula(name: str, seed: int, length: int, scale: float) -> None:
    call, again, needed = CALLS[name]
    series = bars(seed, needed(length) + 5, scale)
    assert call(*series, length) == pytest.approx(again(*series, length), rel=1e-6, abs=1e-9 * scale)


def test_rsi_where_all_moves_agree_or_none_is_made() -> None:
    rising = np.arange(1.0, 60.0)
    assert indicators.rsi(rising, 5) == pytest.approx(100.0)
    assert indicators.rsi(rising[::-1].copy(), 5) == pytest.approx(0.0)
    assert indicators.rsi(np.full(60, 3.0), 5) == 50.0


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("seed", range(5))
def test_only_a_fixed_number_of_present_bars_counts(name: str, seed: int) -> None:
    call, _, bars_of = CALLS[name]
    needed = bars_of(6)
    series = bars(seed, 100)

    def at(change: Callable[[FloatArray], FloatArray]) -> Any:
        high, low, close = map(change, series)
        return call(high, low, close, 6)

    shortest = at(lambda values: values[-needed:])
    assert not np.isnan(shortest).any()
    assert at(lambda values: values) == shortest
    gaps = np.sort(np.random.default_rng(seed).choice(np.arange(101), 20))
    assert at(lambda values: np.insert(values, gaps, math.nan)) == shortest
    assert np.isnan(at(lambda values: values[1 - needed :])).all()
    assert np.isnan(at(lambda values: values[:0])).all()


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
