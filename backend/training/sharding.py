"""One shard of a step: a part of its queries, rolled out on its own.

The queries of a step are drawn by seed and divided in order, so that whoever rolls out a shard rolls out the same one,
and a step is the same however many workers share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from backend.config import TrainingConfig
from backend.training.curriculum import Stage
from backend.training.queries import Query, QueryPool
from backend.training.rollouts import Practice, Rollout, RolloutSettings, collect, practise
from cryptosentinel.llm.engine import Engine
from cryptosentinel.scheduler import Throughput
from cryptosentinel.team import Team, derive_seed

T = TypeVar("T")


@dataclass(frozen=True)
class Shard:
    """Rollouts of the team, and practice of its sub-agents, a list a query."""

    team: list[list[Rollout]]
    practice: list[list[Practice]]


def roll_out(
    team: Team,
    engine: Engine,
    pool: QueryPool,
    settings: RolloutSettings,
    config: TrainingConfig,
    step: int,
    stage: Stage,
    shard: int,
    throughput: Throughput,
) -> Shard:
    """Shard number `shard` of the `config.shards` of a step."""
    asked, practised = step_queries(pool, config, step, stage)
    seed = derive_seed(config.seed, "step", step)
    own, other = part(asked, shard, config.shards), part(practised, shard, config.shards)
    return Shard(
        collect(team, engine, own, settings, seed, throughput=throughput),
        practise(team, engine, other, settings, seed, throughput),
    )


def step_queries(pool: QueryPool, config: TrainingConfig, step: int, stage: Stage) -> tuple[list[Query], list[Query]]:
    """The queries of a step: those that the team decides on, and those that the sub-agents practise on.

    In stage 1 a quarter is for the manager's format; on the others the sub-agents practise without it.
    """
    queries = pool.draw(config.seed, step, config.queries_per_step, stage.easy)
    teams = -(-len(queries) // 4) if stage.number == 1 else len(queries)
    return queries[:teams], queries[teams:]


def part(items: Sequence[T], number: int, parts: int) -> list[T]:
    """Part `number` of `items` in `parts` contiguous parts whose lengths differ by one at most."""
    return list(items[len(items) * number // parts : len(items) * (number + 1) // parts])
