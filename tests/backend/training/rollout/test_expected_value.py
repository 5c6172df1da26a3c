"""What decisions are worth beside what the evidence allows: no honest team earns more, and one that does is refused."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from backend.builders.loaded_team import scripted_team
from backend.builders.market import load_market
from backend.config.load import load_config
from backend.config.schema import Config
from backend.training.curriculum.queries import Query, QueryPool
from backend.training.rollout.collect import RolloutSettings, rollout_settings
from backend.training.rollout.expected_value import (
    LIMIT_LEVELS,
    check_within_evidence,
    decisions_in,
    evidence_values,
    scores_in,
)
from cryptosentinel.agents.trader import Execution
from simulator.arrays import FloatArray
from simulator.backtest.run import orders_for_target
from simulator.errors import DataError
from simulator.exchange.rules import SymbolRules
from simulator.synthetic.information import SOURCES, DecisionValues
from simulator.synthetic.oracle import regime_beliefs

STATES = 80
AT_THE_PRICE_NOW = Execution(type="limit", wait=0, slices=1, offset=0.0)


@cache
def config() -> Config:
    return load_config("demo", ["market.bars=1500", "market.coins=2", "training.scenario_paths=64"])


@cache
def judged() -> RolloutSettings:
    return rollout_settings(config(), 1)  # with enough scenarios to choose by


@cache
def states() -> list[Query]:
    market = load_market(config().market, config().costs)
    pool = QueryPool(market, 200, 1_490, judged().horizon_bars, beliefs=regime_beliefs(market))
    return pool.draw(3, 0, STATES, easy=False)


@cache
def allowed() -> list[DecisionValues]:
    return evidence_values(states(), judged())


def scores_given(decided: str, belief: bool = False) -> FloatArray:
    """Of decisions that are made given "all", "oracle", ..., as a venue fills them, where the regime was as it was."""
    found = []
    for query, values in zip(states(), allowed(), strict=True):
        one = query if belief else replace(query, belief=None)
        orders = orders_for_target(one.view(), one.account(), one.symbol, values.exposures[decided])
        if values.by_limit[decided]:
            orders = AT_THE_PRICE_NOW.placed(
                orders, one.view().last_close(one.symbol), SymbolRules(), one.account().positions[one.symbol]
            )
        found.append(replace(judged(), scenario_paths=400).scorer(one).outcome(orders).score)
    return np.array(found)


def test_the_values_are_those_that_a_venue_gives() -> None:
    """The best decisions, sent as orders and scored as rollouts are, earn what was said of them."""
    said = np.array([one.all for one in allowed()])
    assert scores_given("all", belief=True).mean() == pytest.approx(said.mean(), abs=0.004)
    came = np.array([one.came for one in allowed()])
    assert scores_given("all").mean() == pytest.approx(came.mean(), abs=0.004)


def test_the_utilities_are_those_that_the_best_decision_was_chosen_by() -> None:
    places = (1, 0)
    for query, values in zip(states(), allowed(), strict=True):
        row = values.utilities
        held = LIMIT_LEVELS.index(query.exposure)
        assert values.hold == pytest.approx(row[:, held].mean())
        by_limit, level = divmod(int(row[0].argmax()), len(LIMIT_LEVELS))
        assert values.exposures["all"] == LIMIT_LEVELS[level] and values.by_limit["all"] == bool(by_limit)
        assert values.all == pytest.approx(np.mean([row[number, row[places[number]].argmax()] for number in places]))


def test_limits_are_for_wide_spreads_and_add_to_what_the_evidence_allows() -> None:
    """At the market alone the same evidence is worth less; where the spread is wide, changes are made by limits."""
    assert np.mean([one.all - one.at_market for one in allowed()]) > 0.002
    assert all(one.at_market == pytest.approx(one.all) for one in allowed() if not any(_by_limit(one)))
    changes = [
        (values.by_limit["all"], float(query.market.half_spread[query.bar, 0]) > 10e-4)
        for query, values in zip(states(), allowed(), strict=True)
        if values.exposures["all"] != query.exposure
    ]
    wide, narrow = ([by_limit for by_limit, is_wide in changes if is_wide == kind] for kind in (True, False))
    assert len(wide) > 10 and np.mean(wide) > 0.9 and len(narrow) > 10 and np.mean(narrow) < 0.3


def _by_limit(values: DecisionValues) -> list[bool]:
    """Of either half of the scenarios whether the best decision is a limit."""
    return [bool(row.argmax() >= len(LIMIT_LEVELS)) for row in values.utilities]


def test_every_source_is_worth_something_and_no_teacher_earns_more_than_the_evidence() -> None:
    for source in SOURCES:
        assert np.mean([one.private(source) for one in allowed()]) > 0.0005, source
    team = scripted_team(config().team)
    hidden = [replace(query, belief=None) for query in states()]
    decisions = decisions_in(team.team, team.engine, hidden, judged(), 1)
    scores = scores_in(decisions)
    assert len(scores) == STATES and all(call.role == "market_analyst" for one in decisions for call in one.subs[:1])
    assert scores.mean() < np.mean([one.came for one in allowed()])
    check_within_evidence("the scripted team", scores, allowed())


def test_a_team_that_earns_more_than_the_evidence_allows_is_refused() -> None:
    """By some hundredths, it has read what is hidden; the best honest team is within the error of the measurement."""
    check_within_evidence("the best", scores_given("all"), allowed())
    with pytest.raises(DataError, match=r"the leak is 0\.\d+ of the outcome better than the evidence allows"):
        check_within_evidence("the leak", scores_given("all") + 0.025, allowed())


def test_states_that_cannot_be_valued_are_refused() -> None:
    with pytest.raises(DataError, match=r"set training\.scenario_source=beliefs and team\.portfolio=false"):
        evidence_values([replace(states()[0], belief=None)], judged())
