"""The weight of the entropy bonus that follows a target: numbers worked out by hand, and a loop that ends there. And
the tokens that are held back: those of which the entropy of a softmax falls most."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backend.training.algorithm.exploration import SPAN, held_tokens, next_entropy_weight, token_covariances

weights = st.floats(1e-6, 1.0)
nats = st.floats(1e-3, 10.0)


def test_the_weight_moves_by_the_relative_distance_from_the_target() -> None:
    assert next_entropy_weight(0.01, 0.2, 0.2, 0.01) == pytest.approx(0.01)
    assert next_entropy_weight(0.01, 0.0, 0.2, 0.01) == pytest.approx(0.01 * math.exp(0.5))
    assert next_entropy_weight(0.01, 0.1, 0.2, 0.01) == pytest.approx(0.01 * math.exp(0.25))
    assert next_entropy_weight(0.01, 0.4, 0.2, 0.01) == pytest.approx(0.01 * math.exp(-0.5))


@given(weights, nats, nats, weights)
def test_surer_than_wanted_raises_it_within_bounds(weight: float, entropy: float, target: float, first: float) -> None:
    weight = min(first * SPAN, max(first / SPAN, weight))
    after = next_entropy_weight(weight, entropy, target, first)
    assert first / SPAN <= after <= first * SPAN
    assert (after - weight) * (target - entropy) >= 0.0
    assert abs(math.log(after / weight)) <= 1.0 + 1e-9
    # It is the entropy in units of the target that counts.
    assert after == pytest.approx(next_entropy_weight(weight, 3.0 * entropy, 3.0 * target, first))


def test_bounds_hold_however_long_a_policy_cannot_be_opened() -> None:
    weight = 0.01
    for _ in range(100):
        weight = next_entropy_weight(weight, 0.0, 0.1, 0.01)
    assert weight == pytest.approx(0.01 * SPAN)
    for _ in range(100):
        weight = next_entropy_weight(weight, 5.0, 0.1, 0.01)
    assert weight == pytest.approx(0.01 / SPAN)


def test_a_softmax_that_learns_by_it_ends_at_the_target() -> None:
    """Of J + weight H over three arms the policy would end with one of them; with the weight that follows the target
    it ends with the target's entropy, and the weight is the one of which the maximum has this entropy."""
    rewards, target, first = torch.tensor([0.3, 0.2, 0.0], dtype=torch.float64), 0.5, 0.001
    logits, weight = torch.zeros(3, dtype=torch.float64, requires_grad=True), first
    for _ in range(1500):
        log_probs = torch.log_softmax(logits, 0)
        entropy = -(log_probs.exp() * log_probs).sum()
        objective = log_probs.exp() @ rewards + weight * entropy
        (gradient,) = torch.autograd.grad(objective, logits)
        with torch.no_grad():
            logits += gradient / 0.1
        weight += 0.01 * (next_entropy_weight(weight, entropy.item(), target, first) - weight)
    assert entropy.item() == pytest.approx(target, abs=0.01)
    best = np.exp(rewards.numpy() / weight)
    np.testing.assert_allclose(log_probs.exp().detach().numpy(), best / best.sum(), atol=0.01)


@pytest.mark.parametrize(
    "bad", [{"weight": 0.0}, {"target": 0.0}, {"first": -1.0}, {"entropy": -0.1}, {"entropy": math.nan}]
)
def test_numbers_that_cannot_be_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no weight follows"):
        next_entropy_weight(**{"weight": 0.1, "entropy": 0.2, "target": 0.3, "first": 0.1, **bad})


def test_covariances_are_those_worked_out_by_hand() -> None:
    # Mean log-prob -2, mean advantage over the three tokens 1/3.
    rows = token_covariances([[-1.0, -3.0], [-2.0]], [1.0, -1.0])
    np.testing.assert_allclose(rows[0], [2 / 3, -2 / 3])
    np.testing.assert_allclose(rows[1], [0.0])
    assert [row.tolist() for row in token_covariances([[], []], [1.0, -1.0])] == [[], []]
    with pytest.raises(ValueError, match="2 calls have 1 advantages"):
        token_covariances([[], []], [1.0])


def test_the_entropy_of_a_softmax_falls_by_the_covariance() -> None:
    """The theorem the selection rests on: dH = -rate sum_a pi (log pi - mean) pi (A - mean), for logits that follow
    the policy gradient; with pi the same for all actions' weights it is the covariance over the samples."""
    logits = torch.tensor([1.2, 0.1, -0.7, -0.2], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([0.4, -0.3, 0.9, -0.5], dtype=torch.float64)

    def entropy_of(at: torch.Tensor) -> torch.Tensor:
        log_probs = torch.log_softmax(at, 0)
        return -(log_probs.exp() * log_probs).sum()

    # A natural gradient moves each logit by its advantage.
    rate = 1e-5
    change = (entropy_of(logits + rate * advantages) - entropy_of(logits)).item() / rate
    log_probs = torch.log_softmax(logits, 0).detach()
    counts = (log_probs.exp() * 1e6).round().long().tolist()  # as many samples of each action as it is likely
    rows = token_covariances([log_probs[i].repeat(n).numpy() for i, n in enumerate(counts)], advantages.tolist())
    assert change == pytest.approx(-np.concatenate(rows).mean(), rel=1e-3)


@given(
    st.lists(st.tuples(st.lists(st.floats(-9.0, 0.0), max_size=6), st.floats(-1.0, 1.0)), min_size=1, max_size=6),
    st.floats(0.0, 0.99),
)
def test_the_largest_covariances_are_held_and_none_below_zero(
    calls: list[tuple[list[float], float]], share: float
) -> None:
    logps, advantages = [row for row, _ in calls], [one for _, one in calls]
    held, covariances = held_tokens(logps, advantages, share), token_covariances(logps, advantages)
    assert [len(one) for one in held] == [len(row) for row in logps]
    marks, values = np.concatenate(held), np.concatenate(covariances)
    assert marks.sum() <= share * len(marks)
    assert not marks.any() or values[marks].min() > 0.0
    if marks.sum() < int(share * len(marks)):
        assert not (values[~marks] > 0.0).any()
    elif marks.any():
        assert values[marks].min() >= values[~marks].max(initial=-np.inf)


def test_a_share_of_all_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be held back"):
        held_tokens([[-1.0]], [1.0], 1.0)
