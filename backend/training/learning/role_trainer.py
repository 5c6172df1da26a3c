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

from backend.policies.role_policies import RolePolicies
from backend.policies.sharding import ShardGroup
from backend.policies.tensor_files import read_tensors, write_tensors
from backend.processes import keep_freed_memory
from backend.training.algorithm.exploration import held_tokens
from backend.training.algorithm.objective import (
    Aggregation,
    ImportanceKind,
    PolicyLoss,
    RatioKind,
    aggregate,
    clipped_objective,
    importance_weights,
    kl_tokens,
    masked_mean,
    normalizer,
)
from backend.training.algorithm.trajectory import Trajectory, pad_trajectories
from backend.training.learning.batches import MicroBatch, StepStats, TrainingRow, micro_batches
from backend.training.learning.optimizers import LocalOptimizer, OptimizerName, RoleOptimizer
from simulator.errors import UserError


@dataclass(frozen=True)
class RoleTrainerSettings:
    """How one role is trained. One call of `step` makes `epochs * minibatches` optimizer steps."""

    learning_rate: float
    warmup_steps: int  # optimizer steps until the learning rate is reached, linearly; `step` has what comes then
    optimizer: OptimizerName
    weight_decay: float
    adam_betas: tuple[float, float]  # of AdamW
    clip_low: float
    clip_high: float
    ratio: RatioKind
    policy_loss: PolicyLoss
    aggregation: Aggregation  # of the policy loss, the KL and the entropy alike
    constant_length: int  # of the aggregation dr_grpo
    kl: float  # anchor to the base model; costs one more forward pass
    entropy: float
    clip_cov: float  # share of the sampled tokens that have no gradient, since the entropy falls most with them
    importance: ImportanceKind
    importance_cap: float  # on pi_trainer / pi_engine of each sampled token
    mask_truncated: bool  # conversations cut off at the token limit have no token that is learnt from
    max_grad_norm: float
    minibatches: int
    micro_batch_tokens: int  # padded; memory only, no gradient depends on it
    seed: int  # of the minibatches
    epochs: int = 1


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
    truncated: int
    stats: StepStats


class RoleTrainer:
    """Trains one role's policy. Nothing of another role is read or written."""

    def __init__(
        self,
        policies: RolePolicies,
        role: str,
        settings: RoleTrainerSettings,
        gradients: GradientPool | None = None,
    ) -> None:
        """`gradients` computes the gradients of this trainer's batches; None computes them in this process."""
        self.policies = policies
        self.role = role
        self.settings = settings
        self._gradients = gradients or LocalGradients()
        self._policy = PolicyGradient(policies, role, settings)
        self.updates = 0  # optimizer steps taken
        self.batches = 0  # calls of `step`
        self._optimizer = self._gradients.optimizer(policies, role, settings)

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
        the aggregation grpo, its denominator (`objective.normalizer` has the others'). Calls without a gradient are in
        it. One of several updates a batch has its share of the batch's denominator; with bnpo it has that of its own
        calls. `temperature` is the one the engine sampled at, `rate` the factor of a schedule on the learning rate. A
        batch without any signal (all advantages 0, no KL and no entropy term) takes no optimizer step: momentum alone
        is no reason to move. An update whose loss or gradient is not finite is skipped and counted. Raises ValueError
        for another role's trajectory or bad lengths.

        With `mask_truncated` a conversation that was cut off is in the denominator as a call without a token (overlong
        filtering, DAPO, arXiv 2503.14476): grpo and dr_grpo count its weight, the means over tokens do not see it.

        Metrics, named `{role}/...`: loss, grad_norm, kl (when it has a coefficient), entropy, clip_share, ratio/mean,
        ratio/max, ratio/p01 and ratio/p99 (quantiles of the entries of `objective.ClipStats`), importance/mean,
        importance/cut_share (sampled tokens whose importance weight was truncated or masked), engine_gap (largest
        |log pi_trainer - log pi_engine| of a sampled token; of the first update alone where it is so small that the
        others take the engine's), lr (of the last update), updates, skipped_updates, masked
        (conversations that `mask_truncated` left out), trained (trajectories that carried a gradient), tokens (sampled
        ones among theirs). What nothing was seen of is left out.
        """
        return self.train(self.split_batch(trajectories, advantages, weights, temperature), rate)

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
        settings = self.settings
        regularised = settings.kl != 0.0 or settings.entropy != 0.0
        tokens = np.array([self._tokens(one) for one in trajectories], np.int64)
        learns = (tokens > 0) & (weight > 0.0) & (regularised | (advantage != 0.0))
        # A call without a gradient stands in the denominator of its own update only where updates have one each.
        by_update = settings.aggregation == "bnpo"
        chosen = np.flatnonzero((tokens > 0) & (weight > 0.0)) if by_update else np.flatnonzero(learns)
        rows = {
            i: self._rows(trajectories[i], float(advantage[i]), float(weight[i]))
            for i in np.flatnonzero(learns).tolist()
        }
        if settings.clip_cov:
            rows = self._held_back(rows)
        plan = self._plan(len(chosen))
        updates: list[tuple[Sequence[TrainingRow], float]] = []
        how, length = settings.aggregation, settings.constant_length
        total = normalizer(weight, tokens, how, length) / settings.minibatches
        for part in plan:
            members = chosen[part]
            if by_update:
                total = normalizer(weight[members], tokens[members], how)
            updates.append(([row for i in members.tolist() for row in rows.get(i, ())], total))
        self.batches += 1
        truncated = sum(one.truncated for one in trajectories)
        return Batch(
            updates,
            [row for own in rows.values() for row in own],
            temperature,
            truncated,
            StepStats(self.settings.importance_cap),
        )

    def weigh_entropy(self, weight: float) -> None:
        """Give the entropy bonus of the batches to come this weight."""
        self.settings = replace(self.settings, entropy=weight)
        self._policy.settings = self.settings

    def train(self, batch: Batch, rate: float = 1.0) -> dict[str, float]:
        """Make the updates of a batch; its metrics."""
        for number in range(len(batch.updates)):
            loss = self.accumulate_gradients(batch, number)
            if loss is not None:
                self.optimizer_step([(loss, batch.stats)], rate)
        return self.metrics(batch)

    def metrics(self, batch: Batch) -> dict[str, float]:
        """The metrics of a batch whose updates are made, as `step` names them."""
        metrics = batch.stats.metrics(batch.rows)
        if self.settings.mask_truncated:
            metrics["masked"] = float(batch.truncated)
        return {f"{self.role}/{name}": value for name, value in metrics.items()}

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors of the optimizer and a JSON-safe header with the counters (which are also the scheduler's state)."""
        tensors, numbers = self._optimizer.state()
        header = {"kind": "trainer", "role": self.role, "updates": self.updates, "batches": self.batches}
        return tensors, {**header, "optimiser": self.settings.optimizer, "numbers": numbers}

    def load_state_dict(self, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
        """Continue from `state_dict`. Raises UserError for the state of another role, optimizer or model."""
        if header.get("kind") != "trainer" or header.get("role") != self.role:
            raise UserError(
                f"this is the state of {header.get('role')}'s {header.get('kind')}, not {self.role}'s trainer"
            )
        # Written before there was a choice, it is AdamW's.
        kind, numbers = header.get("optimiser", "adamw"), header.get("numbers", {})
        if kind != self.settings.optimizer:
            raise UserError(
                f"the trainer state of {self.role} is that of {kind}: resume with training.optimizer = {kind}, not "
                f"{self.settings.optimizer}"
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

    def _rows(self, one: Trajectory, advantage: float, weight: float) -> list[TrainingRow]:
        """The branches of a call, each a row. Their weights make a mean over the call's tokens of the means over each
        branch's (grpo), or leave the sum over its tokens what it is (the other aggregations)."""
        branches = one.branches()
        total = int(one.mask.sum())
        shares = [
            int(branch.mask.sum()) / total if self.settings.aggregation == "grpo" and len(branches) > 1 else 1.0
            for branch in branches
        ]
        return [
            TrainingRow(branch, advantage, weight * share, first=number == 0)
            for number, (branch, share) in enumerate(zip(branches, shares, strict=True))
        ]

    def _held_back(self, rows: dict[int, list[TrainingRow]]) -> dict[int, list[TrainingRow]]:
        """The rows with those tokens marked that `clip_cov` takes from the objective, by the log-probs of the engine:
        they are known before any pass, and the same whoever computes the gradient."""
        in_order = [row for branches in rows.values() for row in branches]
        logps = [row.trajectory.sampled_logps[row.trajectory.mask] for row in in_order]
        marks = iter(held_tokens(logps, [row.advantage for row in in_order], self.settings.clip_cov))

        def marked(row: TrainingRow) -> TrainingRow:
            held = np.zeros(len(row.trajectory.ids), np.bool_)
            held[row.trajectory.mask] = next(marks)
            return replace(row, held=held) if held.any() else row

        return {number: [marked(row) for row in branches] for number, branches in rows.items()}

    def _tokens(self, one: Trajectory) -> int:
        """Sampled tokens of a conversation that are learnt from."""
        return 0 if self.settings.mask_truncated and one.truncated else int(one.mask.sum())

    def _plan(self, rows: int) -> list[npt.NDArray[np.int64]]:
        """Which rows each update learns from; decided by seed and batch number alone, so a resumed run agrees."""
        parts, epochs = self.settings.minibatches, self.settings.epochs
        if parts == 1:
            return [np.arange(rows)] * epochs
        rng = np.random.default_rng([self.settings.seed, self.batches])
        return [part for _ in range(epochs) for part in np.array_split(rng.permutation(rows), parts)]

    def _remember_proximal(self, batch: Batch, loss: float | None) -> None:
        """Give the rows of all updates but the first their log-probs under the policy as it is now, before it moves.
        `loss` is that of the first update.

        They are the engine's own where one version sampled everything and the log-probs that the first update has just
        computed are the engine's: then no further pass is needed.
        """
        later = list(dict.fromkeys(row for rows, _ in batch.updates[1:] for row in rows))
        if not later:
            return
        versions = {name for row in batch.rows for name in row.trajectory.all_versions}
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
        """The rows in micro-batches, as many as there are processes to compute them, where that can be."""
        budget = self._gradients.token_budget(self.settings.micro_batch_tokens, sum(row.length for row in rows))
        return list(micro_batches(rows, budget))

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

    def optimizer_step(self, losses: Sequence[tuple[float, StepStats]], rate: float = 1.0) -> None:
        """One optimizer step along the gradients that were added, by `gradient` of this trainer or of others over the
        same parameters; `losses` are theirs. Nothing moves where one of them, or the gradient, is not finite."""
        norm = self._optimizer.clip(self.settings.max_grad_norm)
        finite = math.isfinite(norm) and all(math.isfinite(loss) for loss, _ in losses)
        lr = self.settings.learning_rate * min(1.0, (self.updates + 1) / max(1, self.settings.warmup_steps)) * rate
        if finite:
            self._optimizer.step(lr)
            self.updates += 1
        for loss, stats in losses:
            if finite:
                stats.add_update(loss, norm, lr)
            else:
                stats.add_skipped_update()
        self._optimizer.zero_grad()


class PolicyGradient:
    """The loss of one role's policy under the role's settings, and its gradient. There is no optimizer here: several
    processes compute gradients of the same policy, and one of them makes the step."""

    def __init__(self, policies: RolePolicies, role: str, settings: RoleTrainerSettings) -> None:
        self.policies = policies
        self.role = role
        self.settings = settings
        if policies.device.type == "cpu":
            keep_freed_memory()

    def accumulate(self, batches: Sequence[MicroBatch], total: float, temperature: float, stats: StepStats) -> float:
        """Add the gradient of some micro-batches of an update to the parameters' own; their part of its loss."""
        loss = 0.0
        for members in batches:
            part = self._loss(members, total, temperature, stats)
            part.backward()
            loss += part.item()
        return loss

    def accompany(self, members: MicroBatch, total: float, temperature: float) -> None:
        """Compute a micro-batch of another process, and add nothing of it. Where a model is divided among processes,
        each must make as many passes as the others."""
        (self._loss(members, total, temperature, StepStats(self.settings.importance_cap)) * 0.0).backward()

    def logps(self, batches: Sequence[MicroBatch], temperature: float) -> list[list[Tensor]]:
        """Log-probs (length,) of each row of each micro-batch, without gradient."""
        lines = []
        with torch.no_grad():
            for members in batches:
                batch = pad_trajectories([row.trajectory for row in members]).to(self.policies.device)
                logps, _ = self.policies.logps(self.role, batch.ids, batch.mask, temperature)
                lines.append([line[: row.length] for row, line in zip(members, logps, strict=True)])
        return lines

    def _loss(self, members: Sequence[TrainingRow], total: float, temperature: float, stats: StepStats) -> Tensor:
        """-(J - kl KL + entropy H) of a micro-batch, a scalar with gradient."""
        settings, device = self.settings, self.policies.device
        batch = pad_trajectories([row.trajectory for row in members]).to(device)
        advantages = torch.tensor([row.advantage for row in members], device=device)
        weights = torch.tensor([row.weight for row in members], device=device)
        with_entropy = settings.entropy != 0.0
        reference = None
        if settings.kl != 0.0:  # before the pass that is learnt from: it changes what answers for a while
            reference = self.policies.reference_logps(self.role, batch.ids, batch.mask, temperature)
        new, entropy = self.policies.logps(self.role, batch.ids, batch.mask, temperature, with_entropy)
        remembered = [row.proximal for row in members if row.proximal is not None]
        old = pad_sequence(remembered, batch_first=True) if remembered else new.detach()
        importance = importance_weights(
            old, batch.sampled_logps, batch.mask, settings.importance_cap, settings.importance
        )
        objective, clip_stats = clipped_objective(
            without_gradient(new, members),
            old,
            batch.mask,
            advantages,
            weights,
            settings.clip_low,
            settings.clip_high,
            settings.ratio,
            importance,
            total,
            policy_loss=settings.policy_loss,
            aggregation=settings.aggregation,
            constant_length=settings.constant_length,
        )
        loss = -objective
        if reference is not None:
            kl = kl_tokens(new, old, reference, batch.mask, importance)
            loss = loss + settings.kl * aggregate(kl, batch.mask, weights, settings.aggregation, total)
            stats.add_kl(masked_mean(kl.detach(), batch.mask), weights)
        if with_entropy:
            mean = aggregate(entropy, batch.mask, weights, settings.aggregation, total)
            loss = loss - settings.entropy * mean
        stats.add_tokens(clip_stats, entropy.detach()[batch.mask], importance[batch.mask], old.detach(), batch)
        return loss


def without_gradient(logps: Tensor, members: Sequence[TrainingRow]) -> Tensor:
    """Log-probs (B, T) of some rows, those of the held tokens as constants: they keep their place in every mean."""
    if all(row.held is None for row in members):
        return logps
    held = np.zeros(tuple(logps.shape), np.bool_)
    for line, row in zip(held, members, strict=True):
        if row.held is not None:
            line[: row.length] = row.held[: row.length]
    return torch.where(torch.from_numpy(held).to(logps.device), logps.detach(), logps)


class GradientPool(Protocol):
    """Who computes the gradients of a role's micro-batches: this process, or several processes together."""

    @property
    def shards(self) -> ShardGroup | None:
        """The processes among which the policies are divided; None where each holds them."""
        ...

    def token_budget(self, batch_tokens: int, tokens: int) -> int:
        """Padded tokens of one micro-batch, of at most `batch_tokens`, where `tokens` are to be computed in all."""
        ...

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

    def optimizer(self, policies: RolePolicies, role: str, settings: RoleTrainerSettings) -> RoleOptimizer:
        """A new optimizer over the role's parameters."""
        ...


class LocalGradients:
    """Everything is computed in this process."""

    shards: ShardGroup | None = None

    def token_budget(self, batch_tokens: int, tokens: int) -> int:
        """`batch_tokens`: one process has no reason for smaller micro-batches."""
        return batch_tokens

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

    def optimizer(self, policies: RolePolicies, role: str, settings: RoleTrainerSettings) -> LocalOptimizer:
        """As `GradientPool.optimizer`."""
        return local_optimizer(policies, role, settings)


def local_optimizer(policies: RolePolicies, role: str, settings: RoleTrainerSettings) -> LocalOptimizer:
    """The optimizer of this process over what it holds of the role's parameters."""
    return LocalOptimizer(
        policies.trainable(role),
        settings.optimizer,
        settings.learning_rate,
        settings.adam_betas,
        settings.weight_decay,
        policies.hardware.shards,
    )
