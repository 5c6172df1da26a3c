import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from backend.statistics.mean_interval import grid_interval, holm
from simulator.errors import DataError


def test_nested_seeds_are_students_interval_of_their_means() -> None:
    # Means 1, 2, 3: error sqrt(1/3), t(2) at 97.5 % is 4.302653.
    found = grid_interval(np.array([[0.0, 2.0], [1.0, 3.0], [2.0, 4.0]]), nested=True)
    half = 4.302653 * math.sqrt(1.0 / 3.0)
    assert (found.low, found.high) == pytest.approx((2.0 - half, 2.0 + half), rel=1e-5)
    assert found.p_value == pytest.approx(0.0741799, abs=1e-6)  # of t = 3.4641 with 2 degrees
    assert (found.degrees, found.window_spread) == (2, 0.0)


def test_seeds_that_change_nothing_are_one_seed() -> None:
    windows = np.array([0.01, -0.02, 0.03, 0.01])
    alone = grid_interval(windows[None], nested=False)
    repeated = grid_interval(np.tile(windows, (5, 1)), nested=False)
    assert (repeated.low, repeated.high) == pytest.approx((alone.low, alone.high))
    assert repeated.p_value == pytest.approx(alone.p_value)


@pytest.mark.parametrize(
    ("nested", "between_seeds", "between_windows"),
    [(True, 0.0, 1.0), (True, 1.0, 1.0), (False, 1.0, 1.0), (False, 0.2, 1.0)],
)
def test_the_interval_holds_the_mean_as_often_as_it_says(
    nested: bool, between_seeds: float, between_windows: float
) -> None:
    """1,000 tables of 5 seeds and 12 windows whose mean is 0. Pooled, their interval would hold it in 60 to 80 %."""
    rng, held, count = np.random.default_rng(5), 0, 1_000
    for _ in range(count):
        shape = (5, 12) if nested else (1, 12)
        table = between_seeds * rng.standard_normal((5, 1)) + between_windows * rng.standard_normal(shape)
        found = grid_interval(table + 0.5 * rng.standard_normal((5, 12)), nested=nested)
        held += found.low <= 0.0 <= found.high
        assert (found.p_value < 0.05) == (not found.low <= 0.0 <= found.high)
    assert 0.93 <= held / count <= 0.995


@given(arrays(np.float64, (4, 6), elements=st.floats(-1.0, 1.0)), st.booleans())
def test_the_order_of_seeds_and_windows_means_nothing(values: np.ndarray, nested: bool) -> None:
    found, turned = grid_interval(values, nested=nested), grid_interval(values[::-1, ::-1], nested=nested)
    assert (found.low, found.high) == pytest.approx((turned.low, turned.high), abs=1e-9)
    assert found.low <= found.mean <= found.high and 0.0 <= found.p_value <= 1.0


def test_too_few_are_refused_with_how_many_it_takes() -> None:
    with pytest.raises(DataError, match="takes 2"):
        grid_interval(np.zeros((1, 6)), nested=True)
    with pytest.raises(DataError, match="takes 2"):
        grid_interval(np.zeros((1, 1)), nested=False)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20))
def test_holm_keeps_the_order_and_lowers_nothing(values: list[float]) -> None:
    adjusted = holm(values)
    assert (adjusted >= np.array(values) - 1e-12).all() and (adjusted <= 1.0).all()
    assert (np.diff(adjusted[np.argsort(values, kind="stable")]) >= 0.0).all()


@pytest.mark.parametrize("values", [[1.5], [-0.1], [np.nan], [[0.1]]])
def test_an_invalid_p_value_is_refused(values: Any) -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        holm(values)
