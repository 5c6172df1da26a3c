"""A decision's orders made again without some of what bound them: no model, the same guard, nothing else changed."""

from __future__ import annotations

import pytest

from cryptosentinel.guard.guard import Guard
from cryptosentinel.guard.limits import GuardLimits
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.team import TeamDecision, has_effect, replay, replayable_roles
from simulator.exchange.orders import Order
from tests.standard_limits import guard_limits
from tests.team_scenes import (
    SayingEngine,
    ask,
    codec,
    decide,
    execution,
    half_taught_policies,
    hand_made_account,
    held_after,
    hold,
    make_team,
    submit,
    synthetic,
    verdict,
)

BAR = 200
LOOSE = guard_limits(max_exposure=100.0, max_gross_exposure=1000.0)
BOTH = ("risk_analyst", "trader")
LONG = {"side": "long", "exposure": 1.0}


def again(decision: TeamDecision, roles: tuple[str, ...], limits: GuardLimits = LOOSE) -> list[Order]:
    view = synthetic().view(BAR)
    return replay(make_team(), decision, view, hand_made_account(view, {}), Guard(limits), roles)


def delays(orders: list[Order]) -> list[int]:
    return [order.delay for order in orders if order.quantity != 0.0]


@pytest.fixture
def bound() -> TeamDecision:
    """C1 reduced to a half and bought two bars later, C2 vetoed, C3 free; the weaker verdict on C1 does not count."""
    manager = [
        ask("risk_analyst", "C1", **LONG),
        ask("risk_analyst", "C1", **LONG),
        ask("risk_analyst", "C2", **LONG),
        ask("trader", "C1", **LONG),
        submit(hold("C1", "long", 1.0), hold("C2", "long", 1.0), hold("C3", "long", 1.0)),
    ]
    verdicts = [verdict("reduce", 0.5), verdict("approve"), verdict("veto")]
    said = {"manager": manager, "risk_analyst": verdicts, "trader": [execution(wait=2)]}
    return decide(SayingEngine(said), bar=BAR)


@pytest.mark.parametrize(
    ("roles", "held", "waits"),
    [
        (BOTH, [0.5, 0.0, 1.0], [2, 0]),
        (("risk_analyst",), [0.5, 0.0, 1.0], [0, 0]),
        (("trader",), [1.0, 1.0, 1.0], [2, 0, 0]),
        ((), [1.0, 1.0, 1.0], [0, 0, 0]),
    ],
)
def test_only_the_roles_named_bind(
    roles: tuple[str, ...], held: list[float], waits: list[int], bound: TeamDecision
) -> None:
    orders = again(bound, roles)
    assert [*held_after(orders).values()] == pytest.approx(held)
    assert delays(orders) == waits
    if roles == BOTH:
        assert orders == bound.orders


def test_the_guard_reviews_a_replay_too(bound: TeamDecision) -> None:
    tight = guard_limits(max_exposure=0.3, max_gross_exposure=1000.0)
    assert [*held_after(again(bound, (), tight)).values()] == pytest.approx([0.3, 0.3, 0.3])


def test_without_a_valid_verdict_nothing_grows_in_a_replay_either_and_without_a_decision_there_is_no_order() -> None:
    manager = [ask("risk_analyst", "C1", **LONG), submit(hold("C1", "long", 1.0))]
    decision = decide(SayingEngine({"manager": manager, "risk_analyst": ["no call"]}), bar=BAR)
    assert again(decision, BOTH) == decision.orders == [] != again(decision, ("trader",))
    invalid = decision.transcripts[1]
    assert not invalid.valid and has_effect(make_team(), invalid) and not has_effect(make_team(), decision.manager)
    silent = decide(SayingEngine({"manager": [manager[0], "no call"], "risk_analyst": [verdict("veto")]}), bar=BAR)
    assert again(silent, ()) == []


@pytest.mark.parametrize("seed", range(12))
def test_with_all_roles_a_replay_is_the_decision_of_any_team(seed: int) -> None:
    limits = guard_limits(max_exposure=0.7, max_gross_exposure=1.2)
    decision = decide(ScriptedEngine(codec(), half_taught_policies()), bar=BAR, seed=seed, limits=limits)
    assert again(decision, replayable_roles(make_team()), limits) == decision.orders


def test_advice_cannot_be_replayed() -> None:
    assert replayable_roles(make_team()) == BOTH
    assert replayable_roles(make_team(roles=("market_analyst",))) == ()
