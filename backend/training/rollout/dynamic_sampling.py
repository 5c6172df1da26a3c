"""Dynamic sampling (DAPO, arXiv 2503.14476): further queries in place of those that teach the manager nothing.

A query whose rollouts all earned the manager the same reward has no advantage. In stage 2, up to `dynamic_rounds` times
a step, as many queries are drawn as are missing to `queries_per_step` informative ones. Who draws needs nothing but the
step's rollouts, the run's seed, the step and the round; so all who roll out a step apart draw the same. Degenerate
groups stay in the step, for the sub-agents may differ in them by their expert scores; of the manager's denominator they
are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from backend.config.training import TrainingConfig
from backend.training.algorithm.credit import TeamAttempt, credit_main, credit_settings
from backend.training.curriculum.curriculum import Stage
from backend.training.curriculum.queries import Query, QueryPool
from cryptosentinel.team import derive_seed


def samples_on(config: TrainingConfig, stage: Stage) -> bool:
    """Whether a step of this stage may have further queries."""
    return stage.number == 2 and config.dynamic_rounds > 0


def missing(config: TrainingConfig, stage: Stage, groups: Sequence[Sequence[TeamAttempt]]) -> int:
    """How many informative queries a step still lacks; `groups` are the rollouts of each query so far."""
    degenerate = credit_main(groups, stage.alpha, credit_settings(config, stage)).degenerate
    return config.queries_per_step - (len(groups) - degenerate)


def further(
    pool: QueryPool, config: TrainingConfig, step: int, stage: Stage, number: int, known: int, lacking: int
) -> list[Query]:
    """The `lacking` queries of round `number` of a step that has `known` of them already."""
    drawn = pool.draw(derive_seed(config.seed, "dynamic", number), step, lacking, stage.easy, stage.hard)
    return [replace(query, key=f"{step}-{known + i}") for i, query in enumerate(drawn)]


def told(config: TrainingConfig, known: int, lacking: int) -> dict[str, float]:
    """The metrics of a step that ended with `known` queries and still lacks some."""
    return {"dynamic/queries": float(known - config.queries_per_step), "dynamic/missing": float(lacking)}
