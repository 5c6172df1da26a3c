"""How much of the team's outcome one sub-agent is credited with: all of it, or what its effect on the orders changed.

    broadcast       all of the outcome (M-GRPO, arXiv 2511.13288); no function is needed for it
    counterfactual  D_i = v(N) - v(N without i): the difference reward (Wolpert & Tumer 2001; COMA, arXiv 1705.08926,
                    takes it as a baseline)
    shapley         phi_i = sum over S within N without i of |S|! (n - |S| - 1)! / n! (v(S with i) - v(S)), exact: the
                    phi_i add up to v(N) - v(nobody), and equal roles get equal shares (Shapley 1953)

N are the n sub-agents whose effect can be taken away, v(S) in [0, 1] is the outcome with the effects of S alone. The
values lie in [-1, 1]; `outcome_credit` maps them to a reward part in [0, 1], one half where a role changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from math import factorial
from typing import Literal

CreditMethod = Literal["broadcast", "counterfactual", "shapley"]
CoalitionValue = Callable[[frozenset[str]], float]


def difference_rewards(value: CoalitionValue, players: Sequence[str]) -> dict[str, float]:
    """v(all players) - v(all but this one), by player, in [-1, 1]."""
    everyone = frozenset(players)
    return {player: value(everyone) - value(everyone - {player}) for player in players}


def shapley_values(value: CoalitionValue, players: Sequence[str]) -> dict[str, float]:
    """The Shapley value of each player in [-1, 1], over all 2^n coalitions of n players."""
    n = len(players)
    values: dict[str, float] = {}
    for player in players:
        others = [other for other in players if other != player]
        values[player] = sum(
            factorial(size) * factorial(n - size - 1) / factorial(n) * (value(coalition | {player}) - value(coalition))
            for size in range(n)
            for coalition in map(frozenset, combinations(others, size))
        )
    return values


def outcome_credit(value: float) -> float:
    """A difference reward or Shapley value in [-1, 1] as the outcome part of a reward in [0, 1]: (1 + value) / 2."""
    return 0.5 * (1.0 + value)
