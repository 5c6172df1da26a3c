"""Held-out scores: what each role is worth on states that it was not trained on, before and after, paired.

MarketAnalyst, RiskAnalyst and Trader are asked directly and scored by their expert scores; the manager is scored by the
outcome of the whole team. An invalid answer scores 0, as in the rewards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from backend.builders.loaded_team import LoadedTeam
from backend.statistics.mean_interval import mean_interval
from backend.training.curriculum.queries import Query
from backend.training.rollout.collect import RolloutSettings, collect, practise
from cryptosentinel.agents.registry import MANAGER, ROLES

_CHUNK = 16  # states scored at a time, for the progress bar alone


@dataclass(frozen=True)
class RoleScores:
    """Scores and validity (states, samples) of one role. A score is NaN where a valid answer had nothing to measure."""

    score: npt.NDArray[np.float64]
    valid: npt.NDArray[np.bool_]

    def of_states(self) -> npt.NDArray[np.float64]:
        """Mean score of each state, (states,); NaN where nothing was measured."""
        measured = np.isfinite(self.score)
        totals = np.where(measured, self.score, 0.0).sum(axis=1)
        return np.where(measured.any(axis=1), totals / np.maximum(1, measured.sum(axis=1)), np.nan)


def score_roles(
    loaded: LoadedTeam,
    queries: Sequence[Query],
    settings: RolloutSettings,
    seed: int,
    on_scored: Callable[[int, int], None],
) -> dict[str, RoleScores]:
    """Every role of a team on `queries`, K answers each. Teams that are given the same seed answer the same questions
    with the same draws. `on_scored` gets the number of states done, and of all."""
    shape = (len(queries), settings.rollouts_per_query)
    scores = {role: np.full(shape, np.nan) for role in ROLES}
    valid = {role: np.zeros(shape, np.bool_) for role in ROLES}
    for start in range(0, len(queries), _CHUNK):
        part = queries[start : start + _CHUNK]
        for row, group in enumerate(collect(loaded.team, loaded.engine, part, settings, seed), start):
            for rollout in group:
                scores[MANAGER.key][row, rollout.number] = rollout.shared_outcome
                valid[MANAGER.key][row, rollout.number] = rollout.main.valid
        for row, practices in enumerate(practise(loaded.team, loaded.engine, part, settings, seed), start):
            for practice in practices:
                for call in practice.subs:
                    valid[call.role][row, practice.number] = call.valid
                    if not call.valid:
                        scores[call.role][row, practice.number] = 0.0
                    elif call.expert is not None:
                        scores[call.role][row, practice.number] = call.expert
        on_scored(start + len(part), len(queries))
    return {role: RoleScores(scores[role], valid[role]) for role in ROLES}


def compare_roles(
    before: dict[str, RoleScores],
    after: dict[str, RoleScores],
    reference: dict[str, RoleScores],
    samples: int,
    seed: int,
) -> dict[str, dict[str, Any]]:
    """Per role: mean scores before, after and of a reference team over the states that all three were measured on, the
    paired difference after - before with its 95 % bootstrap interval over states, and the shares of valid answers.
    Neighboring states share bars, so that an interval is somewhat too narrow.

    A difference is None where fewer than two states can be compared.
    """
    comparison: dict[str, dict[str, Any]] = {}
    for role in ROLES:
        rows = np.stack([one[role].of_states() for one in (before, after, reference)])  # (3, states)
        rows = rows[:, np.isfinite(rows).all(axis=0)]
        means = [_mean(row) for row in rows]
        comparison[role] = {
            "states": rows.shape[1],
            "before": means[0],
            "after": means[1],
            "reference": means[2],
            "difference": _difference(rows[1] - rows[0], samples, seed),
            "valid_before": float(before[role].valid.mean()),
            "valid_after": float(after[role].valid.mean()),
        }
    return comparison


def _difference(row: npt.NDArray[np.float64], samples: int, seed: int) -> dict[str, Any] | None:
    if len(row) < 2:
        return None
    return {"mean": float(row.mean()), "ci95": list(mean_interval(row, samples, seed))}


def _mean(row: npt.NDArray[np.float64]) -> float | None:
    return float(row.mean()) if len(row) else None
