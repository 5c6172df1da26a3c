"""What decisions are worth on held-out states: equal teams earn the same, and better ones more."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from backend.builders.loaded_team import LoadedTeam, scripted_team
from backend.builders.market import load_market, split
from backend.config.load import load_config
from backend.config.schema import Config
from backend.evaluation.held_out_value import (
    SCENARIOS,
    greedy_teams,
    held_out_value,
)
from backend.statistics.mean_interval import RESAMPLES, mean_interval
from backend.training.curriculum.queries import QueryPool
from backend.training.rollout.collect import collect, rollout_settings
from benchmarks.run import TREND_MARKET
from cryptosentinel.llm.chat_codec import make_byte_codec
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.scripted_team import novice_policies
from cryptosentinel.teachers import Teacher
from simulator.synthetic.oracle import regime_beliefs

WINDOWS, STATES = 6, 36


@cache
def config(teacher: str = "expert") -> Config:
    return load_config(
        TREND_MARKET,
        [
            "market.bars=1600", "market.coins=2", f"evaluation.states={STATES}", f"evaluation.windows={WINDOWS}",
            f"nano.teacher={teacher}", "training.scenario_source=truth",
        ],
    )  # fmt: skip


def teams(teacher: str = "expert", begun: Teacher | None = None) -> list[LoadedTeam]:
    """Rules in the places of models: "trained" reads all evidence, and the initial team is another teacher's, or
    answers at random."""
    expert = scripted_team(config().team)
    engine = ScriptedEngine(make_byte_codec(), novice_policies())
    other = replace(expert, engine=engine) if begun is None else scripted_team(config().team, begun)
    return greedy_teams(config(teacher), expert, other)


@cache
def measured(teacher: str = "expert") -> dict[str, Any]:
    market = load_market(config().market, config().costs)
    begun: Teacher | None = "random_all" if teacher == "random_all" else None
    return held_out_value(config(teacher), market, teams(teacher, begun), lambda *args: None)


def test_a_team_that_decides_as_its_teacher_earns_what_it_earns() -> None:
    by_name = {row["against"]: row for row in measured()["differences"]}
    assert list(by_name) == ["teacher", "warm_started", "holding"]
    for key in ("net_return", "outcome"):
        assert by_name["teacher"][key] == 0.0 and by_name["teacher"][f"{key}_ci95"] == [0.0, 0.0]
    assert by_name["warm_started"]["net_return_ci95"][0] > 0.0  # which answers at random


def test_the_teacher_is_that_of_the_warm_start() -> None:
    document = measured("random_all")
    assert [team.name for team in teams("random_all", "random_all")][-2:] == ["teacher", "scripted"]
    assert document["rows"]["teacher"] == document["rows"]["warm_started"]
    assert document["rows"]["scripted"] == document["rows"]["trained"] == measured()["rows"]["teacher"]


def test_the_figures_are_those_of_the_rollouts() -> None:
    """States of the held-out part with scenarios that begin with beliefs, and intervals of the means of stretches."""
    market = load_market(config().market, config().costs)
    start, stop = split(market, config().market, config().team.horizon_bars).held_out
    pool = QueryPool(market, start, stop, config().team.horizon_bars, beliefs=regime_beliefs(market))
    queries = pool.draw(config().evaluation_seed, 0, STATES, easy=False)
    judged = rollout_settings(config().model_copy(update={"training": config().training.model_copy(
        update={"scenario_paths": SCENARIOS})}), 1)  # fmt: skip
    team, *_ = teams()
    rollouts = [rollout for [rollout] in collect(team.team, team.engine, queries, judged, config().evaluation_seed)]
    earned = np.array([rollout.outcome.net_return for rollout in rollouts])
    held = np.array([judged.scorer(query).outcome([]).net_return for query in queries])
    document = measured()
    assert document["rows"]["trained"]["net_return"] == pytest.approx(earned.mean(), abs=1e-15)
    assert document["rows"]["holding"]["net_return"] == pytest.approx(held.mean(), abs=1e-15)
    assert document["rows"]["holding"]["traded"] == document["rows"]["holding"]["questions"] == 0.0
    bars = np.array([query.bar for query in queries])
    assert bars.min() >= start and bars.max() + config().team.horizon_bars <= stop
    width = (bars.max() + 1 - bars.min()) / WINDOWS
    stretch = ((bars - bars.min()) / width).astype(int)
    means = [(earned - held)[stretch == number].mean() for number in range(WINDOWS) if (stretch == number).any()]
    against_holding = document["differences"][-1]
    assert against_holding["net_return"] == pytest.approx(np.mean(means), abs=1e-15)
    interval = mean_interval(means, RESAMPLES, config().evaluation_seed)
    assert against_holding["net_return_ci95"] == pytest.approx(interval, abs=1e-15)
