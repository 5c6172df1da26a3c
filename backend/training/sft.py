"""The warm start: supervised next-token training of a whole model on transcripts, before any reinforcement."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from backend.training.policies import token_logps

Example = tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]

# Batches are cut from this many shuffled batches' worth of examples sorted by length: little padding, still mixed well.
POOL_BATCHES = 32


@dataclass(frozen=True)
class SftSettings:
    """AdamW on all parameters; the learning rate warms up linearly, then falls to a tenth along a cosine."""

    steps: int
    batch_tokens: int = 6144  # padded
    lr: float = 2e-3
    warmup_steps: int = 30
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    seed: int = 0


def warm_start(
    model: PreTrainedModel,
    examples: Sequence[Example],
    settings: SftSettings,
    on_progress: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Train `model` in place on the tokens under each mask; returns the loss of every step, nats per token.

    examples: (ids (L,), mask (L,)), the mask True for tokens to be learnt, False at position 0. Every example is seen
    once before any is seen again. on_progress(steps done, loss) is called after each step. The same model, examples and
    settings give the same weights. Raises ValueError when there is nothing to learn from, or the loss is not finite.
    """
    if not examples or any(len(ids) != len(mask) or mask[0] or not mask.any() for ids, mask in examples):
        raise ValueError("the warm start needs examples, each with a token to learn and none at position 0")
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.lr, betas=(0.9, 0.95), weight_decay=settings.weight_decay, fused=True
    )
    model.requires_grad_(True).train()
    batches = _batches([len(ids) for ids, _ in examples], settings.batch_tokens, np.random.default_rng(settings.seed))
    losses: list[float] = []
    for step in range(settings.steps):
        ids, mask = _pad([examples[i] for i in next(batches)])
        logps, _ = token_logps(model, ids.to(model.device), mask.to(model.device))
        loss = -logps.sum() / mask.sum()
        if not math.isfinite(loss.item()):
            raise ValueError(f"the loss is {loss.item()} at step {step}: lower the learning rate {settings.lr}")
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, settings)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if on_progress is not None:
            on_progress(step + 1, losses[-1])
    model.eval()
    return losses


def learning_rate(step: int, settings: SftSettings) -> float:
    """Rate of step 0, 1, ...: linear to `lr` over the warm-up, then a cosine to a tenth of it at the last step."""
    if step < settings.warmup_steps:
        return settings.lr * (step + 1) / settings.warmup_steps
    rest = max(1, settings.steps - 1 - settings.warmup_steps)
    share = min(1.0, (step - settings.warmup_steps) / rest)
    return settings.lr * (0.1 + 0.45 * (1.0 + math.cos(math.pi * share)))


def _batches(lengths: Sequence[int], budget: int, rng: np.random.Generator) -> Iterator[list[int]]:
    """Endless batches of example numbers: each at most `budget` padded tokens, or a single longer example."""
    pool_tokens = budget * POOL_BATCHES
    while True:
        order = rng.permutation(len(lengths))
        tokens = np.cumsum(np.asarray(lengths)[order])
        for pool in np.split(order, np.flatnonzero(np.diff(tokens // pool_tokens)) + 1):
            cut: list[list[int]] = [[]]
            for example in sorted(pool.tolist(), key=lambda i: lengths[i]):
                if cut[-1] and (len(cut[-1]) + 1) * lengths[example] > budget:
                    cut.append([])
                cut[-1].append(example)
            for number in rng.permutation(len(cut)):
                yield cut[number]


def _pad(examples: Sequence[Example]) -> tuple[torch.Tensor, torch.Tensor]:
    """ids (B, T) int64 and mask (B, T) bool, padded on the right."""
    shape = (len(examples), max(len(ids) for ids, _ in examples))
    ids, mask = np.zeros(shape, np.int64), np.zeros(shape, np.bool_)
    for row, (tokens, learnt) in enumerate(examples):
        ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, learnt
    return torch.from_numpy(ids), torch.from_numpy(mask)
