"""The trainer of one role: a batch of its trajectories in, optimizer steps on its own parameters, metrics out.

Groups, rewards and alignment were decided before and arrive as an advantage and a weight per trajectory. What is added
here is speed that changes no gradient: micro-batches of similar length under a token budget, and no pass at all over
trajectories that have none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from backend.config.training import TrainingConfig
from backend.policies.prefix_tree import sent
from backend.policies.role_policies import RolePolicies
from backend.policies.tensor_files import read_tensors, write_tensors
from backend.processes import keep_freed_memory
from backend.training.algorithm.objective import importance_weights, kl_tokens, masked_mean
from backend.training.algorithm.trajectory import PaddedBatch, Trajectory, pad_trajectories
from backend.training.chosen_recipe import recipe_of
from backend.training.learning.batches import MicroBatch, StepStats, TrainingRow, micro_batches
from backend.training.optimizers import AdamW
from simulator.errors import UserError

# Largest difference of log-probs at which the engine's stand for the trainer's. In float32 both are within 1e-4; an
# engine of lower precision, of older weights or with another law of sampling is far above it.
_SAME_LOGPS = 1e-3


@dataclass(frozen=True)
class Batch:
    """A batch of one role, divided into its updates: the rows of each, and the denominator that they are divided by.
    With the gradient of the first one the rows of the others get their `proximal`."""

    updates: list[tuple[Sequence[TrainingRow], float]]
    rows: Sequence[TrainingRow]
    temperature: float
    stats: StepStats


class RoleTrainer:
    """Trains one role's policy. Nothing of another role is read or written."""

    def __init__(
        self,
        policies: RolePolicies,
        role: str,
        config: TrainingConfig,
        gradients: GradientPool | None = None,
    ) -> None:
        """`gradients` computes the gradients of this trainer's batches; None computes them in this process."""
        self.policies = policies
        self.role = role
        self.config = config
        self._gradients = gradients or LocalGradients()
        self._policy = PolicyGradient(policies, role, config)
        self.updates = 0  # optimizer steps taken
        self.batches = 0  # calls of `step`
        self._optimizer = AdamW(policies.trainable(role), config.rate_of(role), config.optimizer)

    def step(
        self,
        trajectories: Sequence[Trajectory],
        advantages: npt.ArrayLike,
        weights: npt.ArrayLike,
        temperature: float = 1.0,
        rate: float = 1.0,
    ) -> dict[str, float]:
        """Learn from one batch; advantages and weights (B,) belong to the trajectories in their order.

        The weights of each group sum to 1 (`alignment.align`), so their total is the batch's number of groups and, with
        the recipe mgrpo, its denominator (`recipes.Recipe.total`). Calls without a gradient are in it. One of several
        updates a batch has its share of the batch's denominator. `temperature` is the one the engine sampled at, `rate`
        the factor of a schedule on the learning rate. A batch without any signal (all advantages 0, no KL and no
        entropy term) takes no optimizer step: momentum alone is not a reason to move. An update with a loss or gradient
        not finite is skipped and counted. Raises ValueError for another role's trajectory or bad lengths.

        Metrics, named `{role}/...`: loss, grad_norm, kl (when it has a coefficient), entropy, clip_share, ratio/mean,
        ratio/max, ratio/p01 and ratio/p99 (quantiles of the entries of `objective.ClipStats`), importance/mean,
        importance/cut_share (sampled tokens whose importance weight was truncated), engine_gap (largest
        |log pi_trainer - log pi_engine| of a sampled token; of the first update alone where it is so small that the
        others take the engine's), lr (of the last update), updates, skipped_updates, trained (trajectories that carried
        a gradient), tokens (sampled ones among theirs). What nothing was seen of is left out.
        """
        batch = self.split_batch(trajectories, advantages, weights, temperature)
        for number in range(len(batch.updates)):
            loss = self.accumulate_gradients(batch, number)
            if loss is not None:
                self.optimizer_step(loss, batch.stats, rate)
        return {f"{self.role}/{name}": value for name, value in batch.stats.metrics(batch.rows).items()}

    def split_batch(
        self,
        trajectories: Sequence[Trajectory],
        advantages: npt.ArrayLike,
        weights: npt.ArrayLike,
        temperature: float = 1.0,
    ) -> Batch:
        """Divide a batch into its updates, as `step` says, and change nothing yet."""
        advantage, weight = np.asarray(advantages, np.float64), np.asarray(weights, np.float64)
        self._check(trajectories, advantage, weight)
        config = self.config
        regularised = config.kl != 0.0 or config.entropy != 0.0
        tokens = np.array([int(one.mask.sum()) for one in trajectories], np.int64)
        learns = np.flatnonzero((tokens > 0) & (weight > 0.0) & (regularised | (advantage != 0.0)))
        rows = [TrainingRow(trajectories[i], float(advantage[i]), float(weight[i])) for i in learns.tolist()]
        total = self._policy.recipe.total(weight, tokens) / config.minibatches
        updates: list[tuple[Sequence[TrainingRow], float]] = [
            ([rows[i] for i in part.tolist()], total) for part in self._plan(len(rows))
        ]
        self.batches += 1
        return Batch(updates, rows, temperature, StepStats(config.importance_cap))

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors of the optimizer and a JSON-safe header with the counters (which are also the scheduler's state)."""
        tensors, numbers = self._optimizer.state()
        header = {"kind": "trainer", "role": self.role, "updates": self.updates, "batches": self.batches}
        return tensors, {**header, "optimizer": self.config.optimizer, "numbers": numbers}

    def load_state_dict(self, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
        """Continue from `state_dict`. Raises UserError for the state of another role, optimizer or model."""
        if header.get("kind") != "trainer" or header.get("role") != self.role:
            raise UserError(
                f"this is the state of {header.get('role')}'s {header.get('kind')}, not {self.role}'s trainer"
            )
        kind, numbers = header["optimizer"], header["numbers"]
        if kind != self.config.optimizer:
            raise UserError(
                f"the trainer state of {self.role} is that of {kind}: resume with training.optimizer = {kind}, not "
                f"{self.config.optimizer}"
            )
        try:
            self._optimizer.restore(tensors, numbers)
        except ValueError as error:
            raise UserError(
                f"the trainer state of {self.role} belongs to other parameters ({error}): resume with the same model"
            ) from error
        self.updates, self.batches = header["updates"], header["batches"]

    def save(self, path: Path) -> None:
        """Write the state to one safetensors file."""
        write_tensors(path, *self.state_dict())

    def load(self, path: Path) -> None:
        """Continue from `save`, bit for bit on the CPU, once the policies are loaded too. Raises UserError."""
        self.load_state_dict(*read_tensors(path))

    def _check(
        self, trajectories: Sequence[Trajectory], advantage: npt.NDArray[np.float64], weight: npt.NDArray[np.float64]
    ) -> None:
        if advantage.shape != (len(trajectories),) or weight.shape != (len(trajectories),):
            raise ValueError(f"{len(trajectories)} trajectories, advantages {advantage.shape}, weights {weight.shape}")
        if not (np.isfinite(advantage).all() and np.isfinite(weight).all() and (weight >= 0.0).all()):
            raise ValueError("advantages must be finite, weights finite and not negative")
        foreign = {one.role for one in trajectories} - {self.role}
        if foreign:
            raise ValueError(f"the trainer of {self.role} got trajectories of {sorted(foreign)}")

    def _plan(self, rows: int) -> list[npt.NDArray[np.int64]]:
        """Which rows each update learns from; decided by seed and batch number alone, so a resumed run agrees."""
        if self.config.minibatches == 1:
            return [np.arange(rows)]
        rng = np.random.default_rng([self.config.seed, self.batches])
        return list(np.array_split(rng.permutation(rows), self.config.minibatches))

    def _remember_proximal(self, batch: Batch, loss: float | None) -> None:
        """Give the rows of all updates but the first their log-probs under the policy as it is now, before it moves.
        `loss` is that of the first update.

        They are the engine's own where one version sampled everything and the log-probs that the first update has just
        computed are the engine's: then no further pass is needed.
        """
        later = list(dict.fromkeys(row for rows, _ in batch.updates[1:] for row in rows))
        if not later:
            return
        versions = {row.trajectory.policy_version for row in batch.rows}
        seen = loss is not None and math.isfinite(loss)
        if seen and len(versions) == 1 and batch.stats.engine_gap <= _SAME_LOGPS:
            proximal = {
                row: torch.from_numpy(row.trajectory.sampled_logps[: row.length]).to(self.policies.device)
                for row in later
            }
        else:
            proximal = self._proximal_logps(later, batch.temperature)
        batch.updates[1:] = [
            ([replace(row, proximal=proximal[row]) for row in rows], total) for rows, total in batch.updates[1:]
        ]

    def _proximal_logps(self, rows: Sequence[TrainingRow], temperature: float) -> dict[TrainingRow, Tensor]:
        """The log-probs (length,) of each row under the policy as it is now."""
        return {
            row: line
            for members, lines in self._gradients.logps(self._policy, self._batches(rows), temperature)
            for row, line in zip(members, lines, strict=True)
        }

    def _batches(self, rows: Sequence[TrainingRow]) -> list[MicroBatch]:
        """The rows in micro-batches."""
        return list(micro_batches(rows, self.config.micro_batch_tokens))

    def accumulate_gradients(self, batch: Batch, number: int) -> float | None:
        """Add the gradient of update `number` of the batch to the parameters' own; its loss, None without a row. Update
        0 comes first, before anything moves."""
        rows, total = batch.updates[number]
        loss = None
        if rows:
            batches = self._batches(rows)
            loss = self._gradients.accumulate(self._policy, batches, total, batch.temperature, batch.stats)
        if number == 0:
            self._remember_proximal(batch, loss)
        return loss

    def optimizer_step(self, loss: float, stats: StepStats, rate: float = 1.0) -> None:
        """One optimizer step along the gradients that `accumulate_gradients` added, whose loss and statistics these
        are. Nothing moves where the loss or the gradient is not finite; the gradient is forgotten either way."""
        config = self.config
        norm = self._optimizer.clip(config.max_grad_norm)
        if math.isfinite(norm) and math.isfinite(loss):
            warm_up = min(1.0, (self.updates + 1) / max(1, config.warmup_steps))
            lr = config.rate_of(self.role) * warm_up * rate
            self._optimizer.step(lr)
            self.updates += 1
            stats.add_update(loss, norm, lr)
        else:
            stats.add_skipped_update()
        self._optimizer.zero_grad()


class PolicyGradient:
    """The loss of one role's policy by the recipe of the settings, and its gradient. There is no optimizer here:
    several processes compute gradients of the same policy, and one of them makes the step."""

    def __init__(self, policies: RolePolicies, role: str, config: TrainingConfig) -> None:
        self.policies = policies
        self.role = role
        self.config = config
        self.recipe = recipe_of(config)
        if policies.device.type == "cpu":
            keep_freed_memory()

    def accumulate(self, batches: Sequence[MicroBatch], total: float, temperature: float, stats: StepStats) -> float:
        """Add the gradient of some micro-batches of an update to the parameters' own; their part of its loss."""
        parts = []
        for members in batches:
            part = self._loss(members, total, temperature, stats)
            part.backward()
            parts.append(part.detach())
        loss = 0.0
        for part in parts:  # read last: a GPU is given the next batch while it is at this one
            loss += part.item()
        return loss

    def logps(self, batches: Sequence[MicroBatch], temperature: float) -> list[list[Tensor]]:
        """Log-probs (length,) of each row of each micro-batch, without gradient."""
        lines = []
        with torch.no_grad():
            for members in batches:
                batch = pad_trajectories([row.trajectory for row in members])
                logps, _ = self.policies.logps(self.role, batch.ids, batch.mask, temperature)
                lines.append([line[: row.length] for row, line in zip(members, logps, strict=True)])
        return lines

    def _loss(self, members: Sequence[TrainingRow], total: float, temperature: float, stats: StepStats) -> Tensor:
        """-(J - kl KL + entropy H) of a micro-batch, a scalar with gradient."""
        config, recipe, device = self.config, self.recipe, self.policies.device
        batch = pad_trajectories([row.trajectory for row in members])
        ids, mask = batch.ids, batch.mask  # on the CPU, where it is decided what is computed
        batch = PaddedBatch(*(sent(one, device) for one in (ids, mask, batch.sampled_logps)))
        advantages = sent(torch.tensor([row.advantage for row in members]), device)
        weights = sent(torch.tensor([row.weight for row in members]), device)
        with_entropy = config.entropy != 0.0
        reference = None
        if config.kl != 0.0:  # before the pass that is learnt from: it changes what answers for a while
            reference = self.policies.reference_logps(self.role, ids, mask, temperature)
        new, entropy = self.policies.logps(self.role, ids, mask, temperature, with_entropy)
        remembered = [row.proximal for row in members if row.proximal is not None]
        old = pad_sequence(remembered, batch_first=True) if remembered else new.detach()
        importance = importance_weights(old, batch.sampled_logps, batch.mask, config.importance_cap)
        objective, clip_stats = recipe.objective(new, old, batch.mask, advantages, weights, importance, total)
        loss = -objective
        if reference is not None:
            kl = kl_tokens(new, old, reference, batch.mask, importance)
            loss = loss + config.kl * recipe.aggregate(kl, batch.mask, weights, total)
            stats.add_kl(masked_mean(kl.detach(), batch.mask), weights)
        if with_entropy:
            loss = loss - config.entropy * recipe.aggregate(entropy, batch.mask, weights, total)
        stats.add_tokens(clip_stats, entropy.detach()[batch.mask], importance[batch.mask], old.detach(), batch)
        return loss


class GradientPool(Protocol):
    """Who computes the gradients of a role's micro-batches: this process, or several processes together."""

    def accumulate(
        self, policy: PolicyGradient, batches: Sequence[MicroBatch], total: float, temperature: float, stats: StepStats
    ) -> float:
        """Add the gradient of all batches to the role's parameters, and return their loss.

        As `PolicyGradient.accumulate` does for the batches of one process.
        """
        ...

    def logps(
        self, policy: PolicyGradient, batches: Sequence[MicroBatch], temperature: float
    ) -> list[tuple[MicroBatch, list[Tensor]]]:
        """Each batch, in any order, with the log-probs of its rows, as `PolicyGradient.logps`."""
        ...


class LocalGradients:
    """Everything is computed in this process."""

    def accumulate(
        self, policy: PolicyGradient, batches: Sequence[MicroBatch], total: float, temperature: float, stats: StepStats
    ) -> float:
        """As `GradientPool.accumulate`."""
        return policy.accumulate(batches, total, temperature, stats)

    def logps(
        self, policy: PolicyGradient, batches: Sequence[MicroBatch], temperature: float
    ) -> list[tuple[MicroBatch, list[Tensor]]]:
        """As `GradientPool.logps`, in the order of `batches`."""
        return list(zip(batches, policy.logps(batches, temperature), strict=True))
