from collections.abc import Iterable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from backend.statistics.splits import TrainTest, combinatorial, purged_folds, walk_forward
from simulator.errors import DataError

Bars = st.integers(40, 400)
Horizons = st.integers(0, 12)


def every(ranges: Iterable[tuple[int, int]]) -> set[int]:
    return {bar for start, stop in ranges for bar in range(start, stop)}


def check_apart(folds: list[TrainTest], bars: int, horizon: int, embargo: int) -> None:
    """No label of a training bar (its bar and the `horizon` after it) lies in a test, nor a bar of the embargo in the
    training; nothing lies outside of the history."""
    for fold in folds:
        tested, learnt = every(fold.tests), every(fold.train)
        labels = every((bar, bar + horizon + 1) for bar in learnt)
        assert learnt and tested and not tested & labels
        assert not learnt & every((stop, stop + embargo) for _, stop in fold.tests)
        assert min(learnt | tested) >= 0 and max(learnt | tested) < bars


@given(Bars, st.integers(1, 6), Horizons, st.booleans())
def test_walk_forward_never_learns_from_what_it_is_tested_on(
    bars: int, folds: int, horizon: int, anchored: bool
) -> None:
    assume(bars // 2 > horizon + 1)
    found = walk_forward(bars, folds, horizon, anchored=anchored)
    check_apart(found, bars, horizon, 0)
    assert all(max(every(fold.train)) < min(every(fold.tests)) for fold in found)  # the past never learns from later
    # The tests follow each other without a gap, to the last bar.
    assert sorted(bar for fold in found for bar in every(fold.tests)) == list(range(bars // 2, bars))
    lengths = [len(every(fold.train)) for fold in found]
    assert lengths == sorted(lengths) and (anchored or len(set(lengths)) == 1)


@given(Bars, st.integers(2, 7), st.data(), st.integers(0, 3), st.integers(0, 3))
def test_combinations_are_purged_and_embargoed(
    bars: int, groups: int, data: st.DataObject, horizon: int, embargo: int
) -> None:
    tested = data.draw(st.integers(1, groups - 1))
    assume(bars // groups > horizon + embargo + 1)
    found = combinatorial(bars, groups, tested, horizon, embargo)
    check_apart(found, bars, horizon, embargo)
    counts = [sum(bar in every(fold.tests) for fold in found) for bar in (0, bars // 2, bars - 1)]
    assert len(set(counts)) == 1  # each bar is tested equally often


def test_purged_folds_of_a_small_history() -> None:
    # Three parts of 10 bars, labels of 2 bars, an embargo of 1: worked out by hand.
    first, second, third = purged_folds(30, 3, 2, 1)
    assert (first.tests, first.train) == (((0, 10),), ((11, 30),))
    assert (second.tests, second.train) == (((10, 20),), ((0, 8), (21, 30)))
    assert (third.tests, third.train) == (((20, 30),), ((0, 18),))


def test_too_few_bars_are_refused_with_their_number() -> None:
    with pytest.raises(DataError, match="12 bars are too few"):
        walk_forward(12, 3, 8)
    with pytest.raises(DataError, match="6 bars are too few"):
        combinatorial(6, 3, 2, 4, 4)
