"""Conversations as messages, and answers of an endpoint as text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cryptosentinel.llm.endpoint.messages import Answer, Garbled, model_names, read_answer, to_messages
from cryptosentinel.protocol.tool_calls import MAX_ANSWER_CHARS, MalformedCall, parse, read_call, render_call
from tests.malformed_answers import MALFORMED
from tests.mock_endpoint import call, chat
from tests.team_scenes import codec

GET = render_call("get_risk", {})


def conversation(*spoken: tuple[str, str]) -> list[dict[str, str]]:
    """The turns of a conversation in which the assistant says and hears, through token ids and back."""
    ids = codec().start("You are a test.", "Begin.")
    for said, heard in spoken:
        ids += [*codec().encode_assistant(said), *codec().tool_response(heard)]
    return codec().messages(ids)


NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(
    spoken=st.lists(
        st.tuples(
            st.tuples(NAMES, st.dictionaries(st.text(max_size=6), VALUES, max_size=3))
            | st.text(max_size=20)
            | st.sampled_from([text for text, _ in MALFORMED if len(text) < 500]),
            st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
        ),
        max_size=5,
    )
)
def test_calls_are_paired_with_their_answers_and_everything_else_stays_text(spoken: list[tuple[Any, str]]) -> None:
    texts = [(render_call(*said) if isinstance(said, tuple) else said, heard) for said, heard in spoken]
    sound = {text for (text, _), (said, _) in zip(texts, spoken, strict=True) if isinstance(said, tuple)}
    messages = to_messages(conversation(*texts))
    assert [message["role"] for message in messages[:2]] == ["system", "user"]
    assert len(messages) == 2 + 2 * len(spoken)
    ids = []
    for (said, heard), assistant, answer in zip(texts, messages[2::2], messages[3::2], strict=True):
        assert assistant["role"] == "assistant" and answer["content"] == heard
        if "tool_calls" in assistant:
            [made] = assistant["tool_calls"]
            ids.append(made["id"])
            assert answer["role"] == "tool" and answer["tool_call_id"] == made["id"] and assistant["content"] is None
            assert (made["function"]["name"], json.loads(made["function"]["arguments"])) == read_call(said)
        else:
            # As it was said; a lone surrogate has become a question mark on its way through the tokens.
            text = said.encode("utf-8", "replace").decode() if said.strip() else "(no answer)"
            assert assistant["content"] == text and answer["role"] == "user"
            assert said not in sound
    assert len(set(ids)) == len(ids) and all(len(one) == 9 and one.isalnum() for one in ids)
    json.dumps(messages, allow_nan=False)


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (GET, True),
        (f"<think>The risk first.</think>\n{GET}", True),
        ("I would rather talk.", False),
        (f"{GET}\n{GET}", False),
        (render_call("not a name", {}), False),  # endpoints refuse it
        (render_call("x" * 65, {}), False),
        ('<tool_call>\n{"name": "get_risk", "arguments": []}\n</tool_call>', False),
        ('<tool_call>\n{"name": "get_risk", "arguments": {"value": 1e999}}\n</tool_call>', False),
        ('<tool_call>\n{"name": "get_risk", "arguments": {}', False),
    ],
)
def test_what_endpoints_take_back_as_a_call(said: str, kept: bool) -> None:
    _, _, assistant, answer = to_messages(conversation((said, "{}")))
    assert ("tool_calls" in assistant, answer["role"]) == ((True, "tool") if kept else (False, "user"))


def test_a_call_without_an_answer_stays_text() -> None:
    turns = [*conversation(), {"role": "assistant", "content": GET}]
    assert to_messages(turns)[-1] == {"role": "assistant", "content": GET}


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (call("get_risk", {}), GET),
        (call("get_risk", {}, content="Let me look at the risk."), GET),
        (call("get_risk", {}, reasoning_content="Hm.", refusal=None), GET),
        (call("get_risk", {}, content=GET), f"{GET}\n{GET}"),  # two calls, whichever was meant
        ({"content": GET}, GET),
        ({"content": GET, "tool_calls": []}, GET),
        ({"content": "  \n"}, "  \n"),
        ({"content": None}, ""),
        ({}, ""),
        ({"content": None, "refusal": "I will not trade."}, "I will not trade."),
        ({"content": ["parts"]}, ""),
        ({"content": None, "function_call": {"name": "get_risk", "arguments": "{}"}}, ""),  # gone since 2023
    ],
)
def test_what_a_message_says(message: dict[str, Any], text: str) -> None:
    answer = read_answer(chat(message).body)
    assert answer == Answer(text, True, None, 0, None)


@pytest.mark.parametrize(
    ("finish", "finished"), [("stop", True), ("tool_calls", True), ("length", False), (None, True), (7, True)]
)
def test_only_a_limit_of_tokens_cuts_an_answer_off(finish: Any, finished: bool) -> None:
    assert read_answer(chat({"content": "x"}, finish).body).finished is finished


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        ({"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}, (12, 0, 3)),
        ({"prompt_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 99}}, (12, 12, 3)),
        ({"prompt_tokens": 0, "completion_tokens": 0, "prompt_tokens_details": None}, (None, 0, None)),
        ({"prompt_tokens": -1, "completion_tokens": 2**70}, (None, 0, None)),
        ({"prompt_tokens": "12", "completion_tokens": 3.0}, (None, 0, None)),
        ({"prompt_tokens": True, "prompt_tokens_details": [1]}, (None, 0, None)),
    ],
)
def test_tokens_are_counted_as_the_endpoint_says(usage: Any, counted: tuple[int | None, int, int | None]) -> None:
    answer = read_answer(chat({"content": "x"}, usage=usage).body)
    assert (answer.prompt, answer.cached, answer.sampled) == counted


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"\x00\xff", "not JSON"),
        (b"\n <!DOCTYPE html><html><body>Bad gateway</body></html>", "a web page"),
        (b"[]", "not an object"),
        (b'{"choices": [{"message": "hello"}]}', "without a choice"),
        (b'{"error": {"message": "no credit"}}', "an error: no credit"),
        (b'{"error": "overloaded", "choices": []}', "an error: overloaded"),
        (b'{"choices": [{"message": {"content": ' + b"[" * 2000 + b"]" * 2000 + b"}}]}", "too deep"),
    ],
)
def test_what_is_no_chat_completion(body: bytes, words: str) -> None:
    with pytest.raises(Garbled, match=words):
        read_answer(body)


@pytest.mark.parametrize("length", [MAX_ANSWER_CHARS, MAX_ANSWER_CHARS + 1, 1_000_000])
def test_more_than_can_be_read_is_not_kept(length: int) -> None:
    for message in ({"content": "x" * length}, call("get_risk", "x" * length), call("x" * length, "{}")):
        text = read_answer(chat(message).body).text
        assert len(text) <= MAX_ANSWER_CHARS + 1
        answer = parse(text, {})
        assert isinstance(answer, MalformedCall) and (answer.code == "too_long") is (len(text) > MAX_ANSWER_CHARS)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "message", "content", "tool_calls", "function", "type", "error", "usage"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)


@settings(max_examples=300, deadline=None)
@given(
    body=st.binary(max_size=60)
    | JSON.map(lambda value: json.dumps(value).encode())
    | JSON.map(lambda value: json.dumps({"choices": [{"message": value}]}).encode())
    | JSON.map(lambda value: json.dumps({"choices": [{"message": {"tool_calls": value}}], "usage": value}).encode())
)
def test_no_answer_raises_anything_else(body: bytes) -> None:
    try:
        answer = read_answer(body)
    except Garbled as error:
        assert str(error)
    else:
        assert isinstance(parse(answer.text, {}), MalformedCall)  # there is no tool


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (b'{"object": "list", "data": [{"id": "a"}, {"id": "b:latest", "owned_by": "x"}]}', ["a", "b:latest"]),
        (b'{"data": []}', []),
        (b'{"data": [null, 7, {"id": 7}, {"name": "a"}]}', []),
        (b'{"models": []}', None),
        (b'{"data": null}', None),
        (b"[]", None),
        (b"404 page not found", None),
    ],
)
def test_the_list_of_models(body: bytes, names: list[str] | None) -> None:
    assert model_names(body) == names
