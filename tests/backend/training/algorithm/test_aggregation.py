"""The aggregations of tokens to one number, CISPO, and masked importance weights, each against loops and their laws."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from backend.training.algorithm.objective import (
    Aggregation,
    PolicyLoss,
    aggregate,
    clipped_objective,
    importance_cut,
    importance_weights,
    masked_mean,
    normalizer,
)

AGGREGATIONS: tuple[Aggregation, ...] = get_args(Aggregation)
LOSSES: tuple[PolicyLoss, ...] = get_args(PolicyLoss)
LENGTH = 7
seeds = st.integers(0, 10_000)
kinds = st.sampled_from(AGGREGATIONS)
losses = st.sampled_from(LOSSES)

Batch = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def batch(seed: int, rows: int = 4, length: int = 6) -> Batch:
    """new, old (B, T), mask (B, T), advantages, weights (B,); a row may have no sampled token, but the first has."""
    rng = torch.Generator().manual_seed(seed)
    new, old = -3.0 * torch.rand(2, rows, length, generator=rng, dtype=torch.float64)
    mask = torch.rand(rows, length, generator=rng) < 0.5
    mask[0, 1] = True
    advantages = torch.randn(rows, generator=rng, dtype=torch.float64)
    weights = torch.rand(rows, generator=rng, dtype=torch.float64) + 0.1
    return new.requires_grad_(), old, mask, advantages, weights


def objective(data: Batch, how: Aggregation, loss: PolicyLoss = "clip", **options: Any) -> Tensor:
    value, _ = clipped_objective(*data, 0.2, 0.28, policy_loss=loss, aggregation=how, constant_length=LENGTH, **options)
    return value


def by_loops(data: Batch, how: Aggregation, loss: PolicyLoss) -> Tensor:
    """The formulas of the papers, a token at a time."""
    new, old, mask, advantages, weights = data
    above, below = torch.zeros((), dtype=torch.float64), 0.0
    for i in range(len(new)):
        tokens = [t for t in range(new.shape[1]) if mask[i, t]]
        for t in tokens:
            ratio = torch.exp(new[i, t] - old[i, t])
            clipped = min(max(ratio.item(), 0.8), 1.28)
            if loss == "cispo":
                value = clipped * advantages[i] * new[i, t]
            else:
                value = torch.min(ratio * advantages[i], ratio.clamp(0.8, 1.28) * advantages[i])
            above = above + weights[i] * value * (1.0 / len(tokens) if how == "grpo" else 1.0)
        counted = {"grpo": 1, "dr_grpo": LENGTH, "dapo": len(tokens), "bnpo": len(tokens)}[how]
        below += weights[i].item() * counted
    return above / below


@given(seeds, kinds, losses)
@settings(deadline=None)  # the first one starts torch
def test_every_aggregation_is_its_formula(seed: int, how: Aggregation, loss: PolicyLoss) -> None:
    data = batch(seed)
    got, want = objective(data, how, loss), by_loops(data, how, loss)
    assert got.item() == pytest.approx(want.item(), abs=1e-12)
    gradients = [torch.autograd.grad(one, data[0])[0] for one in (got, want)]
    torch.testing.assert_close(gradients[0], gradients[1])


@given(seeds, kinds, losses, st.integers(2, 5))
def test_a_rollout_that_calls_more_often_weighs_no_more(
    seed: int, how: Aggregation, loss: PolicyLoss, calls: int
) -> None:
    """d equal calls that share the weight of one leave the objective as it was: d_k is in no denominator."""
    data = batch(seed)
    repeats = torch.tensor([calls, 1, 1, 1])
    more = [one.repeat_interleave(repeats, 0) for one in data]
    more[4] = more[4] / repeats.repeat_interleave(repeats)
    again = objective(tuple(more), how, loss)  # type: ignore[arg-type] # five tensors, as it wants
    assert again.item() == pytest.approx(objective(data, how, loss).item(), abs=1e-12)


@given(seeds, kinds, losses)
def test_micro_batches_with_the_total_add_up(seed: int, how: Aggregation, loss: PolicyLoss) -> None:
    data = batch(seed)
    total = normalizer(data[4], data[2].sum(-1), how, LENGTH)
    parts = [objective(tuple(x[rows] for x in data), how, loss, total=total) for rows in (slice(0, 1), slice(1, 4))]  # type: ignore[arg-type] # five tensors
    whole = objective(data, how, loss)
    assert (parts[0] + parts[1]).item() == pytest.approx(whole.item(), abs=1e-12)


@given(seeds, kinds)
def test_the_normaliser_adds_up_and_is_the_same_for_arrays(seed: int, how: Aggregation) -> None:
    _, _, mask, _, weights = batch(seed)
    tokens = mask.sum(-1)
    parts = [normalizer(weights[rows], tokens[rows], how, LENGTH) for rows in (slice(0, 3), slice(3, 4))]
    whole = normalizer(weights, tokens, how, LENGTH)
    assert sum(parts) == pytest.approx(whole)
    assert normalizer(weights.numpy(), tokens.numpy(), how, LENGTH) == pytest.approx(whole)


@given(seeds)
def test_over_one_batch_bnpo_is_dapo_and_equal_lengths_make_all_means_one(seed: int) -> None:
    data = batch(seed)
    assert objective(data, "bnpo").item() == objective(data, "dapo").item()
    full = (*data[:2], torch.ones_like(data[2]), *data[3:])
    assert objective(full, "dapo").item() == pytest.approx(objective(full, "grpo").item())
    assert LENGTH * objective(full, "dr_grpo").item() == pytest.approx(6 * objective(full, "grpo").item())


@given(seeds)
def test_cispo_keeps_every_token_and_bounds_its_weight(seed: int) -> None:
    data = batch(seed)
    new, old, mask, advantages, weights = data
    value, stats = clipped_objective(*data, 0.2, 0.28, policy_loss="cispo", aggregation="dapo")
    (gradient,) = torch.autograd.grad(value, new)
    bounded = (new - old).exp().clamp(0.8, 1.28) * (weights * advantages)[:, None] / (weights[:, None] * mask).sum()
    torch.testing.assert_close(gradient, (bounded * mask).detach())
    assert stats.clipped.tolist() == [not 0.8 <= ratio <= 1.28 for ratio in stats.ratio.tolist()]


@pytest.mark.parametrize(("loss", "how"), [("cispo", "grpo"), ("clip", "dapo"), ("clip", "dr_grpo"), ("cispo", "dapo")])
@pytest.mark.parametrize("ratio", ["sequence", "trajectory"])
def test_what_is_over_tokens_refuses_a_ratio_of_calls(loss: PolicyLoss, how: Aggregation, ratio: str) -> None:
    with pytest.raises(ValueError, match=ratio):
        objective(batch(0), how, loss, ratio=ratio)


def test_dr_grpo_needs_its_length() -> None:
    for call in (
        lambda: normalizer(torch.ones(2), torch.ones(2), "dr_grpo"),
        lambda: aggregate(torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool), torch.ones(1), "dr_grpo"),
    ):
        with pytest.raises(ValueError, match="length"):
            call()


@given(seeds, st.floats(1.01, 5.0))
def test_importance_weights_are_cut_as_their_kind_says(seed: int, cap: float) -> None:
    new, old, mask, _, _ = batch(seed)
    ratio = (new - old).exp().detach()[mask]
    truncated, masked = (importance_weights(new, old, mask, cap, kind) for kind in ("truncate", "mask"))
    inside = (ratio <= cap) & (ratio >= 1.0 / cap)
    assert torch.equal(truncated[mask], ratio.clamp(max=cap))
    assert torch.equal(masked[mask], torch.where(inside, ratio, 0.0))
    assert torch.equal(importance_cut(truncated, cap)[mask], ratio >= cap)
    assert torch.equal(importance_cut(masked, cap)[mask], ~inside | (ratio == cap))
    for weights in (truncated, masked, importance_weights(new, old, mask, cap, "none")):
        assert not weights.requires_grad
        assert (weights[~mask] == 1.0).all()
        assert not importance_cut(weights, cap)[~mask].any()
    assert (importance_weights(new, old, mask, cap, "none") == 1.0).all()


def test_a_masked_token_stays_in_the_denominator() -> None:
    new = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    mask, one = torch.ones(1, 2, dtype=torch.bool), torch.ones(1, dtype=torch.float64)
    importance = importance_weights(new, torch.tensor([[-2.0, 0.0]]), mask, 2.0, "mask")
    assert importance.tolist() == [[0.0, 1.0]]
    for how in ("grpo", "dapo"):
        value = objective((new, new.detach(), mask, one, one), how, importance=importance)
        assert value.item() == pytest.approx(0.5)
    assert masked_mean(importance, mask).item() == pytest.approx(0.5)
