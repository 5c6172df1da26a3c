"""What thinking costs, and requests that fail."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from cryptosentinel.conversation.budget import FREE, Price
from cryptosentinel.episode import EpisodeResult, play
from cryptosentinel.llm.engine import Completion, Request, Usage, failed_completion
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.scheduler import run_all
from cryptosentinel.scripted_team import expert_policies
from simulator.backtest.run import BacktestRun, Window
from simulator.market.timeframes import TIMEFRAMES
from tests.standard_limits import guard_limits
from tests.team_scenes import (
    SayingEngine,
    analysis,
    ask,
    codec,
    decide,
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


def episode(price: Price | None) -> EpisodeResult:
    run = BacktestRun(synthetic(), WINDOW)
    return run_all([play(make_team(), run, guard_limits(), 1, price=price)], Metered(codec(), expert_policies()))[0]


def test_a_price_is_per_million_and_a_cached_token_is_not_paid_twice() -> None:
    assert PRICE.of(Usage(prompt=1_000_000, cached=400_000, sampled=100_000)) == pytest.approx(
        0.6 * 3.0 + 0.4 * 0.3 + 0.1 * 15.0
    )
    assert Price().of(Usage(10, 5, 3, 1.0)) == 0.0


def test_what_is_booked_is_what_the_transcripts_say() -> None:
    played = episode(PRICE)
    decisions = [decision for _, decision in played.decisions]
    talks = [talk for decision in decisions for talk in decision.transcripts]
    assert played.ledger.run.tokens == sum(decision.usage.tokens for decision in decisions) > 0
    assert played.ledger.run.seconds == pytest.approx(sum(talk.usage.seconds for talk in talks))
    assert played.ledger.run.money == pytest.approx(math.fsum(decision.cost for decision in decisions))
    for role, spent in played.ledger.roles.items():
        assert spent.tokens == sum(talk.usage.tokens for talk in talks if talk.role == role)
        assert spent.money == pytest.approx(sum(PRICE.of(talk.usage) for talk in talks if talk.role == role))


def test_a_price_changes_no_decision() -> None:
    free, priced = episode(FREE), episode(PRICE)
    assert [one.orders for _, one in free.decisions] == [one.orders for _, one in priced.decisions]
    assert free.ledger.run.money == 0.0 < priced.ledger.run.money


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
