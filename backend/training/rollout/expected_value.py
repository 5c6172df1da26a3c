"""What decisions are worth in expectation, beside the achievable value, on states of a private market.

A team decides once in each state. Its decision is scored over common scenarios that begin with what could be known
(`QueryPool`'s beliefs), so luck is in neither the regime nor the window. Beside it stands what `decision_values` says
of the same state: the best decision given all evidence, given all but one source, given none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from backend.training.curriculum.queries import Query
from backend.training.rollout.collect import Rollout, RolloutSettings, collect
from cryptosentinel.llm.engine import Engine
from cryptosentinel.team import Team, derive_seed
from simulator.arrays import FloatArray
from simulator.errors import DataError
from simulator.synthetic.information import DecisionValues, decision_values

LIMIT_LEVELS = tuple(np.linspace(-1.0, 1.0, 9).tolist())
CERTAIN = 3.0  # standard errors by which a team must beat the evidence before it is called a defect
NEGLIGIBLE = 0.002  # of the outcome, which the values' linear costs may leave out


def evidence_values(queries: Sequence[Query], settings: RolloutSettings) -> list[DecisionValues]:
    """The achievable value in each state, in units of the outcome score, without the price of questions.

    Raises `DataError` for states without beliefs, of several coins, or of a market that is not private.
    """
    return [_values(query, settings) for query in queries]


def _values(query: Query, settings: RolloutSettings) -> DecisionValues:
    if query.belief is None or len(query.symbols) != 1:
        raise DataError(
            f"{query.market.source}: the achievable value is known of one coin's states with beliefs; set "
            "training.scenario_source=beliefs and team.portfolio=false"
        )

    def utility(net: FloatArray) -> FloatArray:
        return settings.functions.outcomes(net, query.volatility, settings.tail)

    return decision_values(
        query,
        query.belief,
        settings.costs,
        utility,
        horizon=settings.horizon_bars,
        paths=settings.scenario_paths,
        seed=derive_seed(query.seed, "evidence"),
        levels=LIMIT_LEVELS,
    )


def decisions_in(
    team: Team, engine: Engine, queries: Sequence[Query], settings: RolloutSettings, seed: int
) -> list[Rollout]:
    """One decision of the team in each state."""
    return [rollout for [rollout] in collect(team, engine, queries, replace(settings, rollouts_per_query=1), seed)]


def scores_in(rollouts: Sequence[Rollout]) -> FloatArray:
    """The outcome scores of N decisions, (N,)."""
    return np.array([rollout.outcome.score for rollout in rollouts])


def check_within_evidence(name: str, scores: FloatArray, allowed: Sequence[DecisionValues]) -> None:
    """Raise `DataError` where a team earns more than the evidence allows: then something it reads knows what is hidden,
    and whatever is learnt from it is learnt from a leak. `scores` are of scenarios that begin with the regimes that
    were there, since only there knowing them pays. With some hundred states it sees a leak of a hundredth of the
    outcome, and no smaller one."""
    above = scores - np.array([one.came for one in allowed])
    mean, error = float(above.mean()), float(above.std(ddof=1) / np.sqrt(len(above)))
    if mean > NEGLIGIBLE + CERTAIN * error:
        raise DataError(
            f"{name} is {mean:.3f} of the outcome better than the evidence allows (standard error {error:.3f}, "
            f"{len(above)} states): something that it reads knows the hidden state. This is a defect of the market or "
            "of a tool; do not train on it"
        )
