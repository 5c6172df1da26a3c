"""Faults of servers that public reports of other tools describe: each costs a decision where it is not met."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cryptosentinel.conversation.budget import Price
from cryptosentinel.llm.endpoint.http import CostLimit, RequestCosts
from cryptosentinel.llm.endpoint.messages import read_answer, to_messages
from cryptosentinel.llm.engine import Request, Sampling
from cryptosentinel.protocol.tool_calls import render_call
from simulator.errors import UserError
from tests.endpoint_scenes import RISK, Make, ask, request, text_of
from tests.mock_endpoint import Reply, call, chat, refusal, reply, serve
from tests.team_scenes import codec

LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "",
        "parameters": {
            "type": "object",
            "properties": {"symbol": {"type": "string"}, "bars": {"type": "integer"}},
            "required": ["symbol", "bars"],
        },
    },
}
ARGUMENTS = {"symbol": "BTC", "bars": 3}
CALL = render_call("look", ARGUMENTS)
TAGGED = (
    "<tool_call>\n<function=look>\n<parameter=symbol>\nBTC\n</parameter>\n<parameter=bars>\n3\n</parameter>\n"
    "</function>\n</tool_call>"
)
JSON = json.dumps({"name": "look", "arguments": ARGUMENTS})


def looking(text: str = "Begin.") -> Request:
    return Request("manager", tuple(codec().start("You are a test.", text)), Sampling(), 1, (LOOK,))


@pytest.mark.parametrize(
    "content",
    [
        JSON,
        f"```json\n{JSON}\n```",
        json.dumps({"name": "look", "parameters": ARGUMENTS}),  # as Llama 3 writes it
        TAGGED,
        CALL,
        f"Let me think about BTC.\n</think>\n\n{CALL}",
        f"<think>\nLet me think.\n</think>\n{TAGGED}",
        f"Hm.\n</think>\n{JSON}",
    ],
)
def test_a_call_that_the_server_left_in_the_text_is_read(make: Make, content: str) -> None:
    with serve(lambda body: chat({"content": content})) as endpoint:
        engine = make(endpoint)
        assert text_of(ask(engine, looking())) == CALL
        assert any("left the call in the text" in note for note in engine.notes)
        assert engine.latest is not None and engine.latest.form == "text"


@pytest.mark.parametrize(
    "content", ["I would call look.", f"I would say {JSON}", f"{JSON}\n{JSON}", f"{TAGGED}\n{TAGGED}", f"So: {TAGGED}"]
)
def test_text_that_is_not_one_call_and_nothing_else_stays_text(make: Make, content: str) -> None:
    with serve(lambda body: chat({"content": content})) as endpoint:
        engine = make(endpoint)
        assert text_of(ask(engine, looking())) == content and not engine.notes


@given(
    opened=st.booleans(),
    thought=st.text(st.characters(exclude_categories=["Cs"]), max_size=30).filter(lambda text: "<" not in text),
    rest=st.sampled_from([CALL, JSON, TAGGED, "I wait.", ""]),
)
def test_a_thought_is_left_out_whether_or_not_its_beginning_is_there(opened: bool, thought: str, rest: str) -> None:
    thought = f"I {thought}"
    plain = read_answer(chat({"content": rest}).body, [LOOK])
    answer = read_answer(chat({"content": f"{'<think>' * opened}{thought}</think>\n{rest}"}).body, [LOOK])
    assert (answer.text, answer.form) == (plain.text, plain.form) and answer.thought


@pytest.mark.parametrize("text", [render_call("look", {"why": "</think> is a tag"}), '{"why": "</think>"}'])
def test_a_closing_tag_inside_a_call_closes_no_thought(text: str) -> None:
    assert read_answer(chat({"content": text}).body).text == text


@pytest.mark.parametrize("said", ["", "  \n"])
def test_an_empty_answer_is_not_sent_back_empty(make: Make, said: str) -> None:
    """vLLM refuses such a message, so the retry would always fail."""

    def answer(body: dict[str, Any]) -> Reply:
        spoken = [one for one in body["messages"] if one["role"] == "assistant"]
        if any(not (one["content"] or "").strip() and not one.get("tool_calls") for one in spoken):
            return refusal(400, "assistant message must have content or tool calls")
        return RISK if spoken else chat({"content": said})

    with serve(answer) as endpoint:
        engine = make(endpoint)
        first = ask(engine, request())
        ids = (*request().ids, *first.ids, *codec().tool_response('{"error": "no_call"}'))
        again = ask(engine, Request("manager", ids, Sampling(), 2, (LOOK,)))
    assert again.failure is None and text_of(again) == render_call("get_risk", {})


@pytest.mark.parametrize("code", [429, 502, "503"])
def test_an_error_inside_a_success_is_tried_again(make: Make, code: int | str) -> None:
    upstream = reply({"error": {"message": "upstream busy", "code": code}})
    with serve(lambda body: RISK, upstream, upstream) as endpoint:
        assert ask(make(endpoint)).failure is None and len(endpoint.chats) == 3
    with serve(lambda body: upstream) as endpoint:
        assert ask(make(endpoint)).failure == f"refused with status {code}: upstream busy"
    with serve(lambda body: reply({"error": {"message": "no such key", "code": 401}})) as endpoint:
        with pytest.raises(UserError, match="refuses the key"):
            ask(make(endpoint))
        assert len(endpoint.chats) == 1


@pytest.mark.parametrize("usage", [None, {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}])
def test_a_usage_of_zeros_is_none_and_the_limit_on_costs_still_ends_the_run(make: Make, usage: Any) -> None:
    costs = RequestCosts()
    price = Price(2.0, 0.5, 8.0)
    with serve(lambda body: chat(call("get_risk", {}), "tool_calls", usage)) as endpoint:
        engine = make(endpoint, cost_limit=CostLimit(0.02, price.of, costs))
        answer = ask(engine, request(max_tokens=400))
        assert answer.usage.prompt == len(request().ids) and answer.usage.sampled >= len(answer.ids)
        assert 0.0 < costs.spent <= 0.02
        first = costs.spent
        with pytest.raises(UserError, match="max_cost"):
            for seed in range(99):
                ask(engine, request(seed=seed, max_tokens=400))
        assert len(endpoint.chats) < 99 and costs.spent <= 0.02 + 2 * first


@pytest.mark.parametrize("where", ["reasoning_content", "content"])
def test_reasoning_alone_is_asked_again_with_more_room_and_then_named(make: Make, where: str) -> None:
    thought = "I should look at BTC." if where != "content" else "<think>I should look at BTC.</think>"
    alone = chat({"content": "", where: thought})
    with serve(lambda body: RISK if body["max_tokens"] > 90 else alone) as endpoint:
        engine = make(endpoint)
        assert text_of(ask(engine, request(max_tokens=64))) == render_call("get_risk", {})
        assert [one.body["max_tokens"] for one in endpoint.chats] == [64, 8256]
        assert any("held only a thought" in note for note in engine.notes)
    with serve(lambda body: alone) as endpoint:
        answer = ask(make(endpoint), request(max_tokens=64))
        assert answer.failure == "the model only reasoned, and gave no answer and no call, in 3 answers"
        assert answer.usage.retried == 2 and len(endpoint.chats) == 3


@pytest.mark.parametrize(("timeout", "tried"), [(20.0, 1), (2.0, 2), (400.0, 2)])
def test_retry_after_is_obeyed_up_to_the_timeout(
    make: Make, monkeypatch: pytest.MonkeyPatch, timeout: float, tried: int
) -> None:
    """Also where it is longer than the two minutes that the SDK waits by itself."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("cryptosentinel.llm.endpoint.http.asyncio.sleep", sleep)
    seconds = {20.0: "21", 2.0: "1", 400.0: "300"}[timeout]
    with serve(lambda body: RISK, refusal(429, "slow", headers={"Retry-After": seconds})) as endpoint:
        answer = ask(make(endpoint, timeout=timeout))
        assert len(endpoint.chats) == tried and (answer.failure is None) == (tried == 2)
    assert 300.0 in slept or timeout < 400.0


@given(
    st.lists(
        st.sampled_from(
            ["USER:", "assistant:", "Human:", "### Response:", "###instruction:", "[INST]", "BTC up ", "\n"]
        )
    )
)
def test_no_text_from_outside_holds_the_words_that_open_a_turn(parts: list[str]) -> None:
    """Templates of older models mark turns by words, and a server encodes a message's text as it stands."""
    text = "".join(parts)
    turns = [{"role": "user", "content": text}, {"role": "tool", "content": text}]
    pattern = re.compile(r"\b(user|assistant|human|system):|### ?(instruction|response):", re.IGNORECASE)
    for message in to_messages(turns):
        assert not pattern.search(message["content"])
        assert message["content"].replace(" ", "") == text.replace(" ", "")
