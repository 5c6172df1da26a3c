"""What each role of a team does where it matters: in one state 1 where it does it, 0 where not, and not a number where
the question does not arise. The states are judged by the public signs of a private market, not by what a role says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from backend.training.curriculum.queries import Query
from backend.training.rollout.collect import Rollout
from simulator.arrays import FloatArray
from simulator.synthetic.private import WIDE_SPREAD

CLEAR = 0.6  # least difference between the chances of a rising and a falling market


def role_behaviours(rollouts: Sequence[Rollout]) -> dict[str, FloatArray]:
    """Of each role, (N,): whether

    * the manager consults every role of its team,
    * MarketAnalyst finds the likelier direction right where the evidence is clear,
    * RiskAnalyst reduces or vetoes a position in a crowded coin,
    * the team trades at the market while the spread is wide, against which Trader's tools warn.
    """
    return {role: np.array([does(one) for one in rollouts]) for role, does in _BEHAVIOURS.items()}


def joined_behaviours(parts: Sequence[Mapping[str, FloatArray]]) -> dict[str, FloatArray]:
    """Those of all states, where those of some stretches of them are in `parts`."""
    return {role: np.concatenate([part[role] for part in parts]) for role in parts[0]}


def shares(behaviours: Mapping[str, FloatArray]) -> dict[str, float | None]:
    """The share of the states in which each role does it; None where the question never arises."""
    asked = {role: values[~np.isnan(values)] for role, values in behaviours.items()}
    return {role: float(values.mean()) if len(values) else None for role, values in asked.items()}


def _consults_all(rollout: Rollout) -> float:
    return float({one.role for one in rollout.subs} >= set(_BEHAVIOURS) - {"manager"})


def _finds_direction(rollout: Rollout) -> float:
    belief, answer = rollout.query.belief, _answer(rollout, "market_analyst")
    evidence = 0.0 if belief is None else belief[2] - belief[0]
    if answer is None or abs(evidence) < CLEAR:
        return np.nan
    return float((answer["up"] - answer["down"]) * evidence > 0.0)


def _limits_crowded(rollout: Rollout) -> float:
    query, answer = rollout.query, _answer(rollout, "risk_analyst")
    signs = query.market.signs
    if signs is None or answer is None or not signs.crowded[query.bar, _column(query)]:
        return np.nan
    return float(answer["verdict"] != "approve")


def _pays_wide_spread(rollout: Rollout) -> float:
    query = rollout.query
    if query.market.signs is None or query.market.half_spread[query.bar, _column(query)] < WIDE_SPREAD[0]:
        return np.nan
    return float(any(order.kind == "market" for order in rollout.decision.orders))


_BEHAVIOURS: dict[str, Callable[[Rollout], float]] = {
    "manager": _consults_all,
    "market_analyst": _finds_direction,
    "risk_analyst": _limits_crowded,
    "trader": _pays_wide_spread,
}


def _column(query: Query) -> int:
    return query.market.symbols.index(query.symbol)


def _answer(rollout: Rollout, role: str) -> Mapping[str, Any] | None:
    """A role's first valid answer; None where it gave none."""
    said = (one.answer for one in rollout.decision.transcripts if one.role == role and one.answer is not None)
    return next(said, None)
