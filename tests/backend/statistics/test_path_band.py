"""The band of paths of one window: its shape, known answers, and windows of which nothing can be said."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.statistics.bootstrap import path_band


@settings(max_examples=25, deadline=None)
@given(st.integers(30, 900), st.integers(0, 2**32 - 1))
def test_a_band_goes_from_the_start_to_the_last_bar(count: int, seed: int) -> None:
    returns = np.random.default_rng(seed).standard_t(4, count) * 0.005
    band = path_band(np.maximum(returns, -0.5), samples=50)
    assert band is not None
    assert (band.bars[0], band.bars[-1]) == (0, count) and (np.diff(band.bars) > 0).all() and len(band.bars) <= 251
    assert (band.low <= band.high).all() and (band.deep <= band.shallow).all() and (band.shallow <= 0.0).all()
    assert [float(one[0]) for one in (band.low, band.high, band.deep, band.shallow)] == [0.0] * 4


@pytest.mark.parametrize("count", [200, 10_000])
def test_independent_returns_have_the_band_of_a_random_walk(count: int) -> None:
    """The ends of the middle 95 % of a random walk's logarithm lie 1.96 deviations around its mean."""
    logs = np.random.default_rng(5).normal(0.0, 0.01, count)
    band = path_band(np.expm1(logs), samples=4_000)
    assert band is not None
    middle = np.searchsorted(band.bars, count // 2)
    for place in (int(middle), -1):
        bars = int(band.bars[place])
        expected = logs.mean() * bars + np.array([-1.96, 1.96]) * logs.std() * np.sqrt(bars)
        ends = np.log1p([band.low[place], band.high[place]])
        np.testing.assert_allclose(ends, expected, atol=0.12 * logs.std() * np.sqrt(bars) * 1.96)


def test_returns_that_follow_one_another_have_a_wider_band() -> None:
    """Each return comes four times in a row: a band that broke them up would be half as wide."""
    one = np.random.default_rng(2).normal(0.0, 0.01, 100)
    together, apart = path_band(np.repeat(one, 4)), path_band(np.random.default_rng(1).permutation(np.repeat(one, 4)))
    assert together is not None and apart is not None
    assert together.high[-1] - together.low[-1] > 1.4 * (apart.high[-1] - apart.low[-1])


@pytest.mark.parametrize(
    "returns",
    [np.zeros(100), np.full(100, 0.01), np.full(20, 0.01), np.r_[np.full(60, 0.01), -1.0], np.full(50, np.nan)],
)
def test_where_nothing_can_be_said_there_is_no_band(returns: np.ndarray) -> None:
    assert path_band(returns) is None
