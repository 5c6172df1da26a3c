"""What rolls out, and one shard of a step: a part of its queries, rolled out on its own.

The queries of a step are drawn by seed and divided in order, so that every process rolls out the same shard,
and a step is the same however many workers share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from backend.builders.engines import served_engine
from backend.builders.market import split
from backend.builders.plugins import load_plugins
from backend.builders.teams import model_team, team_over, with_prompts_for
from backend.config.schema import Config
from backend.config.training import TrainingConfig
from backend.policies.adapters import Publisher
from backend.policies.build import role_policies
from backend.policies.hardware import hardware_of
from backend.policies.role_policies import RolePolicies
from backend.training.chosen_recipe import credit_of
from backend.training.curriculum.curriculum import Stage
from backend.training.curriculum.queries import Query, QueryPool, gross_limit, pools_of
from backend.training.rollout.collect import Practice, Rollout, RolloutSettings, collect, practise, rollout_settings
from backend.training.rollout.role_outcomes import role_outcomes
from cryptosentinel.agents.registry import roles_of
from cryptosentinel.llm.engine import Engine
from cryptosentinel.scheduler import Throughput
from cryptosentinel.team import Team, derive_seed
from simulator.market.market import Market

_T = TypeVar("_T")


@dataclass(frozen=True)
class RolloutParts:
    """What every process that rolls out has: the policies as a run begins with them, the team that decides with them
    over its engine, and the windows to decide in."""

    config: TrainingConfig
    settings: RolloutSettings
    team: Team
    engine: Engine
    policies: RolePolicies
    pool: QueryPool
    validation_pool: QueryPool


def begun_parts(config: Config, market: Market, run: str, base: Path, start: Path | None) -> RolloutParts:
    """The parts over the base model in `base`, with the weights in `start` where there are some. Raises `UserError`."""
    load_plugins(config)
    training, horizon = config.training, config.team.horizon_bars
    working = with_prompts_for(config.team, base)
    parts = split(market, config.market, horizon)
    pool, validation_pool = pools_of(training, market, (parts.train, parts.validation), horizon, gross_limit(config))
    policies, codec = role_policies(
        base,
        training,
        think=config.team.thinking_tokens > 0,
        roles=roles_of(config.team.roles),
        hardware=hardware_of(training),
        start=start,
    )
    if config.engine.kind == "vllm":
        think = config.team.thinking_tokens > 0
        served = served_engine(config.engine, base, training.lora_rank, think=think)
        loaded = team_over(run, served, working, training.temperature)
    else:
        loaded = model_team(run, policies, codec, working, training.temperature, training.precision)
    settings = rollout_settings(config, training.rollouts_per_query)
    return RolloutParts(training, settings, loaded.team, loaded.engine, policies, pool, validation_pool)


@dataclass(frozen=True)
class ShardQueries:
    """The queries of a shard: those that the team decides on, and those that its sub-agents practice on."""

    team: list[Query]
    practice: list[Query] = field(default_factory=list)


@dataclass(frozen=True)
class Shard:
    """Rollouts of the team, and practice of its sub-agents, a list a query."""

    team: list[list[Rollout]]
    practice: list[list[Practice]]


class ShardCollector:
    """Rolls out the shards of a step with one team and one engine, whose weights the `publisher` changes."""

    def __init__(self, parts: RolloutParts, publisher: Publisher) -> None:
        self.parts = parts
        self._publisher = publisher
        self._credit = credit_of(parts.config)

    def queries(self, step: int, stage: Stage) -> list[ShardQueries]:
        """The queries of each of the `training.shards` shards of a step."""
        config = self.parts.config
        asked, practised = step_queries(self.parts.pool, config, step, stage, self.parts.team)
        shards = config.shards
        return [ShardQueries(part(asked, one, shards), part(practised, one, shards)) for one in range(shards)]

    def roll_out(self, step: int, queries: ShardQueries, throughput: Throughput) -> Shard:
        """Roll a shard out with the weights that the engine has.

        The engine's cache is emptied first. What a validation or another shard left there would move log-probs by a
        rounding error, and a resumed run or another worker does not have it.
        """
        self._publisher.forget()
        seed = derive_seed(self.parts.config.seed, "step", step)
        team, engine, settings = self.parts.team, self.parts.engine, self.parts.settings
        roles = partial(_practising, self.parts.config, team)
        groups = collect(team, engine, queries.team, settings, seed, throughput=throughput)
        return Shard(groups, practise(team, engine, queries.practice, settings, seed, throughput, roles))

    def validate(self, queries: Sequence[Query], seed: int) -> list[list[Rollout]]:
        """The rollouts of a shard of a validation, as one list a state, with the weights that the engine has. Its cache
        is emptied first, as in `roll_out`."""
        self._publisher.forget()
        return collect(self.parts.team, self.parts.engine, queries, self.parts.settings, seed)

    def role_outcomes(self, groups: Sequence[Sequence[Rollout]], stage: Stage) -> dict[str, list[list[float]]]:
        """By role, the part of the outcome that each rollout credits it with (`rollout.role_outcomes`); empty in a
        stage that pays for no outcome."""
        if self._credit is None or not stage.pays_outcome:
            return {}
        return role_outcomes(self.parts.team, groups, self.parts.settings, self._credit)


def step_queries(
    pool: QueryPool, config: TrainingConfig, step: int, stage: Stage, team: Team
) -> tuple[list[Query], list[Query]]:
    """The queries of a step: those that the team decides on, and those that the sub-agents practice on.

    In stage 1 a quarter is for the manager's format; on the others the sub-agents practice without it, and in both
    stages on the further ones that `training.practice` asks for. These are drawn from all windows, as
    they come: a forecast that was learnt where the trend is clearest is too sure of itself. Who is frozen does not
    practice, and a single agent has nobody who could.
    """
    queries = pool.draw(config.seed, step, config.queries_per_step, stage.easy)
    if not team.sub_agents:
        return queries, []
    teams = -(-len(queries) // 4) if stage.number == 1 else len(queries)
    more = pool.draw(derive_seed(config.seed, "practice"), step, max(config.practice.values(), default=0), easy=False)
    further = [replace(query, key=f"{step}-{config.queries_per_step + place}") for place, query in enumerate(more)]
    practised = [query for query in (*queries[teams:], *further) if _practising(config, team, query)]
    return queries[:teams], practised


def _practising(config: TrainingConfig, team: Team, query: Query) -> set[str]:
    """The sub-agents that practice on a query."""
    everybody = {one.key for one in team.sub_agents.values()}
    further = query.number - config.queries_per_step
    if further >= 0:
        everybody &= {role for role, windows in config.practice.items() if further < windows}
    return everybody - set(config.freeze)


def part(items: Sequence[_T], number: int, parts: int) -> list[_T]:
    """Part `number` of `items` in `parts` contiguous parts whose lengths differ by one at most."""
    return list(items[len(items) * number // parts : len(items) * (number + 1) // parts])
