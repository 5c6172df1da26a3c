"""What decisions are worth on held-out states: equal teams earn the same, better ones more, and the verdict says so."""

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
from backend.evaluation.evaluate import verdict
from backend.evaluation.held_out_value import (
    SCENARIOS,
    greedy_teams,
    held_out_states,
    held_out_value,
    value_sentence,
)
from backend.statistics.mean_interval import RESAMPLES, mean_interval
from backend.training.curriculum.queries import QueryPool
from backend.training.rollout.collect import collect, rollout_settings
from benchmarks.run import TREND_MARKET
from cryptosentinel.llm.chat_codec import make_byte_codec
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.scripted_team import novice_policies
from cryptosentinel.teachers import Teacher
from simulator.synthetic.beliefs import regime_beliefs

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
    assert list(by_name) == ["teacher", "warm_started, greedy", "holding"]
    for key in ("net_return", "outcome"):
        assert by_name["teacher"][key] == 0.0 and by_name["teacher"][f"{key}_ci95"] == [0.0, 0.0]
    assert by_name["warm_started, greedy"]["net_return_ci95"][0] > 0.0  # which answers at random


def test_the_teacher_is_that_of_the_warm_start() -> None:
    document = measured("random_all")
    assert [team.name for team in teams("random_all", "random_all")][-2:] == ["teacher", "scripted"]
    assert document["rows"]["teacher"] == document["rows"]["warm_started, greedy"]
    assert document["rows"]["scripted"] == document["rows"]["trained, greedy"] == measured()["rows"]["teacher"]


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
    assert document["rows"]["trained, greedy"]["net_return"] == pytest.approx(earned.mean(), abs=1e-15)
    assert document["rows"]["holding"]["net_return"] == pytest.approx(held.mean(), abs=1e-15)
    assert document["rows"]["holding"]["traded"] == document["rows"]["holding"]["questions"] == 0.0
    answers = [[said.answer for said in one.decision.transcripts if said.role == "trader"] for one in rollouts]
    waits = [[answer["wait"] > 0 for answer in said if answer is not None] for said in answers]
    for key, wait in (("traded_now", False), ("traded_later", True)):
        sent = [bool(one.decision.orders) for one, said in zip(rollouts, waits, strict=True) if said == [wait]]
        assert document["rows"]["trained, greedy"][key] == (np.mean(sent) if sent else None)
        assert document["rows"]["holding"][key] is None
    assert any(waits)
    bars = np.array([query.bar for query in queries])
    assert bars.min() >= start and bars.max() + config().team.horizon_bars <= stop
    width = (bars.max() + 1 - bars.min()) / WINDOWS
    stretch = ((bars - bars.min()) / width).astype(int)
    means = [(earned - held)[stretch == number].mean() for number in range(WINDOWS) if (stretch == number).any()]
    against_holding = document["differences"][-1]
    assert against_holding["net_return"] == pytest.approx(np.mean(means), abs=1e-15)
    interval = mean_interval(means, RESAMPLES, config().evaluation_seed)
    assert against_holding["net_return_ci95"] == pytest.approx(interval, abs=1e-15)


def test_the_story_tells_what_the_teams_did() -> None:
    """By stretch of evidence, and for the whole of all states as the rollouts have it."""
    market = load_market(config().market, config().costs)
    queries = held_out_states(config(), market)
    story = measured("skip_trades")["story"]
    assert sum(story["states"]) == STATES
    evidence = np.array([query.belief[2] - query.belief[0] for query in queries if query.belief])
    assert story["states"][-1] == (evidence >= story["edges"][-2]).sum()

    def mean(name: str, key: str = "position") -> float:
        counted = zip(story[key][name], story["states"], strict=True)
        return sum(number * value for value, number in counted if value is not None) / STATES

    held = np.array([query.exposure for query in queries])
    assert mean("holding") == pytest.approx(held.mean())
    settings = rollout_settings(config(), 1)
    team, *_ = teams()
    rollouts = [rollout for [rollout] in collect(team.team, team.engine, queries, settings, config().evaluation_seed)]
    wished = [
        next((held_of * {"long": 1.0, "short": -1.0, "flat": 0.0}[one["side"]] for one in positions), exposure)
        for rollout, exposure in zip(rollouts, held, strict=True)
        for positions in [(rollout.decision.manager.answer or {}).get("positions", [])]
        for held_of in [float(positions[0].get("exposure") or 0.0) if positions else 0.0]
    ]
    assert mean("trained, greedy") == pytest.approx(np.mean(wished), abs=0.02)  # up to the guard and RiskAnalyst
    assert mean("trained, greedy", "net_return") == pytest.approx(
        measured("skip_trades")["rows"]["trained, greedy"]["net_return"], abs=1e-15
    )
    tools = story["lookups"]
    assert tools["market_analyst"]["get_trend"] == tools["risk_analyst"]["get_risk"] == 1.0
    assert tools["market_analyst"]["get_bars"] == 0.0 and "get_trend" not in tools["trader"]


def difference(against: str, mean: float, low: float, high: float) -> dict[str, Any]:
    bounds = [low, high]
    return {
        "of": "trained, greedy", "against": against, "net_return": mean, "net_return_ci95": bounds, "outcome": mean / 2,
        "outcome_ci95": [low / 2, high / 2],
    }  # fmt: skip


def test_the_verdict_begins_with_the_teacher() -> None:
    value = {
        "states": 1000, "scenario_paths": 256, "tail_weight": 0.0,
        "differences": [
            difference("teacher", -0.0004, -0.0006, -0.0002), difference("warm_started, greedy", 0.001, -0.0001, 0.0021)
        ],
    }  # fmt: skip
    windows = {"difference": {"mean": 0.05, "ci95": [0.02, 0.08], "costs_saved": 0.0}, "windows": 24}
    text = verdict(windows, None, value=value_sentence(value))
    assert text.startswith(
        "With its likeliest answers the trained team earns less (-4.0 bp a decision, 95 % interval -6.0 to -2.0) than "
        "its teacher, and earns neither certainly more nor less (+10.0 bp a decision, 95 % interval -1.0 to +21.0) "
        "than it did before (1,000 held-out states, each scored over 256 common scenarios). On held-out windows"
    )
    by_tail = value_sentence(value | {"tail_weight": 0.3})
    assert "-0.2 thousandths of the outcome a decision, 95 % interval -0.3 to -0.1" in by_tail
