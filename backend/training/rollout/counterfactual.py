"""How the team's outcome is shared among the sub-agents: each all of it, or what its effect on the orders changed.

    broadcast       all of the outcome (M-GRPO, arXiv 2511.13288)
    counterfactual  D_i = v(N) - v(N without i): the difference reward (Wolpert & Tumer 2001; COMA, arXiv 1705.08926,
                    takes it as a baseline)
    shapley         phi_i = sum over S within N without i of |S|! (n - |S| - 1)! / n! (v(S with i) - v(S)), exact: the
                    phi_i add up to v(N) - v(nobody), and equal roles get equal shares (Shapley 1953)

N are the sub-agents that answered and whose answers act through code (`cryptosentinel.replay`); v(S) is the outcome
score of the orders in which only those of S count, on the same scenarios. The values lie in [-1, 1]; what a role is
paid is (1 + value) / 2, in [0, 1], and one half where it changed nothing. MarketAnalyst's advice cannot be taken back
without a model, so it is paid by broadcast under every method; the metric `{role}/credit/replayed` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from math import factorial
from typing import Literal

import numpy as np

from backend.training.algorithm.credit import RoleCredit
from backend.training.rollout.collect import Rollout, RolloutSettings
from backend.training.rollout.scoring import Judge
from cryptosentinel.guard.guard import Guard
from cryptosentinel.replay import replay, replayable_roles
from cryptosentinel.team import Team

CreditMethod = Literal["broadcast", "counterfactual", "shapley"]
Value = Callable[[frozenset[str]], float]


def counterfactual(value: Value, players: Sequence[str]) -> dict[str, float]:
    """v(all players) - v(all but this one), by player."""
    everyone = frozenset(players)
    return {player: value(everyone) - value(everyone - {player}) for player in players}


def shapley(value: Value, players: Sequence[str]) -> dict[str, float]:
    """The Shapley value of each player, over all 2^n coalitions of n players."""
    n = len(players)
    found: dict[str, float] = {}
    for player in players:
        others = [one for one in players if one != player]
        found[player] = sum(
            factorial(size) * factorial(n - size - 1) / factorial(n) * (value(coalition | {player}) - value(coalition))
            for size in range(n)
            for coalition in map(frozenset, combinations(others, size))
        )
    return found


def role_shares(
    team: Team, groups: Sequence[Sequence[Rollout]], settings: RolloutSettings, method: CreditMethod
) -> dict[str, list[list[float]]]:
    """By role, the part of the outcome that each rollout of each group credits it with, in [0, 1], for
    `credit.credit_sub`. Roles that are paid by broadcast are absent: all of them with that method."""
    if method == "broadcast":
        return {}
    share = counterfactual if method == "counterfactual" else shapley
    roles = replayable_roles(team)
    shares: dict[str, list[list[float]]] = {role: [] for role in roles}
    for group in groups:
        query = group[0].query
        judge = settings.judge(query)
        found = [
            share(_value(team, judge, rollout, settings), _players(rollout, roles)) if rollout.main.valid else {}
            for rollout in group
        ]
        for role in roles:
            shares[role].append([0.5 * (1.0 + one.get(role, 0.0)) for one in found])
    return shares


def share_metrics(shares: Mapping[str, object], credits: Mapping[str, RoleCredit]) -> dict[str, float]:
    """Per sub-agent whether its part of the outcome was replayed (1) or broadcast (0), and its mean over the calls."""
    metrics: dict[str, float] = {}
    for role, credit in credits.items():
        if credit.items:
            metrics[f"{role}/credit/replayed"] = float(role in shares)
            metrics[f"{role}/credit/mean"] = float(np.mean([item.parts.outcome for item in credit.items]))
    return metrics


def _players(rollout: Rollout, roles: Sequence[str]) -> list[str]:
    answered = {call.role for call in rollout.subs if call.valid}
    return [role for role in roles if role in answered]


def _value(team: Team, judge: Judge, rollout: Rollout, settings: RolloutSettings) -> Value:
    """The outcome score of the rollout's orders with the effects of a coalition alone."""
    query, known = rollout.query, dict[frozenset[str], float]()

    def value(coalition: frozenset[str]) -> float:
        if coalition not in known:
            orders = replay(team, rollout.decision, query.view(), query.account(), Guard(settings.limits), coalition)
            known[coalition] = judge.outcome(orders).score
        return known[coalition]

    return value
