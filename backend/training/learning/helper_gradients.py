"""The roles learn side by side: while this process computes the gradients of one role, each helper does those of
another. Where one role alone learns, all of them share the micro-batches of its updates.

All state stays here: a helper gets the role's parameters with every update, and gives back the gradient. The gradients
of an update's micro-batches are added in their order, as one process adds them, so the sum is the same to the bit
whatever process computed which.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from backend.config.training import TrainingConfig
from backend.processes import Helper, Workers, WorkReport, silent
from backend.training.learning.batches import MicroBatch, StepStats
from backend.training.learning.role_trainer import LocalGradients, PolicyGradient
from backend.training.rollout.shared_shards import TrainingPlace, helpers_parts

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class _GradientTask:
    """What a helper computes for a role: a gradient, or log-probs alone where `total` is None."""

    place: TrainingPlace
    role: str
    config: TrainingConfig
    parameters: list[Tensor]
    batches: Sequence[MicroBatch]
    total: float | None
    temperature: float
    stats: StepStats | None = None


class HelperGradients:
    """A `GradientPool` whose roles are divided among this process and its helpers, an update to one of them."""

    def __init__(self, workers: Workers, place: TrainingPlace) -> None:
        self._workers = workers
        self._place = place
        self._here = LocalGradients()
        self._thread = threading.local()

    def side_by_side(
        self, learn: Callable[[str], _Answer], roles: Sequence[str], frozen: Collection[str] = ()
    ) -> list[_Answer]:
        """What `learn` makes of each role, in their order; who is free takes the next one. Where all but one of them
        are `frozen`, its micro-batches are shared instead."""
        if len(set(roles) - set(frozen)) == 1:
            self._thread.sharing = True
            try:
                return [learn(role) for role in roles]
            finally:
                self._thread.sharing = False

        def with_helper(helper: Helper | None, role: str) -> _Answer:
            with self._asking(helper):
                return learn(role)

        return self._workers.share(with_helper, roles)

    def accumulate(
        self, policy: PolicyGradient, batches: Sequence[MicroBatch], total: float, temperature: float, stats: StepStats
    ) -> float:
        """As `GradientPool.accumulate`; the role's parameters have no gradient yet."""
        if self._shares(batches):
            return self._shared(policy, batches, total, temperature, stats)
        helper = self._helper()
        if helper is None:
            return self._here.accumulate(policy, batches, total, temperature, stats)
        parameters = policy.policies.trainable(policy.role)
        task = self._task(policy, batches, total, temperature, stats)
        loss, gradients, counted = helper.do(_gradients_here, task, silent)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        stats.take(counted)
        return loss

    def _shared(
        self, policy: PolicyGradient, batches: Sequence[MicroBatch], total: float, temperature: float, stats: StepStats
    ) -> float:
        """`accumulate`, a micro-batch to each free worker; gradients, loss and statistics are added in their order."""
        parameters = policy.policies.trainable(policy.role)

        def alone(helper: Helper | None, batch: MicroBatch) -> tuple[float, list[Tensor | None], StepStats]:
            task = self._task(policy, [batch], total, temperature, StepStats(policy.config.importance_cap))
            if helper is not None:
                return helper.do(_gradients_here, task, silent)
            return _gradients(policy, task)

        loss = 0.0
        sums: list[Tensor | None] = [None] * len(parameters)
        for part, gradients, counted in self._workers.share(alone, batches):
            loss += part
            stats.merge(counted)
            for place, gradient in enumerate(gradients):
                known = sums[place]
                if gradient is not None:
                    sums[place] = gradient if known is None else known.add_(gradient)
        for parameter, gradient in zip(parameters, sums, strict=True):
            parameter.grad = gradient
        return loss

    def logps(
        self, policy: PolicyGradient, batches: Sequence[MicroBatch], temperature: float
    ) -> list[tuple[MicroBatch, list[Tensor]]]:
        """As `GradientPool.logps`, in the order of `batches`."""
        if self._shares(batches):
            return self._shared_logps(policy, batches, temperature)
        helper = self._helper()
        if helper is None:
            return self._here.logps(policy, batches, temperature)
        lines = helper.do(_logps_here, self._task(policy, batches, None, temperature), silent)
        return list(zip(batches, lines, strict=True))

    def _shared_logps(
        self, policy: PolicyGradient, batches: Sequence[MicroBatch], temperature: float
    ) -> list[tuple[MicroBatch, list[Tensor]]]:
        def alone(helper: Helper | None, batch: MicroBatch) -> list[Tensor]:
            if helper is None:
                [lines] = policy.logps([batch], temperature)
            else:
                [lines] = helper.do(_logps_here, self._task(policy, [batch], None, temperature), silent)
            return lines

        return list(zip(batches, self._workers.share(alone, batches), strict=True))

    def _task(
        self,
        policy: PolicyGradient,
        batches: Sequence[MicroBatch],
        total: float | None,
        temperature: float,
        stats: StepStats | None = None,
    ) -> _GradientTask:
        parameters = [parameter.detach() for parameter in policy.policies.trainable(policy.role)]
        return _GradientTask(self._place, policy.role, policy.config, parameters, batches, total, temperature, stats)

    def _helper(self) -> Helper | None:
        helper: Helper | None = getattr(self._thread, "helper", None)
        return helper

    def _shares(self, batches: Sequence[MicroBatch]) -> bool:
        """Whether these micro-batches are for all processes, since no other role has any."""
        return len(batches) > 1 and getattr(self._thread, "sharing", False)

    @contextmanager
    def _asking(self, helper: Helper | None) -> Iterator[None]:
        self._thread.helper = helper
        try:
            yield
        finally:
            self._thread.helper = None


def _policy_here(task: _GradientTask) -> PolicyGradient:
    """In a helper: the role's policy with the parameters of the task."""
    policies = helpers_parts(task.place).parts.policies
    with torch.no_grad():
        for parameter, value in zip(policies.trainable(task.role), task.parameters, strict=True):
            parameter.copy_(value)
            parameter.grad = None
    return PolicyGradient(policies, task.role, task.config)


def _gradients_here(task: _GradientTask, report: WorkReport) -> tuple[float, list[Tensor | None], StepStats]:
    return _gradients(_policy_here(task), task)


def _gradients(policy: PolicyGradient, task: _GradientTask) -> tuple[float, list[Tensor | None], StepStats]:
    """Loss, gradients and statistics of a task; the parameters have no gradient before, and none afterwards."""
    assert task.total is not None
    assert task.stats is not None
    parameters = policy.policies.trainable(task.role)
    loss = policy.accumulate(task.batches, task.total, task.temperature, task.stats)
    gradients = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    return loss, gradients, task.stats


def _logps_here(task: _GradientTask, report: WorkReport) -> list[list[Tensor]]:
    return _policy_here(task).logps(task.batches, task.temperature)
