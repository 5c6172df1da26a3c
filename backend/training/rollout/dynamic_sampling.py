"""Dynamic sampling (DAPO, arXiv 2503.14476): further queries in place of those that teach the manager nothing.

A query whose rollouts all earned the manager the same reward has no advantage. In stage 2, up to `dynamic_rounds` times
a step, as many queries are drawn as are missing to `queries_per_step` informative ones. The draw depends on the step's
rollouts, the run's seed, the step and the round alone, so all processes that roll out a step draw the same.

Degenerate groups stay in the step, as the sub-agents may differ in them by their expert scores. The manager's
denominator does not count them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from backend.config.training import TrainingConfig
from backend.training.algorithm.credit import TeamAttempt, assign_credit, score_main
from backend.training.curriculum.curriculum import Stage, credit_settings
from backend.training.curriculum.queries import Query, QueryPool
from backend.training.rollout.sharding import part
from cryptosentinel.team import derive_seed


def sample_further(
    pool: QueryPool,
    config: TrainingConfig,
    step: int,
    stage: Stage,
    groups: Callable[[int, int], Sequence[Sequence[TeamAttempt]]],
    roll_out: Callable[[int, list[list[Query]]], None],
) -> dict[str, float]:
    """Roll out further queries until a step has enough informative ones or its rounds are used up.

    `groups(rounds, known)` are the rollouts of the first `known` queries, once `rounds` rounds are complete;
    `roll_out(number, shards)` rolls out the queries of a round, divided into shards. The result are the metrics of it,
    none for a step that may not have further queries.
    """
    if not samples_further(config, stage):
        return {}
    known = config.queries_per_step
    lacking = missing(config, stage, groups(0, known))
    for number in range(config.experimental.dynamic_rounds):
        if not lacking:
            break
        queries = _draw(pool, config, step, stage, number, known, lacking)
        roll_out(number, [part(queries, shard, config.shards) for shard in range(config.shards)])
        known += lacking
        lacking = missing(config, stage, groups(number + 1, known))
    return {"dynamic/queries": float(known - config.queries_per_step), "dynamic/missing": float(lacking)}


def samples_further(config: TrainingConfig, stage: Stage) -> bool:
    """Whether a step of this stage may have further queries."""
    return stage.number == 2 and config.experimental.dynamic_rounds > 0


def missing(config: TrainingConfig, stage: Stage, groups: Sequence[Sequence[TeamAttempt]]) -> int:
    """How many informative queries a step still lacks; `groups` are the rollouts of each query so far."""
    settings = credit_settings(config, stage)
    degenerate = assign_credit(score_main(groups, stage.alpha, settings), settings).degenerate
    return config.queries_per_step - (len(groups) - degenerate)


def _draw(
    pool: QueryPool, config: TrainingConfig, step: int, stage: Stage, number: int, known: int, lacking: int
) -> list[Query]:
    """The `lacking` queries of round `number` of a step that has `known` of them already."""
    drawn = pool.draw(derive_seed(config.seed, "dynamic", number), step, lacking, stage.easy, stage.hard)
    return [replace(query, key=f"{step}-{known + i}") for i, query in enumerate(drawn)]
