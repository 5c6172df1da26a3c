"""The log-prob of a token and the entropy that it was drawn at, in value and gradient."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from backend.policies.logprobs import _OfTargets


def plainly(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Both as they are defined."""
    log_probs = torch.log_softmax(logits, -1)
    return log_probs.gather(-1, targets[:, None]), -(log_probs.exp() * log_probs).sum(-1, keepdim=True)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 9), st.sampled_from([0.1, 1.0, 30.0]), st.integers(0, 10_000))
def test_values_and_gradients_are_those_of_the_definition(rows: int, words: int, scale: float, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(rows, words, generator=rng, dtype=torch.float64)
    targets = torch.randint(0, words, (rows,), generator=rng)
    weights = torch.randn(2, rows, 1, generator=rng, dtype=torch.float64)
    for entropy_gradient in (False, True):
        found, expected = logits.clone().requires_grad_(), logits.clone().requires_grad_()
        ours, theirs = _OfTargets.apply(found, targets, entropy_gradient), plainly(expected, targets)
        torch.testing.assert_close(ours, theirs)
        assert ours[1].requires_grad == entropy_gradient
        (ours[0] * weights[0] + ours[1] * weights[1]).sum().backward()
        entropies = theirs[1] if entropy_gradient else theirs[1].detach()
        (theirs[0] * weights[0] + entropies * weights[1]).sum().backward()
        torch.testing.assert_close(found.grad, expected.grad)


def test_a_word_that_cannot_be_said_adds_nothing() -> None:
    """Its logit is minus infinity, or so low that its probability is 0 in float32."""
    logits = torch.tensor([[0.0, float("-inf"), 1.0, -1e4]], requires_grad=True)
    logps, entropy = _OfTargets.apply(logits, torch.tensor([2]), True)
    short = logits.detach()[:, [0, 2]].requires_grad_()
    wanted_logps, wanted_entropy = plainly(short, torch.tensor([1]))
    torch.testing.assert_close(logps, wanted_logps)
    torch.testing.assert_close(entropy, wanted_entropy)
    (logps + entropy).sum().backward()
    (wanted_logps + wanted_entropy).sum().backward()
    assert logits.grad is not None and short.grad is not None
    assert torch.equal(logits.grad[0, [1, 3]], torch.zeros(2))
    torch.testing.assert_close(logits.grad[:, [0, 2]], short.grad)


def test_large_logits_overflow_nothing() -> None:
    logits = torch.full((1, 3), 3e38)
    logps, entropy = _OfTargets.apply(logits, torch.tensor([1]), False)
    assert logps.item() == pytest.approx(-1.0986123) and entropy.item() == pytest.approx(1.0986123)
