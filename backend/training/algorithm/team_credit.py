"""How much of the team's outcome each sub-agent is credited with, chosen by `training.credit`.

N are the n sub-agents whose effect on the orders can be taken away, v(S) in [0, 1] is the outcome with the effects of S
alone. A credit gives each player a share in [-1, 1]; `outcome_credit` maps it to a reward part in [0, 1], one half
where a role changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from math import factorial
from typing import Protocol

CoalitionValue = Callable[[frozenset[str]], float]


class TeamCredit(Protocol):
    """Divides an outcome. One of your own has this method and is named as module:Class."""

    def shares(self, value: CoalitionValue, players: Sequence[str]) -> dict[str, float]:
        """The share of each player in [-1, 1]; a player that is left out has 0."""
        ...


class Counterfactual:
    """D_i = v(N) - v(N without i): the difference reward (Wolpert & Tumer 2001; COMA, arXiv 1705.08926, takes it as a
    baseline)."""

    def shares(self, value: CoalitionValue, players: Sequence[str]) -> dict[str, float]:
        """v(all players) - v(all but this one), by player."""
        everyone = frozenset(players)
        return {player: value(everyone) - value(everyone - {player}) for player in players}


class Shapley:
    """phi_i = sum over S within N without i of |S|! (n - |S| - 1)! / n! (v(S with i) - v(S)), exact: the phi_i add up
    to v(N) - v(nobody), and equal roles get equal shares (Shapley 1953)."""

    def shares(self, value: CoalitionValue, players: Sequence[str]) -> dict[str, float]:
        """The Shapley value of each player, over all 2^n coalitions of n players."""
        n = len(players)
        values: dict[str, float] = {}
        for player in players:
            others = [other for other in players if other != player]
            values[player] = sum(
                factorial(size)
                * factorial(n - size - 1)
                / factorial(n)
                * (value(coalition | {player}) - value(coalition))
                for size in range(n)
                for coalition in map(frozenset, combinations(others, size))
            )
        return values


BROADCAST = "broadcast"  # all of the outcome to everyone (M-GRPO, arXiv 2511.13288); nothing is computed for it
CREDITS: dict[str, type[TeamCredit]] = {"counterfactual": Counterfactual, "shapley": Shapley}


def outcome_credit(value: float) -> float:
    """A share in [-1, 1] as the outcome part of a reward in [0, 1]: (1 + value) / 2."""
    return 0.5 * (1.0 + value)
