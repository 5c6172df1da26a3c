"""One model for all roles (`training.experimental.models = 'shared'`), the ablation of a model for each role as in the
paper (arXiv 2511.13288).

    J(theta) = sum over the roles r of J_r(theta)

Only the weights are shared. Each J_r has the groups, advantages, alignment and normalizer that it has with separate
models, so no statistic is over two roles. One optimizer follows the gradient of the sum, whose norm is clipped once.

Every role still has versions, files and metrics of its own. The files of a step hold the same tensors, so an engine or
a later run reads such a team like one with separate models.
"""

from __future__ import annotations

from collections.abc import Mapping

from backend.training.algorithm.credit import assign_credit
from backend.training.learning.learner import MIN_CALLS, Learner
from backend.training.learning.role_trainer import Batch, RoleTrainer
from backend.training.learning.step_data import LearningResult, StepData


def train_jointly(learners: Mapping[str, Learner], step: int, data: StepData) -> dict[str, LearningResult]:
    """A training step of all roles, by role; the learners' policies must be a `SinglePolicy`.

    Where one role has lost its format, all weights go back to those with which every role last kept it, and no role
    learns in this step.
    """
    lost = _roll_back(learners, data)
    given = {role: learner.credit_input(step, data) for role, learner in learners.items()}
    credits = {
        role: None if one.groups is None else assign_credit(one.groups, one.settings) for role, one in given.items()
    }
    metrics = {
        role: {**one.metrics, **learners[role].credit_metrics(one, credits[role], data)} for role, one in given.items()
    }
    if not lost:
        batches = {
            role: batch
            for role, credit in credits.items()
            if credit is not None and (batch := learners[role].split_batch(credit)) is not None
        }
        trainers = {role: learner.trainer for role, learner in learners.items()}
        rate = next(iter(given.values())).rate  # the same for all roles: there is one schedule
        for role, of_updates in step_jointly(trainers, batches, rate).items():
            metrics[role] |= of_updates | learners[role].note_updates(of_updates)
    return {role: LearningResult(credits[role], metrics[role], role in lost) for role in learners}


def step_jointly(
    trainers: Mapping[str, RoleTrainer], batches: Mapping[str, Batch], rate: float = 1.0
) -> dict[str, dict[str, float]]:
    """Follow the gradient of the sum of the roles' objectives; each role's metrics, as `RoleTrainer.step` names them.

    An update takes the roles' updates of the same number together. The first trainer's optimizer and its counter of
    updates serve all roles, those of the others stay unused; so grad_norm and lr are the same number for all roles.
    """
    first = next(iter(trainers.values()))
    for number in range(max((len(batch.updates) for batch in batches.values()), default=0)):
        computed = [
            (trainers[role].accumulate_gradients(batch, number), batch.stats) for role, batch in batches.items()
        ]
        losses = [(loss, stats) for loss, stats in computed if loss is not None]
        if losses:
            first.optimizer_step(losses, rate)
    return {role: trainers[role].metrics(batch) for role, batch in batches.items()}


def _roll_back(learners: Mapping[str, Learner], data: StepData) -> list[str]:
    """Put the last valid weights back where roles lost their format, and return these roles.

    The weights are kept as valid if every role with enough conversations has a valid format.
    """
    conversations = {role: learner.conversations(data) for role, learner in learners.items()}
    valid = {
        role: sum(call.valid for call in calls) / len(calls)
        for role, calls in conversations.items()
        if len(calls) >= MIN_CALLS
    }
    first = next(iter(learners.values()))
    lost = [role for role, share in valid.items() if share < first.config.rollback_format]
    if lost and first.last_valid_parameters is not None:
        for learner in learners.values():
            learner.restart(first.last_valid_parameters)
        return lost
    if valid and all(share >= first.config.gate_format for share in valid.values()):
        parameters = first.policies.role_state(first.role)
        for learner in learners.values():
            learner.remember_valid(parameters)
    return []
