"""What questions to sub-agents cost and how many there are: told to the manager, held, and charged in the reward."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backend.training.algorithm.rewards import Tail, outcome_score
from backend.training.curriculum.queries import QueryPool
from backend.training.rollout.collect import RolloutSettings, collect
from cryptosentinel.agents.manager import ASK_SEVERAL
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.protocol.tool_calls import render_call
from cryptosentinel.scripted_team import expert_policies
from cryptosentinel.team import TeamDecision
from simulator.exchange.costs import Costs
from tests.standard_limits import guard_limits
from tests.team_scenes import (
    SayingEngine,
    analysis,
    ask,
    codec,
    decide,
    execution,
    make_team,
    submit,
    synthetic,
    verdict,
)

LONG: dict[str, Any] = {"symbol": "C1", "side": "long", "exposure": 1.0}
ANSWERS = {
    "market_analyst": [analysis()] * 4,
    "risk_analyst": [verdict("approve")] * 4,
    "trader": [execution(0, 1)] * 4,
}


def told(decision: TeamDecision) -> list[Any]:
    """What the manager read of its sub-agents, in order."""
    text = codec().decode(list(decision.manager.ids))
    found, rest = [], text
    while "{" in rest:
        rest = rest[rest.index("{") :]
        one, length = json.JSONDecoder().raw_decode(rest)
        found.append(one)
        rest = rest[length:]
    return [one for one in found if "error" in one or "questions_left" in one]


def test_the_manager_is_told_and_gets_no_more_answers_than_there_are_questions() -> None:
    asked = [ask("market_analyst"), ask("risk_analyst", **LONG), ask("trader", **LONG), submit()]
    decision = decide(SayingEngine({"manager": asked, **ANSWERS}), max_questions=2, question_price_bps=1.5)
    assert [one.role for one in decision.transcripts] == ["manager", "market_analyst", "risk_analyst"]
    assert "a question costs 1.5 bps, 2 questions" in codec().decode(list(decision.manager.ids))
    assert [one.get("questions_left") for one in told(decision)] == [1, 0, None]
    assert told(decision)[-1] == {"error": "no questions left"}
    assert decision.manager.answer is not None


def test_of_several_questions_at_once_the_first_ones_are_answered() -> None:
    questions = [{"ask": "market_analyst", "symbol": "C1"}, {"ask": "risk_analyst", **LONG}, {"ask": "trader", **LONG}]
    several = render_call(ASK_SEVERAL, {"questions": questions})
    decision = decide(SayingEngine({"manager": [several, submit()], **ANSWERS}), max_questions=2)
    assert [one.role for one in decision.transcripts[1:]] == ["market_analyst", "risk_analyst"]
    [answer] = told(decision)
    assert [one["ask"] for one in answer["answers"]] == ["market_analyst", "risk_analyst", "trader"]
    assert answer["answers"][2]["error"] == "no questions left" and answer["questions_left"] == 0


def test_without_a_price_or_a_limit_nothing_is_said_of_them() -> None:
    decision = decide(SayingEngine({"manager": [ask("market_analyst"), submit()], **ANSWERS}))
    text = codec().decode(list(decision.manager.ids))
    assert "question" not in text.partition("equity")[2].partition("C1")[0] and "questions_left" not in text


@pytest.mark.parametrize("price", [0.0, 0.001, 0.01])
def test_each_question_is_charged_in_the_outcome(price: float) -> None:
    """The same decisions of the scripted team, once free and once at a price: the net return is lower by the price of
    the conversations that there were, whoever held them."""
    engine = ScriptedEngine(codec(), expert_policies())
    team = make_team()
    queries = QueryPool(synthetic(), 130, 300, 6).draw(2, 0, 6, easy=False)

    def outcomes(cost: float) -> list[Any]:
        settings = RolloutSettings(1, 8, 6, Costs(), 1.0, guard_limits(), True, question_cost=cost)
        return [rollout for [rollout] in collect(team, engine, queries, settings, 1)]

    free, charged = outcomes(0.0), outcomes(price)
    assert {len(one.subs) for one in free} == {1, 3}  # without a lean nobody else is asked
    for one, other in zip(free, charged, strict=True):
        paid = one.outcome.net_return - other.outcome.net_return
        assert paid == pytest.approx(price * len(one.subs), abs=1e-12)
        assert other.outcome.score <= one.outcome.score


def test_large_losses_count_in_a_tail_and_small_ones_do_not() -> None:
    """The squashed return hardly tells a loss of 20 % from one of 10 %; the tail does, linearly between l and 2 l."""
    tail = Tail(0.4, 0.05)
    usual = outcome_score([-0.04, 0.02], 0.02)
    assert outcome_score([-0.04, 0.02], 0.02, tail) == pytest.approx(0.6 * usual + 0.4)
    losses = (-0.05, -0.075, -0.1, -0.3)
    deep = [outcome_score([loss], 0.02, tail) - 0.6 * outcome_score([loss], 0.02) for loss in losses]
    assert deep == pytest.approx([0.4, 0.2, 0.0, 0.0])
    assert outcome_score([0.0], 0.02, tail) == pytest.approx(0.7)
    one, other = outcome_score([-0.1], 0.02, tail), outcome_score([0.03], 0.02, tail)
    assert outcome_score([-0.1, 0.03], 0.02, tail) == pytest.approx((one + other) / 2)
    with pytest.raises(ValueError, match=r"tail\.loss must be positive"):
        outcome_score([0.1], 0.02, Tail(0.4, 0.0))
