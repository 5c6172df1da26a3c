"""The part of the team's outcome that each role is credited with, by replaying the decision without the role's effect.

The formulas are those of `algorithm.team_credit`. Players are the sub-agents that answered and whose answers act
through code (`cryptosentinel.team.replay`); v(S) is the outcome score of the orders in which only the effects of S
count, on the same scenarios. The market analyst's advice cannot be taken back without a model, so it is paid the whole
outcome (broadcast) under every method; the metric `{role}/credit/replayed` says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from backend.training.algorithm.credit import RoleCredit
from backend.training.algorithm.team_credit import CoalitionValue, TeamCredit, outcome_credit
from backend.training.rollout.collect import Rollout, RolloutSettings, sent_later
from backend.training.rollout.scoring import RolloutScorer
from cryptosentinel.guard.guard import Guard
from cryptosentinel.team import Team, has_effect, replay, replayable_roles
from simulator.errors import UserError


def role_outcomes(
    team: Team, groups: Sequence[Sequence[Rollout]], settings: RolloutSettings, credit: TeamCredit
) -> dict[str, list[list[float]]]:
    """By role, the outcome in [0, 1] that each rollout of each group credits it with, for `credit.score_sub`.

    Roles that are paid the team's whole outcome are absent. Raises `UserError` for a share outside [-1, 1].
    """
    roles = replayable_roles(team)
    outcomes: dict[str, list[list[float]]] = {role: [] for role in roles}
    for group in groups:
        scorer = settings.scorer(group[0].query)
        values = [
            _checked(credit.shares(_value(team, scorer, rollout, settings), _players(team, rollout, roles)))
            if rollout.main.valid
            else {}
            for rollout in group
        ]
        for role in roles:
            outcomes[role].append([outcome_credit(of_rollout.get(role, 0.0)) for of_rollout in values])
    return outcomes


def role_outcome_metrics(outcomes: Mapping[str, object], credits: Mapping[str, RoleCredit]) -> dict[str, float]:
    """Per sub-agent whether its part of the outcome was replayed (1) or broadcast (0), and its mean over the calls."""
    metrics: dict[str, float] = {}
    for role, credit in credits.items():
        if credit.items:
            metrics[f"{role}/credit/replayed"] = float(role in outcomes)
            metrics[f"{role}/credit/mean"] = float(np.mean([item.parts.outcome for item in credit.items]))
    return metrics


def _checked(shares: dict[str, float]) -> dict[str, float]:
    for role, share in shares.items():
        if not -1.0 <= share <= 1.0:  # True for NaN as well
            raise UserError(f"training.credit gave {role} a share of {share}: it must lie between -1 and 1")
    return shares


def _players(team: Team, rollout: Rollout, roles: Sequence[str]) -> list[str]:
    effective = {one.role for one in rollout.decision.transcripts[1:] if has_effect(team, one)}
    return [role for role in roles if role in effective]


def _value(team: Team, scorer: RolloutScorer, rollout: Rollout, settings: RolloutSettings) -> CoalitionValue:
    """The outcome score of the rollout's orders with the effects of a coalition alone."""
    query, known = rollout.query, dict[frozenset[str], float]()

    def value(coalition: frozenset[str]) -> float:
        if coalition not in known:
            guard = Guard(settings.limits)
            orders = replay(team, rollout.decision, query.view(), query.account(), guard, coalition)
            asked = len(rollout.decision.transcripts) - 1  # all were asked, whoever's effect counts
            known[coalition] = scorer.outcome([*orders, *sent_later(query, guard, orders)], asked).score
        return known[coalition]

    return value
