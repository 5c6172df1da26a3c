"""The limit on what a program's answers cost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cryptosentinel.conversation.budget import Price
from cryptosentinel.llm.endpoint.http import CostLimit, RequestCosts
from simulator.errors import UserError
from tests.endpoint_scenes import Make, engines, request
from tests.mock_endpoint import call, chat, refusal, serve

PRICE = Price(2.0, 0.5, 8.0)
STATED = {"prompt_tokens": 400, "completion_tokens": 30, "total_tokens": 430}
ANSWER = chat(call("get_risk", {}), "tool_calls", STATED)
PAID = (400 * 2.0 + 30 * 8.0) / 1e6


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    with engines(monkeypatch) as build:
        yield build


@pytest.mark.parametrize("concurrency", [1, 4])
def test_nothing_is_sent_once_the_limit_is_reached(make: Make, concurrency: int) -> None:
    costs = RequestCosts()
    with serve(lambda body: ANSWER) as endpoint:
        engine = make(endpoint, cost_limit=CostLimit(0.02, PRICE.of, costs), concurrency=concurrency)
        with pytest.raises(UserError, match=r"have cost .* of at most 0\.02.*max_cost"):
            engine.generate([request(seed=seed) for seed in range(100)])
        asked = len(endpoint.chats)
        with pytest.raises(UserError, match="max_cost"):
            engine.generate([request(seed=200)])
        assert len(endpoint.chats) == asked
    assert 0.02 <= costs.spent <= 0.02 + concurrency * PAID and costs.spent <= asked * PAID + 1e-9


def test_refusals_and_a_missing_server_cost_nothing(make: Make) -> None:
    costs = RequestCosts()
    with serve(lambda body: ANSWER, refusal(429, "slow down")) as endpoint:
        assert make(endpoint, cost_limit=CostLimit(1.0, PRICE.of, costs)).generate([request()])[0].failure is None
    assert costs.spent == pytest.approx(PAID)


def test_the_answers_that_were_cut_off_are_paid_too(make: Make) -> None:
    costs = RequestCosts()
    short = chat({"content": ""}, "length", STATED)
    with serve(lambda body: ANSWER if body["max_tokens"] > 100 else short) as endpoint:
        make(endpoint, cost_limit=CostLimit(1.0, PRICE.of, costs)).generate([request(max_tokens=64)])
    assert costs.spent == pytest.approx(2 * PAID)
