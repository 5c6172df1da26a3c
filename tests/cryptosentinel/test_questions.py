"""What questions to sub-agents cost and how many there are: told to the manager, held, and charged in the reward."""

from __future__ import annotations

from typing import Any

import pytest

from backend.training.algorithm.rewards import Tail, outcome_score
from backend.training.curriculum.queries import QueryPool
from backend.training.rollout.collect import RolloutSettings, collect
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.scripted_team import expert_policies
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


@pytest.mark.parametrize("price", [1.5, 0.0])
def test_the_manager_is_told_the_price_where_there_is_one(price: float) -> None:
    decision = decide(SayingEngine({"manager": [ask("market_analyst"), submit()], **ANSWERS}), question_price=price)
    brief = codec().decode(list(decision.manager.ids)).partition("equity")[2].partition("C1")[0]
    assert ("a question costs 1.5 bps" in brief) == ("question" in brief) == (price > 0.0)
    assert decision.manager.answer is not None


@pytest.mark.parametrize("price", [0.0, 0.001, 0.01])
def test_each_question_is_charged_in_the_outcome(price: float) -> None:
    """The same decisions of the scripted team, once free and once at a price: the net return is lower by the price of
    the conversations that there were, whoever held them."""
    engine = ScriptedEngine(codec(), expert_policies())
    team = make_team()
    queries = QueryPool(synthetic(), 130, 300, 6).draw(2, 0, 6, easy=False)

    def outcomes(cost: float) -> list[Any]:
        settings = RolloutSettings(1, 8, 6, Costs(), 1.0, guard_limits(), question_cost=cost)
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
