"""Of very many bars the interval is that of some put together: the wealth is the same, and the interval nearly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.evaluation import evidence
from backend.statistics.bootstrap import window_intervals


@given(st.integers(1, 9), st.integers(0, 8), st.integers(0, 99))
def test_returns_that_are_put_together_keep_the_wealth(count: int, left: int, seed: int) -> None:
    returns = np.random.default_rng(seed).uniform(-0.5, 0.5, 12 * count + min(left, count - 1))
    together = evidence._compounded(returns, count)
    assert len(together) == 12
    assert np.prod(1.0 + together) == pytest.approx(np.prod(1.0 + returns[len(returns) % count :]))


def test_the_interval_is_nearly_the_same() -> None:
    returns = np.random.default_rng(3).standard_t(4, 6_000) * 0.002 + 0.0002
    one = window_intervals(returns, 8_760.0, samples=400)
    five = window_intervals(evidence._compounded(returns, 5), 8_760.0 / 5, samples=400)
    assert five.total_return.low == pytest.approx(one.total_return.low, rel=0.1)
    assert five.total_return.high == pytest.approx(one.total_return.high, rel=0.1)
    assert list(five.sharpe) == pytest.approx(list(one.sharpe), rel=0.1)
