"""The three alignments are one interface: weights that count rollouts, never calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.training.algorithm.advantages import group_advantages
from backend.training.algorithm.alignment import AlignmentMethod, align, target_count

METHODS: tuple[AlignmentMethod, ...] = ("duplicate_drop", "fractional", "none")
counts_of = st.lists(st.integers(0, 7), min_size=1, max_size=8)


def split(row: np.ndarray, counts: list[int]) -> list[list[float]]:
    return [part.tolist() for part in np.split(row, np.cumsum(counts)[:-1])]


def test_target_count_known(known: dict[str, Any]) -> None:
    case = known["target_count"]
    assert target_count({int(d): n for d, n in case["histogram"].items()}, case["quantile"]) == case["target"]


@given(st.dictionaries(st.integers(0, 20), st.integers(1, 50), min_size=1), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_the_target_is_the_smallest_that_covers_the_quantile(histogram: dict[int, int], quantile: float) -> None:
    target, total = target_count(histogram, quantile), sum(histogram.values())
    covered = sum(n for d, n in histogram.items() if d <= target)
    below = sum(n for d, n in histogram.items() if d < target)
    assert covered >= quantile * total - 1e-6
    assert target == 1 or below < quantile * total


@pytest.mark.parametrize("histogram", [{}, {1: 0}, {1: -1, 2: 3}, {-1: 3}])
def test_a_histogram_without_rollouts_is_refused(histogram: dict[int, int]) -> None:
    with pytest.raises(ValueError, match="histogram"):
        target_count(histogram)


def test_fractional_known(known: dict[str, Any]) -> None:
    case = known["fractional"]
    counts = [len(calls) for calls in case["sub_rewards"]]
    weights = align(counts, "fractional", 0, np.random.default_rng(0))
    for got, want in zip(split(weights, counts), case["weights"], strict=True):
        assert got == pytest.approx(want)
    no_calls = known["degenerate"]["no_calls"]
    weights = align(no_calls["counts"], "fractional", 0, np.random.default_rng(0))
    assert split(weights, no_calls["counts"]) == no_calls["weights"]


@given(counts_of, st.sampled_from(METHODS), st.integers(1, 6), st.integers(0, 99))
def test_weights_sum_to_one_and_each_rollout_counts_alike(
    counts: list[int], method: AlignmentMethod, target: int, seed: int
) -> None:
    weights = align(counts, method, target, np.random.default_rng(seed))
    assert weights.shape == (sum(counts),)
    assert (weights >= 0.0).all()
    if sum(counts):
        assert weights.sum() == pytest.approx(1.0)
    if method != "none":
        callers = sum(count > 0 for count in counts)
        for part in split(weights, counts):
            assert sum(part) == pytest.approx(1.0 / callers if part else 0.0)


@given(st.lists(st.integers(1, 7), min_size=1, max_size=6), st.integers(1, 6), st.integers(0, 99))
def test_duplicate_drop_only_copies_or_only_drops(counts: list[int], target: int, seed: int) -> None:
    weights = align(counts, "duplicate_drop", target, np.random.default_rng(seed)) * target * len(counts)
    for count, part in zip(counts, split(weights, counts), strict=True):
        assert part == pytest.approx(np.round(part)), "whole multiplicities"
        assert (min(part) >= 1 - 1e-9) if count <= target else (max(part) <= 1 + 1e-9)
    again = align(counts, "duplicate_drop", target, np.random.default_rng(seed)) * target * len(counts)
    assert (weights == again).all()


def test_duplicate_drop_over_seeds_known(known: dict[str, Any]) -> None:
    case = known["duplicate_drop_over_seeds"]
    counts = [len(calls) for calls in case["sub_rewards"]]
    rewards = np.concatenate([np.array(calls, float) for calls in case["sub_rewards"]])
    rng = np.random.default_rng(11)
    draws = np.array([align(counts, "duplicate_drop", case["target"], rng) for _ in range(20_000)])
    means = draws @ rewards
    variances = draws @ rewards**2 - means**2
    items = case["target"] * len(counts)
    # Standard errors are about 3e-4, 2e-5, 2e-4 and 7e-3: the bounds are some four of them.
    assert means.mean() == pytest.approx(case["expected_mean"], abs=1.3e-3)
    assert means.var() == pytest.approx(case["variance_of_mean"], abs=9e-5)
    assert variances.mean() == pytest.approx(case["expected_population_variance"], abs=8e-4)
    assert draws.mean(0) * items == pytest.approx(np.concatenate(case["expected_multiplicity"]), abs=0.03)
    assert draws.mean(0) == pytest.approx(align(counts, "fractional", 0, rng), abs=0.004)


def test_one_draw_of_duplicate_drop_known(known: dict[str, Any]) -> None:
    case = known["duplicate_drop_one_draw"]
    rewards = np.concatenate([np.array(calls, float) for calls in case["sub_rewards"]])
    drawn = np.array([3, 1, 1, 1, 1, 1, 0]) / 8.0
    seeds = range(2000)
    draws = (align([2, 5], "duplicate_drop", case["target"], np.random.default_rng(seed)) for seed in seeds)
    assert any(np.allclose(drawn, weights) for weights in draws), "the case's draw is one that comes up"
    advantages, degenerate = group_advantages(rewards, drawn)
    assert not degenerate
    assert drawn @ rewards == pytest.approx(case["mean"])
    assert np.sqrt(drawn @ (rewards - case["mean"]) ** 2) == pytest.approx(case["std"])
    assert advantages[[0, 1, 3]] == pytest.approx(list(case["advantage_of"].values()))


def test_none_counts_calls() -> None:
    assert align([1, 3, 0], "none", 0, np.random.default_rng(0)).tolist() == [0.25] * 4


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        align([1, -1], "fractional", 0, np.random.default_rng(0))
    with pytest.raises(ValueError, match="target"):
        align([1], "duplicate_drop", 0, np.random.default_rng(0))
