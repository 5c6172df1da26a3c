"""The hard limit on what a program's requests cost: no order of answers, failures and waits passes it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cryptosentinel.conversation.budget import Price
from cryptosentinel.llm.endpoint.engine import EndpointEngine
from cryptosentinel.llm.endpoint.http import CostLimit, CostLimitReached, RequestCosts
from cryptosentinel.llm.engine import Usage
from simulator.errors import UserError
from tests.endpoint_scenes import SECONDS, VARIABLE, request
from tests.mock_endpoint import MODEL, Endpoint, Reply, call, chat, refusal, serve
from tests.team_scenes import codec

PRICE = Price(2.0, 0.5, 8.0)
BODY = json.dumps({"messages": "x" * 2000, "max_tokens": 500}).encode()
WORST = ((len(BODY) + 1000) * 2.0 + 500 * 8.0) / 1e6
STATED = {"prompt_tokens": 400, "completion_tokens": 30, "total_tokens": 430}
ANSWER = chat(call("get_risk", {}), "tool_calls", STATED)
PAID = (400 * 2.0 + 30 * 8.0) / 1e6


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes engines with a limit and an account of their own."""
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setenv(VARIABLE, "sk-test-0123456789abcdef")
    opened: list[EndpointEngine] = []

    def build(endpoint: Endpoint, most: float, costs: RequestCosts, **more: Any) -> EndpointEngine:
        how: dict[str, Any] = {"timeout": 20.0, "retries": 2} | more
        limit = CostLimit(most, PRICE.of, costs)
        opened.append(EndpointEngine(codec(), endpoint.url, MODEL, key_variable=VARIABLE, cost_limit=limit, **how))
        return opened[-1]

    yield build
    for engine in opened:
        engine.close()


@settings(deadline=None, max_examples=60)
@given(
    most=st.floats(0.0, 20.0),
    shares=st.lists(st.none() | st.floats(0.0, 1.0), min_size=1, max_size=25),
    slots=st.integers(1, 6),
    seed=st.integers(0, 2**32),
)
def test_no_order_of_attempts_passes_the_limit(most: float, shares: list[float | None], slots: int, seed: int) -> None:
    """`shares` is by attempt what it takes of its worst case; None: nobody knows."""
    costs, rng, sent = RequestCosts(), random.Random(seed), []
    limit = CostLimit(most * WORST, PRICE.of, costs)
    refused = []

    async def attempt(share: float | None, slot: asyncio.Semaphore) -> None:
        async with slot:
            try:
                held = await limit.hold(BODY)
            except CostLimitReached:
                refused.append(costs.spent)
                return
            sent.append(1.0 if share is None else share)
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
                assert costs.spent + costs.held <= most * WORST
            paid = None if share is None else Usage(sampled=int(share * held / 8.0 * 1e6))
            limit.settle(held, paid)

    async def every() -> None:
        slot = asyncio.Semaphore(slots)
        await asyncio.gather(*(attempt(share, slot) for share in shares))

    asyncio.run(every())
    assert costs.held == pytest.approx(0.0, abs=1e-12) and costs.spent <= most * WORST
    assert costs.spent == pytest.approx(sum(sent) * WORST, abs=len(shares) * 8e-6 + 1e-9)
    assert all(spent + WORST > most * WORST for spent in refused)  # none was refused that surely had room


def test_the_worst_case_is_every_byte_and_the_longest_answer() -> None:
    assert CostLimit(1.0, PRICE.of, RequestCosts()).worst_case(BODY) == pytest.approx(WORST)
    newer = BODY.replace(b'"max_tokens"', b'"max_completion_tokens"')
    assert CostLimit(1.0, PRICE.of, RequestCosts()).worst_case(newer) == pytest.approx(WORST + 11 * 2.0e-6)
    unlimited = json.dumps({"messages": "x"}).encode()
    assert CostLimit(1.0, Price(0.0, 0.0, 8.0).of, RequestCosts()).worst_case(unlimited) > 1.0


def test_what_could_pass_the_limit_is_not_sent(engines: Any) -> None:
    costs = RequestCosts()
    with serve(lambda body: ANSWER) as endpoint:
        engine = engines(endpoint, 0.02, costs)
        with pytest.raises(UserError, match=r"have cost .* of at most 0\.02, and the next one may cost .*max_cost"):
            for seed in range(100):
                engine.generate([request(seed=seed, max_tokens=400)])
        asked = len([heard for heard in endpoint.heard if heard.method == "POST"])
    assert 5 < asked < 20 and costs.spent == pytest.approx(asked * PAID) and costs.spent <= 0.02
    assert costs.held == pytest.approx(0.0, abs=1e-12)


def test_requests_side_by_side_wait_for_each_other_rather_than_fail(engines: Any) -> None:
    """Eight at once hold more than there is, and pay far less."""
    costs = RequestCosts()
    with serve(lambda body: ANSWER) as endpoint:
        engine = engines(endpoint, 0.025, costs, concurrency=8)
        answers = engine.generate([request(seed=seed, max_tokens=1000) for seed in range(10)])
    assert all(answer.failure is None for answer in answers) and costs.spent == pytest.approx(10 * PAID)


def test_attempts_without_an_answer_count_as_the_most_and_refusals_as_nothing(engines: Any) -> None:
    costs = RequestCosts()
    replies = iter(
        [refusal(429, "slow down"), Reply(b"half an answer", cut=True), Reply(b"late", delay=3 * SECONDS), ANSWER]
    )
    with serve(lambda body: next(replies)) as endpoint:
        engine = engines(endpoint, 1.0, costs, timeout=SECONDS, retries=3)
        [answer] = engine.generate([request(max_tokens=100)])
        [first, *_] = [heard for heard in endpoint.heard if heard.method == "POST"]
    assert answer.failure is None
    worst = CostLimit(1.0, PRICE.of, RequestCosts()).worst_case(json.dumps(first.body, separators=(",", ":")).encode())
    assert costs.spent == pytest.approx(2 * worst + PAID, rel=0.02) and costs.held == pytest.approx(0.0, abs=1e-12)


def test_an_answer_that_does_not_count_costs_the_most(engines: Any) -> None:
    uncounted = chat(call("get_risk", {}), "tool_calls")
    spent = []
    for answer in (ANSWER, uncounted):
        costs = RequestCosts()
        with serve(lambda body: answer) as endpoint:  # noqa: B023 - it is over before the next
            engines(endpoint, 1.0, costs).generate([request(max_tokens=100)])
        spent.append(costs.spent)
    assert spent[0] == pytest.approx(PAID) and spent[1] > spent[0]


def test_nobody_there_costs_nothing(engines: Any) -> None:
    costs = RequestCosts()
    with serve(lambda body: ANSWER) as endpoint:
        pass
    engine = engines(endpoint, 1.0, costs, retries=0)
    with pytest.raises(Exception, match="cannot be reached"):
        engine.generate([request()])
    assert costs == RequestCosts(lock=costs.lock)
