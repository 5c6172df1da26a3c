"""What rollouts and answers are worth: the same scenarios for all, honest answers best, costs counted."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from backend.builders.loaded_team import scripted_team
from backend.builders.market import load_market
from backend.config.load import load_config
from backend.config.schema import Config
from backend.training.algorithm.rewards import Tail, outcome_score, shortfall_score
from backend.training.curriculum.queries import Query, QueryPool
from backend.training.rollout.collect import RolloutSettings, rollout_settings
from backend.training.rollout.expected_value import (
    LIMIT_LEVELS,
    check_within_evidence,
    decisions_in,
    evidence_values,
    scores_in,
)
from backend.training.rollout.scoring import SHIPPED, SHORTFALL_SCALE, RewardFunctions, RolloutScorer
from cryptosentinel.agents.market_analyst import FLAT_BAND
from cryptosentinel.agents.trader import Execution
from cryptosentinel.conversation.transcript import Transcript
from simulator.arrays import FloatArray
from simulator.backtest.run import orders_for_target
from simulator.errors import DataError
from simulator.exchange.costs import Costs
from simulator.exchange.orders import Order
from simulator.exchange.rules import SymbolRules
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from simulator.synthetic.information import SOURCES, DecisionValues
from simulator.synthetic.oracle import regime_beliefs

HORIZON, PATHS = 6, 64
POOL = QueryPool(generate(SyntheticConfig(bars=300, seed=5, symbols=("AAAUSDT",))), 0, 290, HORIZON)
queries = st.integers(0, 30).map(lambda step: POOL.draw(1, step, 1, easy=False)[0])


def scorer(query: Query, paths: int = PATHS, fee: float = 0.0005) -> RolloutScorer:
    return RolloutScorer(query, paths, HORIZON, Costs(taker_fee=fee), 1.0)


def said(role: str, answer: dict[str, Any] | None, **brief: Any) -> Transcript:
    return Transcript(
        role,
        0,
        (1,),
        (False,),
        (0.0,),
        "v",
        {"symbol": "AAAUSDT", **brief},
        answer,
        None if answer else "bad",
        False,
    )


def moves(query: Query, paths: int = PATHS) -> np.ndarray[Any, np.dtype[np.float64]]:
    """(paths,) simple returns over the horizon."""
    return query.scenarios(paths, HORIZON).close[:, -1, 0] / query.view().last_close("AAAUSDT") - 1.0


def frequencies(query: Query) -> tuple[float, float, float]:
    """Of up, flat and down."""
    band = FLAT_BAND * query.volatility
    up, down = float(np.mean(moves(query) > band)), float(np.mean(moves(query) < -band))
    return up, 1.0 - up - down, down


@settings(max_examples=50, deadline=None)
@given(queries, st.tuples(*[st.floats(0.0, 1.0)] * 3))
def test_no_analyst_beats_the_one_who_states_the_true_frequencies(
    query: Query, stated: tuple[float, float, float]
) -> None:
    assume(sum(stated) > 0.01)
    one = scorer(query)

    def score(up: float, flat: float, down: float) -> float:
        found = one.expert_score(said("market_analyst", {"up": up, "flat": flat, "down": down}))
        assert found is not None
        return found

    assert score(*stated) <= score(*frequencies(query)) + 1e-12


LEANS = {  # up and down, and the exposure that a lean so strong speaks for
    (0.6, 0.2): 1.0,
    (0.5, 0.3): 0.5,
    (0.4, 0.4): 0.0,
    (0.3, 0.5): -0.5,
    (0.2, 0.6): -1.0,
}


@settings(max_examples=50, deadline=None)
@given(queries, st.sampled_from(list(LEANS)), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_advice_is_paid_by_what_it_earns(
    query: Query, lean: tuple[float, float], share: float, tail_weight: float
) -> None:
    tail = Tail(tail_weight, 0.05)
    up, down = lean
    answer = said("market_analyst", {"up": up, "flat": 1.0 - up - down, "down": down})

    def score(advice_weight: float) -> float:
        judge = RewardFunctions(advice_weight=advice_weight)
        paid = RolloutScorer(query, PATHS, HORIZON, Costs(), 1.0, tail, functions=judge).expert_score(answer)
        assert paid is not None
        return paid

    assert score(1.0) == pytest.approx(outcome_score(LEANS[lean] * moves(query), query.volatility, tail))
    assert score(share) == pytest.approx(share * score(1.0) + (1.0 - share) * score(0.0))


@settings(max_examples=50, deadline=None)
@given(queries, st.sampled_from(["long", "short"]), st.sampled_from([0.5, 1.0]))
def test_a_veto_pays_where_the_position_loses_and_costs_where_it_gains(
    query: Query, side: str, exposure: float
) -> None:
    gain = float(np.mean(moves(query))) * (1.0 if side == "long" else -1.0)
    one = scorer(query)

    def score(**answer: Any) -> float:
        found = one.expert_score(said("risk_analyst", {"loss": 5.0, **answer}, side=side, exposure=exposure))
        assert found is not None
        return found

    approve, veto = score(verdict="approve"), score(verdict="veto")
    half = score(verdict="reduce", to=exposure / 2)
    assert np.sign(veto - approve) == -np.sign(gain)
    assert min(approve, veto) <= half <= max(approve, veto)
    assert score(verdict="reduce", to=1.0) == approve, "a cap above what was proposed changes nothing"


@settings(max_examples=50, deadline=None)
@given(queries, st.sampled_from(["long", "short", "flat"]), st.integers(0, 60))
def test_no_stated_loss_beats_the_quantile_that_came(query: Query, side: str, loss: int) -> None:
    losses = moves(query) if side == "short" else -moves(query)
    best = float(np.quantile(np.maximum(losses, 0.0), 0.95, method="inverted_cdf")) * 100
    one = scorer(query)

    def score(stated: float) -> float:
        brief = {"side": side, "exposure": 0.0 if side == "flat" else 1.0}
        found = one.expert_score(said("risk_analyst", {"verdict": "approve", "loss": stated}, **brief))
        assert found is not None
        return found

    assert score(loss) <= score(best) + 1e-9
    if side == "flat":
        half = 0.5 * SHIPPED.verdict_weight
        most = 1.0 - half
        assert half <= score(loss) <= most + 1e-12, "no verdict on a flat proposal is worth anything"


@settings(max_examples=50, deadline=None)
@given(queries, st.sampled_from(["long", "short"]), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_a_verdict_is_paid_by_what_it_saved(query: Query, side: str, share: float, tail_weight: float) -> None:
    tail, gains = Tail(tail_weight, 0.05), moves(query) * (1.0 if side == "long" else -1.0)
    answer = said("risk_analyst", {"verdict": "reduce", "to": 0.5, "loss": 5.0}, side=side, exposure=1.0)

    def score(verdict_weight: float) -> float:
        judge = RewardFunctions(verdict_weight=verdict_weight)
        paid = RolloutScorer(query, PATHS, HORIZON, Costs(), 1.0, tail, functions=judge).expert_score(answer)
        assert paid is not None
        return paid

    assert score(share) == pytest.approx(share * score(1.0) + (1.0 - share) * score(0.0))
    saved = outcome_score(0.5 * gains, query.volatility, tail) - outcome_score(gains, query.volatility, tail)
    if tail_weight:
        assert score(1.0) == pytest.approx(0.5 * (1.0 + saved))


def test_a_trader_is_paid_for_the_price_it_gets_and_not_scored_where_it_has_nothing_to_do() -> None:
    query = replace(POOL.draw(3, 0, 1, easy=False)[0], exposure=0.0)
    one = scorer(query)
    plan = {"type": "market", "wait": 0, "slices": 1}
    now = one.expert_score(said("trader", plan, side="long", exposure=1.0))
    later = one.expert_score(said("trader", {**plan, "wait": 4}, side="long", exposure=1.0))
    short = one.expert_score(said("trader", {**plan, "wait": 4}, side="short", exposure=1.0))
    assert now is not None and later is not None and short is not None
    drift = float(np.mean(query.scenarios(PATHS, HORIZON).open[:, 4, 0])) / query.view().last_close("AAAUSDT") - 1
    assert (later > now) == (drift < 0) or abs(drift) < 0.003
    assert later + short == pytest.approx(1.0, abs=0.35), "what is good for a buyer is bad for a seller"
    assert one.expert_score(said("trader", plan, side="flat", exposure=0.0)) is None
    assert one.expert_score(said("trader", None, side="long", exposure=1.0)) is None


@pytest.mark.parametrize("side", ["long", "short"])
def test_a_limit_that_never_trades_is_paid_for_what_was_missed(side: str) -> None:
    query = replace(POOL.draw(3, 0, 1, easy=False)[0], exposure=0.0)
    one = scorer(query)
    far = {"type": "limit", "wait": 0, "slices": 1, "offset": 20.0}
    missed = moves(query) * (1.0 if side == "long" else -1.0)
    assert one.expert_score(said("trader", far, side=side, exposure=1.0)) == pytest.approx(
        shortfall_score(float(np.mean(missed)), SHORTFALL_SCALE)
    )
    near = one.expert_score(said("trader", {**far, "offset": 0.1}, side=side, exposure=1.0))
    assert near is not None and near != one.expert_score(said("trader", far, side=side, exposure=1.0))


@settings(max_examples=40, deadline=None)
@given(queries, st.floats(-1.0, 1.0))
def test_equal_orders_are_worth_the_same_and_fees_only_cost(query: Query, share: float) -> None:
    price = query.view().last_close("AAAUSDT")
    orders = [Order("AAAUSDT", share * 5_000.0 / price)] if share else []
    first = scorer(query)
    assert first.outcome(list(orders)) == first.outcome(list(orders)) == scorer(query).outcome(list(orders))
    free = scorer(query, fee=0.0).outcome(list(orders))
    assert free.net_return >= first.outcome(list(orders)).net_return
    assert 0.0 <= first.outcome(list(orders)).score <= 1.0


def test_doing_nothing_from_flat_is_worth_one_half() -> None:
    query = replace(POOL.draw(1, 0, 1, easy=False)[0], exposure=0.0)
    outcome = scorer(query).outcome([])
    assert (outcome.score, outcome.net_return, outcome.fees) == (0.5, 0.0, 0.0)
    price = query.view().last_close("AAAUSDT")
    better, worse = sorted(
        (scorer(query).outcome([Order("AAAUSDT", sign * 10_000.0 / price)]) for sign in (1, -1)),
        key=lambda one: -one.net_return,
    )
    assert better.score > worse.score
    assert worse.score < 0.5


def test_a_reward_of_the_users_own_takes_the_place_of_the_shipped_one() -> None:
    query = POOL.draw(1, 0, 1, easy=False)[0]
    judge = RewardFunctions(reward=lambda net, volatility: 0.25 if net.mean() < 0.0 else 0.75)
    one = RolloutScorer(query, PATHS, HORIZON, Costs(taker_fee=0.0005), 1.0, functions=judge)
    mine, shipped = one.outcome([]), scorer(query).outcome([])
    assert mine.net_return == shipped.net_return
    assert mine.score == (0.25 if mine.net_return < 0.0 else 0.75) != shipped.score


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
