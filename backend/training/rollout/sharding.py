"""One shard of a step: a part of its queries, rolled out on its own.

The queries of a step are drawn by seed and divided in order, so that whoever rolls out a shard rolls out the same one,
and a step is the same however many workers share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from backend.config.training import TrainingConfig
from backend.training.curriculum.curriculum import Stage
from backend.training.curriculum.queries import Query, QueryPool
from backend.training.rollout.collect import Practice, Rollout, RolloutSettings, collect, practise
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
    asked, practised = step_queries(pool, config, step, stage, team)
    seed = derive_seed(config.seed, "step", step)
    own, other = part(asked, shard, config.shards), part(practised, shard, config.shards)
    return Shard(
        collect(team, engine, own, settings, seed, throughput=throughput),
        practise(team, engine, other, settings, seed, throughput, partial(_practising, config, team)),
    )


def step_queries(
    pool: QueryPool, config: TrainingConfig, step: int, stage: Stage, team: Team
) -> tuple[list[Query], list[Query]]:
    """The queries of a step: those that the team decides on, and those that the sub-agents practise on.

    In stage 1 a quarter is for the manager's format; on the others the sub-agents practise without it, and in both
    stages `practice_roles` on the further ones that `practice_queries` asks for. These are drawn from all windows, as
    they come: a forecast that was learnt where the trend is clearest is too sure of itself. Who is frozen does not
    practise, and a single agent has nobody who could.
    """
    queries = pool.draw(config.seed, step, config.queries_per_step, stage.easy, stage.hard)
    if not team.sub_agents:
        return queries, []
    teams = -(-len(queries) // 4) if stage.number == 1 else len(queries)
    more = pool.draw(derive_seed(config.seed, "practice"), step, config.practice_queries, easy=False)
    further = [replace(query, key=f"{step}-{_first_further(config) + place}") for place, query in enumerate(more)]
    practised = [query for query in (*queries[teams:], *further) if _practising(config, team, query)]
    return queries[:teams], practised


def _practising(config: TrainingConfig, team: Team, query: Query) -> set[str]:
    """The sub-agents that practise on a query."""
    everybody = {one.key for one in team.sub_agents.values()}
    chosen = set(config.practice_roles) if query.number >= _first_further(config) else set()
    return (everybody & chosen if chosen else everybody) - set(config.freeze)


def _first_further(config: TrainingConfig) -> int:
    """The number of a step's first query of `practice_queries`, behind those that dynamic sampling may give."""
    return config.queries_per_step * (1 + config.dynamic_rounds)


def part(items: Sequence[T], number: int, parts: int) -> list[T]:
    """Part `number` of `items` in `parts` contiguous parts whose lengths differ by one at most."""
    return list(items[len(items) * number // parts : len(items) * (number + 1) // parts])
