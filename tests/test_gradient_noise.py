"""The estimators of `benchmarks/gradient_moments.py`, and what `training.gradient_noise` makes of the calls."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.training.algorithm.alignment import align
from backend.training.algorithm.credit import TrajectoryCredit
from backend.training.algorithm.rewards import RewardParts
from backend.training.algorithm.trajectory import Trajectory
from benchmarks.bench_training_gradient_noise import Way, coefficients, tokens_to_train
from benchmarks.gradient_moments import (
    moments,
    off_diagonal_mean,
    p_of_no_mean,
    resamples,
    signal,
    variance,
)

STEPS = 6
MEAN = np.array([0.5, -0.3, 0.0, 0.2])
SPREAD = np.array([1.0, 0.5, 2.0, 0.1])
OF_DRAWS = 0.7  # standard deviation of a draw in each coordinate


@pytest.mark.parametrize("draws", [1, 4])
def test_signal_and_variance_are_right_on_average(draws: int) -> None:
    """Over many experiments of few steps; a step's gradient is noisy, and each of its draws has noise of its own."""
    rng = np.random.default_rng(1)
    signals, variances, biases = [], [], []
    for _ in range(4000):
        steps = MEAN + SPREAD * rng.standard_normal((STEPS, 4))
        drawn = steps[:, None] + OF_DRAWS * rng.standard_normal((STEPS, draws, 4))
        estimated = moments(drawn.mean(1), (drawn**2).sum(2).mean(1), steps - 0.4)
        signals.append(signal(estimated.products)[0])
        variances.append(variance(estimated)[0])
        biases.append(signal(estimated.differences)[0])
    expected = (MEAN @ MEAN, SPREAD @ SPREAD + 4 * OF_DRAWS**2, 4 * 0.4**2)
    for values, right in zip((signals, variances, biases), expected, strict=True):
        assert abs(np.mean(values) - right) < 4 * np.std(values) / len(values) ** 0.5
        assert np.std(values) / len(values) ** 0.5 < 0.06 * right


@given(st.integers(2, 9), st.integers(1, 5), st.integers(0, 2**31))
@settings(max_examples=20, deadline=None)
def test_without_draws_the_variance_is_the_trace_of_the_covariance(steps: int, size: int, seed: int) -> None:
    gradients = np.random.default_rng(seed).normal(0.3, 1.0, (steps, size))
    estimated = moments(gradients, (gradients**2).sum(1), gradients)
    assert variance(estimated)[0] == pytest.approx(gradients.var(axis=0, ddof=1).sum())
    assert not estimated.differences.any()


def test_roles_side_by_side_are_one_longer_gradient() -> None:
    rng = np.random.default_rng(2)
    first, second, others = rng.normal(size=(5, 3)), rng.normal(size=(5, 2)), rng.normal(size=(5, 5))
    both = np.hstack([first, second])
    whole = moments(both, (both**2).sum(1), others)
    parts = moments(first, (first**2).sum(1), others[:, :3]) + moments(second, (second**2).sum(1), others[:, 3:])
    assert variance(parts) == pytest.approx(variance(whole))
    assert signal(parts.products) == pytest.approx(signal(whole.products))
    assert signal(parts.differences) == pytest.approx(signal(whole.differences))


def test_a_resample_pairs_no_step_with_its_own_copy() -> None:
    rng = np.random.default_rng(3)
    gradients = rng.normal(size=(5, 3))
    products = gradients @ gradients.T
    counts = resamples(5, 20, 4)
    assert (counts.sum(1) == 5).all()
    for count, mean in zip(counts, off_diagonal_mean(products, counts), strict=True):
        chosen = np.repeat(np.arange(5), count)
        pairs = [products[s, t] for s in chosen for t in chosen if s != t]
        assert mean == pytest.approx(np.mean(pairs))


def test_a_mean_is_told_from_none() -> None:
    rng = np.random.default_rng(5)
    noise = rng.normal(size=(200, 20, 50))
    values = np.array([p_of_no_mean(steps @ steps.T, 199, 6) for steps in noise])
    assert 0.01 <= np.mean(values <= 0.05) <= 0.1  # 0.05 and three standard errors
    shifted = noise[0] + 0.5
    assert p_of_no_mean(shifted @ shifted.T, 199, 6) == pytest.approx(1 / 200)


def credit(weights: np.ndarray, counts: list[int], advantages: np.ndarray) -> list[TrajectoryCredit]:
    """Calls of ten tokens, of which the first six are read by a pass: the sixth is the last that was sampled."""
    mask = np.arange(10) == 5
    places = [(rollout, ordinal) for rollout, count in enumerate(counts) for ordinal in range(count)]
    return [
        TrajectoryCredit(
            Trajectory(
                role="trader",
                query="query",
                rollout=rollout,
                ordinal=ordinal,
                ids=np.ones(10, np.int32),
                mask=mask,
                sampled_logps=np.where(mask, -1.0, 0.0).astype(np.float32),
                policy_version="trader-0",
                valid=True,
                format_score=1.0,
                expert=0.5,
                truncated=False,
            ),
            RewardParts(True, 1.0, 0.5, 0.5),
            0.5,
            float(weight),
            float(advantage),
        )
        for (rollout, ordinal), weight, advantage in zip(places, weights, advantages, strict=True)
    ]


@pytest.mark.parametrize("target", [1, 2, 8])
def test_duplicate_drop_is_fractional_on_average_where_advantages_are_fixed(target: int) -> None:
    """So what it changes of the mean gradient comes from the advantages, whose mean and sigma are weighted."""
    counts, rng = [1, 3, 0, 2, 4], np.random.default_rng(7)
    advantages = rng.normal(size=sum(counts))
    way = Way("drop", "duplicate_drop", None, target)
    drawn = [credit(align(counts, "duplicate_drop", target, rng), counts, advantages) for _ in range(1500)]
    drawn_coefficients = np.array([coefficients(calls) for calls in drawn])
    right = coefficients(credit(align(counts, "fractional", target, rng), counts, advantages))
    assert (
        np.abs(drawn_coefficients.mean(0) - right) <= 4 * drawn_coefficients.std(0) / len(drawn) ** 0.5 + 1e-12
    ).all()
    # Four rollouts of `target` items each, six tokens an item.
    assert [tokens_to_train(calls, way) for calls in drawn[:20]] == pytest.approx([4 * target * 6] * 20)


def test_a_call_without_a_gradient_is_no_work() -> None:
    counts = [2, 1]
    calls = credit(align(counts, "fractional", 1, np.random.default_rng(0)), counts, np.array([1.0, 0.0, -1.0]))
    assert tokens_to_train(calls, Way("fractional", "fractional")) == 12
