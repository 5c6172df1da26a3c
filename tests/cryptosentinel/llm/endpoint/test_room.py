"""Room for whole answers, thoughts with room of their own, and the limit on what all of them cost."""

from __future__ import annotations

from typing import Any

import pytest

from cryptosentinel.conversation.budget import Price
from cryptosentinel.llm.endpoint.http import CostLimit, RequestCosts
from cryptosentinel.protocol.tool_calls import render_call
from simulator.errors import UserError
from tests.endpoint_scenes import RISK, Make, ask, request, text_of
from tests.mock_endpoint import Reply, call, chat, refusal, serve

GET = render_call("get_risk", {})


def needing(answer: int, thoughts: int = 0, most: int = 10**6) -> Any:
    """A model that needs so many tokens for its thoughts and its answer, and that takes limits up to `most`."""

    def reply(body: dict[str, Any]) -> Reply:
        limit = body["max_tokens"]
        if limit > most:
            return refusal(400, f"max_tokens is too large: {limit}. This model supports at most {most} output tokens.")
        sampled, whole = min(limit, answer + thoughts), limit >= answer + thoughts
        usage = {
            "prompt_tokens": 100,
            "completion_tokens": sampled,
            "completion_tokens_details": {"reasoning_tokens": min(thoughts, sampled)},
        }
        message = call("get_risk", {}) if whole else {"content": ""}
        return chat(message, "tool_calls" if whole else "length", usage)

    return reply


def test_an_answer_that_was_cut_off_gets_more_room_and_what_it_took_is_counted(make: Make) -> None:
    with serve(needing(150)) as endpoint:
        engine = make(endpoint)
        first = ask(engine, request(max_tokens=64))
        second = ask(engine, request(max_tokens=64))
        assert [one.body["max_tokens"] for one in endpoint.chats] == [64, 128, 256, 256]  # the room is remembered
    assert text_of(first) == text_of(second) == GET and first.finished
    assert (first.usage.prompt, first.usage.sampled, first.usage.retried) == (300, 64 + 128 + 150, 2)
    assert (second.usage.prompt, second.usage.sampled, second.usage.retried) == (100, 150, 0)
    assert any("cut off at 64 tokens" in note for note in engine.notes)
    with serve(needing(10**5)) as endpoint:  # the further tries are bounded
        answer = ask(make(endpoint), request(max_tokens=64))
        assert [one.body["max_tokens"] for one in endpoint.chats] == [64, 128, 256]
    assert not answer.finished and answer.failure is None and answer.usage.retried == 2


def test_thoughts_have_room_of_their_own(make: Make) -> None:
    with serve(needing(60, thoughts=900)) as endpoint:
        engine = make(endpoint)
        answers = [ask(engine, request(max_tokens=64)) for _ in range(2)]
        assert [one.body["max_tokens"] for one in endpoint.chats] == [64, 8256, 8256]
    assert [one.usage.reasoning for one in answers] == [964, 900]  # the first of both: those of the answer cut off, too
    assert all(text_of(one) == GET for one in answers)


def test_a_model_that_is_told_to_think_has_the_room_from_the_first_request_on(make: Make) -> None:
    with serve(needing(60, thoughts=900)) as endpoint:
        ask(make(endpoint, extra_body={"reasoning_effort": "low"}), request(max_tokens=64))
        [one] = endpoint.chats
        assert (one.body["max_tokens"], one.body["reasoning_effort"]) == (8256, "low")


def test_a_model_that_gives_no_more_is_asked_for_what_it_gives(make: Make) -> None:
    with serve(needing(100, thoughts=900, most=1000)) as endpoint:
        engine = make(endpoint)
        assert text_of(ask(engine, request(max_tokens=64))) == GET
        assert text_of(ask(engine, request(max_tokens=64))) == GET
        assert [one.body["max_tokens"] for one in endpoint.chats] == [64, 8256, 1000, 1000]
    assert any("at most 1,000 tokens" in note for note in engine.notes)


CONTEXT = (
    "This model's maximum context length is 4096 tokens. However, you requested {} tokens (4000 in the messages, {} in "
    "the completion). Please reduce the length of the messages or completion.",
    "'max_tokens' or 'max_completion_tokens' is too large: {1}. This model's maximum context length is 4096 tokens and "
    "your request has 4000 input tokens ({1} > 4096 - 4000).",
)


@pytest.mark.parametrize("text", CONTEXT)
def test_an_answer_that_does_not_fit_into_the_context_gets_what_is_left(make: Make, text: str) -> None:
    def answer(body: dict[str, Any]) -> Reply:
        limit = body["max_tokens"]
        return RISK if limit <= 96 else refusal(400, text.format(4000 + limit, limit))

    with serve(answer) as endpoint:
        engine = make(endpoint)
        for _ in range(2):  # it is not remembered: the next conversation may be shorter
            assert text_of(ask(engine, request(max_tokens=512))) == GET
        assert [one.body["max_tokens"] for one in endpoint.chats] == [512, 95, 512, 95]


def test_a_prompt_that_fills_the_context_fails_with_the_reason(make: Make) -> None:
    text = "This model's maximum context length is 4096 tokens. However, your request has 5000 input tokens."
    with serve(lambda body: refusal(400, text)) as endpoint:
        failure = ask(make(endpoint)).failure
        assert failure is not None and "maximum context length is 4096" in failure and len(endpoint.chats) == 1


PRICE = Price(2.0, 0.5, 8.0)
STATED = {"prompt_tokens": 400, "completion_tokens": 30, "total_tokens": 430}
ANSWER = chat(call("get_risk", {}), "tool_calls", STATED)
PAID = (400 * 2.0 + 30 * 8.0) / 1e6


@pytest.mark.parametrize("concurrency", [1, 4])
def test_nothing_is_sent_once_the_limit_on_costs_is_reached(make: Make, concurrency: int) -> None:
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


def test_refusals_cost_nothing_and_answers_that_were_cut_off_are_paid(make: Make) -> None:
    costs = RequestCosts()
    short = chat({"content": ""}, "length", STATED)
    with serve(lambda body: ANSWER if body["max_tokens"] > 100 else short, refusal(429, "slow down")) as endpoint:
        make(endpoint, cost_limit=CostLimit(1.0, PRICE.of, costs)).generate([request(max_tokens=64)])
    assert costs.spent == pytest.approx(2 * PAID)
