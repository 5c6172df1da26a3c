"""One model for all roles (`training.models = 'shared'`), the ablation beside a model for each role as in the paper
(arXiv 2511.13288).

    J(theta) = sum over the roles r of J_r(theta)

Only the weights are shared. Each J_r has the groups, advantages, alignment and normaliser that it has apart, so that no
statistic is over two roles; one optimiser follows the gradient of the sum, whose norm is clipped once.

A role is its name: every role has versions, files and metrics of its own, as apart. The files of a step hold the same
tensors, and an engine or a later run cannot tell such a team from one whose models happen to be equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from backend.training.learning.learner import MIN_CALLS, Learner
from backend.training.learning.role_trainer import Batch, RoleTrainer
from backend.training.learning.step_data import Learnt, StepData


def learn_together(learners: Mapping[str, Learner], step: int, data: StepData) -> dict[str, Learnt]:
    """The part of all roles in a step, by role; the learners' policies must be `SharedPolicies`.

    Where one role has lost its format, all weights go back to those with which every role last kept it, and nobody
    learns in this step.
    """
    lost = _roll_back(learners, data)
    paid = {role: learner.pay(step, data) for role, learner in learners.items()}
    found = {role: replace(learnt, rolled_back=role in lost) for role, (learnt, _) in paid.items()}
    if lost:
        return found
    credits = {role: learnt.credit for role, learnt in found.items()}
    begun = {role: learners[role].begin(credit) for role, credit in credits.items() if credit is not None}
    batches = {role: batch for role, batch in begun.items() if batch is not None}
    rate = next(iter(paid.values()))[1]  # of one schedule
    trainers = {role: learner.trainer for role, learner in learners.items()}
    for role, metrics in step_together(trainers, batches, rate).items():
        found[role].metrics.update(metrics)
        learners[role].note(metrics)
    return found


def step_together(
    trainers: Mapping[str, RoleTrainer], batches: Mapping[str, Batch], rate: float = 1.0
) -> dict[str, dict[str, float]]:
    """Follow the gradient of the sum of the roles' objectives; each role's metrics, as `RoleTrainer.step` names them.

    An update takes the roles' updates of the same number together. The first trainer's optimiser and counter of updates
    are everybody's, those of the others stay unused; so grad_norm and lr are the same number for all roles.
    """
    lead = next(iter(trainers.values()))
    for number in range(max((len(batch.updates) for batch in batches.values()), default=0)):
        found = [(trainers[role].gradient(batch, number), batch.stats) for role, batch in batches.items()]
        losses = [(loss, stats) for loss, stats in found if loss is not None]
        if losses:
            lead.apply(losses, rate)
    return {role: trainers[role].end(batch) for role, batch in batches.items()}


def _roll_back(learners: Mapping[str, Learner], data: StepData) -> list[str]:
    """Take the weights back where roles lost their format, and name these; remember the weights if all that spoke
    enough keep it."""
    spoken = {role: learner.spoken(data) for role, learner in learners.items()}
    shares = {
        role: sum(call.valid for call in calls) / len(calls)
        for role, calls in spoken.items()
        if len(calls) >= MIN_CALLS
    }
    lead = next(iter(learners.values()))
    lost = [role for role, share in shares.items() if share < lead.config.rollback_format]
    if lost and lead.good is not None:
        for learner in learners.values():
            learner.restart(lead.good)
        return lost
    if shares and all(share >= lead.config.gate_format for share in shares.values()):
        good = lead.policies.role_state(lead.role)
        for learner in learners.values():
            learner.good = good
    return []
