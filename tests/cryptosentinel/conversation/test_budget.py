"""What thinking may cost: limits hold to within one request, and a spent budget is a recorded *no change*."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cryptosentinel.conversation.budget import Budget, Ledger, Price, Spending, SpendingLimits
from cryptosentinel.episode import EpisodeResult, play
from cryptosentinel.guard.guard import Guard
from cryptosentinel.llm.engine import Completion, Request, Usage, failed_completion
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.protocol.tool_calls import render_call
from cryptosentinel.scheduler import run_all
from cryptosentinel.scripted_team import expert_policies
from simulator.backtest.run import BacktestRun, Window
from simulator.market.timeframes import TIMEFRAMES
from tests.standard_limits import guard_limits
from tests.team_scenes import (
    COINS,
    SayingEngine,
    analysis,
    ask,
    codec,
    decide,
    hand_made_account,
    hold,
    make_team,
    submit,
    synthetic,
)

PRICE = Price(prompt=3.0, cached=0.3, sampled=15.0)
DAY = TIMEFRAMES["1d"]
WINDOW = Window(180, 204, 6)


class Metered(ScriptedEngine):
    """The scripted team, which says that each request took its tokens and two seconds, half of the prompt cached."""

    def generate(self, requests: Any) -> list[Completion]:
        return [
            replace(answer, usage=Usage(len(request.ids), len(request.ids) // 2, len(answer.ids), 2.0))
            for request, answer in zip(requests, super().generate(requests), strict=True)
        ]


def episode(budget: Budget | None) -> EpisodeResult:
    run = BacktestRun(synthetic(), WINDOW)
    return run_all([play(make_team(), run, guard_limits(), 1, budget=budget)], Metered(codec(), expert_policies()))[0]


def test_a_price_is_per_million_and_a_cached_token_is_not_paid_twice() -> None:
    assert PRICE.of(Usage(prompt=1_000_000, cached=400_000, sampled=100_000)) == pytest.approx(
        0.6 * 3.0 + 0.4 * 0.3 + 0.1 * 15.0
    )
    assert Price().of(Usage(10, 5, 3, 1.0)) == 0.0


@given(
    limits=st.builds(
        SpendingLimits,
        calls=st.integers(0, 6),
        tokens=st.integers(0, 300),
        seconds=st.floats(0.0, 8.0),
        money=st.floats(0.0, 0.002),
    ),
    usages=st.lists(st.builds(Usage, st.integers(50, 99), st.integers(0, 50), st.integers(0, 30), st.floats(0, 2))),
)
def test_every_limit_is_passed_by_one_request_at_most(limits: SpendingLimits, usages: list[Usage]) -> None:
    ledger = Ledger(Budget(run=limits, price=PRICE))
    budget = ledger.open(0)
    before = Spending()
    for usage in usages:
        if budget.refusal() is not None:
            break
        before = replace(ledger.run)
        budget.book("manager", usage)
    for name in ("calls", "tokens", "seconds", "money"):
        limit = getattr(limits, name)
        assert not limit or ledger.run.calls == 0 or getattr(before, name) < limit
    stopped = ledger.run.calls < len(usages)
    assert stopped == (ledger.exhausted == 1)
    assert (ledger.run.reached(limits) is not None) or not stopped


@given(
    limit=st.floats(0.001, 0.02),
    lengths=st.lists(st.integers(100, 900), min_size=1, max_size=30),
    ratio=st.floats(0.2, 1.0),
)
def test_a_request_that_could_pass_a_limit_is_not_made(limit: float, lengths: list[int], ratio: float) -> None:
    """Prompts grow by what is added to them, answers are as long as the first: then nothing but the first can pass."""
    ledger = Ledger(Budget(run=SpendingLimits(money=limit), price=PRICE))
    budget = ledger.open(0)
    for number, length in enumerate(lengths):
        if budget.refusal(length) is not None:
            break
        budget.book("manager", Usage(prompt=int(ratio * length), sampled=50), length)
        assert number == 0 or ledger.run.money <= limit * 1.001 + PRICE.of(Usage(prompt=1))


def test_a_day_begins_anew_at_midnight_and_a_run_never_does() -> None:
    ledger = Ledger(Budget(day=SpendingLimits(calls=1), run=SpendingLimits(calls=3)))
    for day in range(3):
        budget = ledger.open(day * DAY + 5)
        assert budget.refusal() is None
        budget.book("manager", Usage())
        assert ledger.open((day + 1) * DAY - 1).refusal() == "the day has spent 1 of 1 calls"
    assert ledger.open(3 * DAY).refusal() == "the run has spent 3 of 3 calls"


def test_what_is_booked_is_what_the_transcripts_say() -> None:
    played = episode(Budget(price=PRICE))
    decisions = [decision for _, decision in played.decisions]
    talks = [talk for decision in decisions for talk in decision.transcripts]
    assert played.ledger.run.tokens == sum(decision.usage.tokens for decision in decisions) > 0
    assert played.ledger.run.seconds == pytest.approx(sum(talk.usage.seconds for talk in talks))
    assert played.ledger.run.money == pytest.approx(math.fsum(decision.cost for decision in decisions))
    for role, spent in played.ledger.roles.items():
        assert spent.tokens == sum(talk.usage.tokens for talk in talks if talk.role == role)
        assert spent.money == pytest.approx(sum(PRICE.of(talk.usage) for talk in talks if talk.role == role))


def test_a_decision_without_a_limit_is_the_same_with_a_ledger() -> None:
    free, bounded = episode(None), episode(Budget(decision=SpendingLimits(calls=10_000), price=PRICE))
    assert [one.orders for _, one in free.decisions] == [one.orders for _, one in bounded.decisions]
    assert free.ledger.run.money == 0.0 and free.ledger.exhausted == 0


@settings(max_examples=12, deadline=None)
@given(calls=st.integers(1, 12))
def test_a_budget_that_runs_out_in_a_decision_is_no_change_and_recorded(calls: int) -> None:
    played = episode(Budget(decision=SpendingLimits(calls=calls)))
    assert len(played.decisions) == len(episode(None).decisions)  # none is left out
    for _, decision in played.decisions:
        spent = [talk for talk in decision.transcripts if (talk.reason or "").startswith("budget: the decision has")]
        if decision.manager.answer is None:
            assert decision.orders == [] and decision.manager in spent
            assert any(event.startswith("manager#0: budget: the decision has spent") for event in decision.events)
    if calls == 1:
        assert all(decision.manager.answer is None for _, decision in played.decisions)


def test_a_day_s_budget_stops_thinking_until_the_next_day() -> None:
    free = episode(None)
    first_day = free.ledger.roles["manager"].calls  # more than a day of the window needs is no limit
    assert first_day > 0
    played = episode(Budget(day=SpendingLimits(calls=1)))
    answered = [bar for bar, decision in played.decisions if decision.manager.usage.sampled]
    days = {int(synthetic().open_time[bar] + 4 * 3_600_000) // DAY for bar in answered}
    assert len(answered) == len(days)  # one request a day, and every day has its own


class Failing(SayingEngine):
    """The n-th request fails for good."""

    def __init__(self, texts: Any, nth: int) -> None:
        super().__init__(texts)
        self.nth = nth

    def _say(self, request: Request) -> Completion:
        if len(self.requests) == self.nth:
            self.requests.append(request)
            return failed_completion("timed out after 3 tries")
        return super()._say(request)


def test_a_failed_request_ends_its_conversation_and_no_other() -> None:
    texts = {"manager": [ask("market_analyst"), submit(hold("C1", "long", 1.0))], "market_analyst": [analysis()]}
    of_analyst = decide(Failing(texts, 1))
    assert of_analyst.events == ["market_analyst#0: engine_failed: timed out after 3 tries"]
    assert of_analyst.orders and of_analyst.manager.valid
    of_manager = decide(Failing(texts, 0))
    assert of_manager.events == ["manager#0: engine_failed: timed out after 3 tries"] and of_manager.orders == []


def test_the_manager_can_look_up_what_is_left() -> None:
    look = render_call("get_limits", {})
    engine = SayingEngine({"manager": [look, look, submit()]})
    budget = Budget(decision=SpendingLimits(calls=7), day=SpendingLimits(calls=5, money=2.0))
    view = synthetic().view(200)
    talk = make_team().decide(view, hand_made_account(view, {}), COINS, Guard(guard_limits()), 1, ledger=Ledger(budget))
    [decision] = run_all([talk], engine)
    heard = [turn["content"] for turn in codec().messages(decision.manager.ids) if turn["role"] == "tool"]
    assert [json.loads(text)["left"]["thinking"] for text in heard] == [
        {"calls": 4.0, "money": 2.0},
        {"calls": 3.0, "money": 2.0},
    ]
