"""What rolls out: the policies over a base model, the team over its engine, and where its windows come from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from backend.builders.engines import served_engine
from backend.builders.market import split
from backend.builders.plugins import load_plugins
from backend.builders.teams import model_team, team_over, with_prompts_for
from backend.config.schema import Config
from backend.policies.adapter_shapes import largest_rank
from backend.policies.build import role_policies
from backend.policies.hardware import hardware_of
from backend.policies.role_policies import RolePolicies
from backend.training.curriculum.queries import QueryPool, gross_limit, pools_of
from backend.training.rollout.collect import RolloutSettings, rollout_settings
from cryptosentinel.agents.registry import roles_of
from cryptosentinel.llm.engine import Engine
from cryptosentinel.team import Team
from simulator.market.market import Market


@dataclass(frozen=True)
class RolloutParts:
    """The policies as a run begins with them, the team that decides with them, and the windows to decide in."""

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
        empty_think=config.engine.empty_think,
        think=config.team.thinking_tokens > 0,
        roles=roles_of(config.team.roles),
        hardware=hardware_of(training),
        start=start,
    )
    if config.engine.kind == "vllm":
        think = config.team.thinking_tokens > 0
        served = served_engine(config.engine, base, largest_rank(training), think=think)
        loaded = team_over(run, served, working, training.temperature)
    else:
        loaded = model_team(run, policies, codec, working, training.temperature, training.precision)
    settings = rollout_settings(config, training.rollouts_per_query)
    return RolloutParts(settings, loaded.team, loaded.engine, policies, pool, validation_pool)
