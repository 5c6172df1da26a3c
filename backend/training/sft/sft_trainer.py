"""Supervised next-token training on transcripts, before any reinforcement: of a whole model (the warm start of nano),
or of one role's adapter."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from backend.policies.linear_layers import quicken
from backend.policies.logprobs import token_logps
from backend.processes import ALONE, Workers, keep_freed_memory
from backend.training.optimizers import AdamW
from backend.training.sft.shared_steps import PartGradients, part_gradients

Example = tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]

# Batches are cut from this many shuffled batches' worth of examples sorted by length: little padding, still mixed well.
POOL_BATCHES = 32
_MAX_GRAD_NORM = 1.0


@dataclass(frozen=True)
class SftSettings:
    """AdamW; the learning rate warms up linearly, then falls to a tenth along a cosine.

    With `mixed` a batch holds examples as they come; else those of about one length, with little padding. Length often
    says what was decided: over few steps, batches of one length teach each decision by turns, and the last ones win.
    """

    steps: int
    batch_tokens: int  # padded
    learning_rate: float
    warmup_steps: int
    weight_decay: float
    seed: int
    mixed: bool = False
    parts: int = 1  # of a batch, whose gradients are computed apart and added


class SupervisedTrainer:
    """Next-token training of some parameters on examples, a step at a time, to be stopped and continued.

    `logps(ids, mask)` gives the log-probs (B, T) under the model that the parameters are of. Every example is seen once
    before any is seen again. The same parameters, examples and settings give the same weights, interrupted or not.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        logps: Callable[[Tensor, Tensor], Tensor],
        examples: Sequence[Example],
        settings: SftSettings,
        in_parts: PartGradients | None = None,
    ) -> None:
        """`in_parts` computes the gradients of batches that are cut into `settings.parts`.

        examples: (ids (L,), mask (L,)), the mask True for tokens to be learnt, False at position 0.

        Raises ValueError when there is nothing to learn from.
        """
        if not examples or any(len(ids) != len(mask) or mask[0] or not mask.any() for ids, mask in examples):
            raise ValueError("the warm start needs examples, each with a token to learn and none at position 0")
        self.settings = settings
        self.done = 0  # steps
        keep_freed_memory()
        self._parameters = list(parameters)
        self._logps = logps
        self._in_parts = in_parts
        self._examples = examples
        self._optimizer = AdamW(self._parameters, settings.learning_rate, weight_decay=settings.weight_decay)
        self._batches = self._new_batches()

    def step(self) -> float:
        """One optimizer step; returns its loss, nats per token. Raises ValueError where that is not finite."""
        chosen = [self._examples[i] for i in next(self._batches)]
        loss = self._gradient(chosen)
        if not math.isfinite(loss):
            raise ValueError(
                f"the loss is {loss} at step {self.done}: lower the learning rate {self.settings.learning_rate}"
            )
        self._optimizer.clip(_MAX_GRAD_NORM)
        self._optimizer.step(learning_rate(self.done, self.settings))
        self._optimizer.zero_grad()
        self.done += 1
        return loss

    def _gradient(self, examples: Sequence[Example]) -> float:
        """Set the gradient of the mean loss of a batch; the loss."""
        if self._in_parts is None:
            ids, mask = pad_examples(examples)
            loss = -self._logps(ids, mask).sum() / mask.sum()
            loss.backward()
            return loss.item()
        number = min(self.settings.parts, len(examples))
        edges = [len(examples) * one // number for one in range(number + 1)]
        parts = [pad_examples(examples[start:stop]) for start, stop in pairwise(edges)]
        return self._in_parts.accumulate(parts, sum(int(mask.sum()) for _, mask in examples))

    def optimizer_state(self) -> dict[str, Tensor]:
        """The optimizer's tensors by name; with the parameters and `done` they are all that `resume` needs."""
        return self._optimizer.state()[0]

    def resume(self, done: int, optimizer_state: Mapping[str, Tensor]) -> None:
        """Continue after `done` steps; the caller has put the parameters where they were."""
        self._optimizer.restore(optimizer_state, {})
        self._batches = self._new_batches()
        for _ in range(done):
            next(self._batches)
        self.done = done

    def _new_batches(self) -> Iterator[list[int]]:
        lengths = [len(ids) for ids, _ in self._examples]
        cut = _mixed_batches if self.settings.mixed else _batches
        return cut(lengths, self.settings.batch_tokens, np.random.default_rng(self.settings.seed))


def warm_start(
    model: PreTrainedModel,
    examples: Sequence[Example],
    settings: SftSettings,
    on_progress: Callable[[int, float], None] | None = None,
    workers: Workers = ALONE,
) -> list[float]:
    """Train the whole `model` in place on `examples`; returns the loss of every step, nats per token. With several
    `settings.parts`, which need a nano, `workers` share each step.

    on_progress(steps done, loss) is called after each step. Raises ValueError as `SupervisedTrainer` does.
    """

    def logps(ids: Tensor, mask: Tensor) -> Tensor:
        return token_logps(model, ids, mask)[0]

    model.requires_grad_(True).train()
    quicken(model)
    losses: list[float] = []
    with part_gradients(model, settings.parts, workers) if settings.parts > 1 else nullcontext() as in_parts:
        trainer = SupervisedTrainer(list(model.parameters()), logps, examples, settings, in_parts)
        for _ in range(settings.steps):
            losses.append(trainer.step())
            if on_progress is not None:
                on_progress(trainer.done, losses[-1])
    model.eval()
    return losses


def learning_rate(step: int, settings: SftSettings) -> float:
    """Rate of step 0, 1, ...: linear to `lr` over the warm-up, then a cosine to a tenth of it at the last step."""
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    rest = max(1, settings.steps - 1 - settings.warmup_steps)
    share = min(1.0, (step - settings.warmup_steps) / rest)
    return settings.learning_rate * (0.1 + 0.45 * (1.0 + math.cos(math.pi * share)))


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


def _mixed_batches(lengths: Sequence[int], budget: int, rng: np.random.Generator) -> Iterator[list[int]]:
    """The same in the order of a shuffle, whatever the lengths."""
    while True:
        batch: list[int] = []
        longest = 0
        for example in rng.permutation(len(lengths)).tolist():
            longest = max(longest, lengths[example])
            if batch and (len(batch) + 1) * longest > budget:
                yield batch
                batch, longest = [], lengths[example]
            batch.append(example)
        yield batch


def pad_examples(examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
    """ids (B, T) int64 and mask (B, T) bool, padded on the right."""
    shape = (len(examples), max(len(ids) for ids, _ in examples))
    ids, mask = np.zeros(shape, np.int64), np.zeros(shape, np.bool_)
    for row, (tokens, learnt) in enumerate(examples):
        ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, learnt
    return torch.from_numpy(ids), torch.from_numpy(mask)
