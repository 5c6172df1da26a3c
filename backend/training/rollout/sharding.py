"""One shard of a step: a part of its queries, rolled out on its own.

The queries of a step are drawn by seed and divided in order, so that whoever rolls out a shard rolls out the same one,
and a step is the same however many workers share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from backend.config.training import TrainingConfig
from backend.policies.weight_sync import Publisher
from backend.training.chosen_recipe import credit_of
from backend.training.curriculum.curriculum import Stage
from backend.training.curriculum.queries import Query, QueryPool
from backend.training.rollout.collect import Practice, Rollout, RolloutSettings, collect, practise
from backend.training.rollout.role_outcomes import role_outcomes
from cryptosentinel.llm.engine import Engine
from cryptosentinel.scheduler import Throughput
from cryptosentinel.team import Team, derive_seed

_T = TypeVar("_T")


@dataclass(frozen=True)
class ShardQueries:
    """The queries of a shard: those that the team decides on, and those that its sub-agents practise on."""

    team: list[Query]
    practice: list[Query] = field(default_factory=list)

    def numbers(self) -> list[int]:
        """The numbers of all of them in the step."""
        return [query.number for query in (*self.team, *self.practice)]


@dataclass(frozen=True)
class Shard:
    """Rollouts of the team, and practice of its sub-agents, a list a query."""

    team: list[list[Rollout]]
    practice: list[list[Practice]]


class ShardCollector:
    """Rolls out the shards of a step with one team and one engine."""

    def __init__(
        self,
        team: Team,
        engine: Engine,
        publisher: Publisher,
        pool: QueryPool,
        settings: RolloutSettings,
        config: TrainingConfig,
    ) -> None:
        self._team = team
        self._engine = engine
        self._publisher = publisher
        self._pool = pool
        self._settings = settings
        self._config = config
        self._credit = credit_of(config)

    def queries(self, step: int, stage: Stage) -> list[ShardQueries]:
        """The queries of each of the `training.shards` shards of a step."""
        asked, practised = step_queries(self._pool, self._config, step, stage, self._team)
        shards = self._config.shards
        return [ShardQueries(part(asked, one, shards), part(practised, one, shards)) for one in range(shards)]

    def roll_out(self, step: int, queries: ShardQueries, throughput: Throughput) -> Shard:
        """Roll a shard out with the weights that the engine has.

        The engine's cache is emptied first. What a validation or another shard left there would move log-probs by a
        rounding error, and a resumed run or another worker does not have it.
        """
        self._publisher.forget()
        seed = derive_seed(self._config.seed, "step", step)
        team, engine, settings = self._team, self._engine, self._settings
        roles = partial(_practising, self._config, team)
        groups = collect(team, engine, queries.team, settings, seed, throughput=throughput)
        return Shard(groups, practise(team, engine, queries.practice, settings, seed, throughput, roles))

    def validate(self, queries: Sequence[Query], seed: int) -> list[list[Rollout]]:
        """The rollouts of a shard of a validation, as one list a state, with the weights that the engine has. Its cache
        is emptied first, as in `roll_out`."""
        self._publisher.forget()
        return collect(self._team, self._engine, queries, self._settings, seed)

    def role_outcomes(self, groups: Sequence[Sequence[Rollout]], stage: Stage) -> dict[str, list[list[float]]]:
        """By role, the part of the outcome that each rollout credits it with (`rollout.role_outcomes`); empty in a
        stage that pays for no outcome."""
        if self._credit is None or not stage.pays_outcome:
            return {}
        return role_outcomes(self._team, groups, self._settings, self._credit)


def step_queries(
    pool: QueryPool, config: TrainingConfig, step: int, stage: Stage, team: Team
) -> tuple[list[Query], list[Query]]:
    """The queries of a step: those that the team decides on, and those that the sub-agents practise on.

    In stage 1 a quarter is for the manager's format; on the others the sub-agents practise without it, and in both
    stages `practice_roles` on the further ones that `practice_queries` asks for. These are drawn from all windows, as
    they come: a forecast that was learnt where the trend is clearest is too sure of itself. Who is frozen does not
    practise, and a single agent has nobody who could.
    """
    queries = pool.draw(config.seed, step, config.queries_per_step, stage.easy)
    if not team.sub_agents:
        return queries, []
    teams = -(-len(queries) // 4) if stage.number == 1 else len(queries)
    more = pool.draw(derive_seed(config.seed, "practice"), step, config.practice_queries, easy=False)
    further = [replace(query, key=f"{step}-{config.queries_per_step + place}") for place, query in enumerate(more)]
    practised = [query for query in (*queries[teams:], *further) if _practising(config, team, query)]
    return queries[:teams], practised


def _practising(config: TrainingConfig, team: Team, query: Query) -> set[str]:
    """The sub-agents that practise on a query."""
    everybody = {one.key for one in team.sub_agents.values()}
    chosen = set(config.practice_roles) if query.number >= config.queries_per_step else set()
    return (everybody & chosen if chosen else everybody) - set(config.freeze)


def part(items: Sequence[_T], number: int, parts: int) -> list[_T]:
    """Part `number` of `items` in `parts` contiguous parts whose lengths differ by one at most."""
    return list(items[len(items) * number // parts : len(items) * (number + 1) // parts])
