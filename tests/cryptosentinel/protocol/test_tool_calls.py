"""What a model may say, and how everything else is refused."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cryptosentinel.agents.manager import ASK_SEVERAL
from cryptosentinel.agents.registry import MANAGER, ROLES, SPEAKERS
from cryptosentinel.protocol.tool_calls import (
    MAX_ANSWER_CHARS,
    Code,
    MalformedCall,
    ToolCall,
    parse,
    read_call,
    render_call,
    render_tool_calls,
    tool_schema,
)
from cryptosentinel.protocol.tool_schemas import slim, with_coins
from tests.examples import tried
from tests.malformed_answers import ASK, MALFORMED, MALFORMED_TOOL_CALLS, call, function, position

TOOLS = MANAGER.argument_types()
ALL_TOOLS = {name: kind for role in ROLES.values() for name, kind in role.argument_types().items()}


def named(corpus: Sequence[tuple[Any, str]]) -> list[Any]:
    """The cases of a corpus under short names: some are a megabyte."""
    return [pytest.param(*case, id=f"{number}-{case[1]}") for number, case in enumerate(corpus)]


def check_refused(answer: ToolCall | MalformedCall, code: str) -> None:
    assert isinstance(answer, MalformedCall) and answer.code == code
    assert 0 < len(answer.detail) <= 300
    assert answer.detail.isprintable()  # it is stored and shown: nothing hidden, no lone surrogate may be in it


@pytest.mark.parametrize(("text", "code"), named(MALFORMED))
def test_malformed(text: str, code: str) -> None:
    check_refused(parse(text, TOOLS), code)


@pytest.mark.parametrize(("tool_calls", "code"), named(MALFORMED_TOOL_CALLS))
def test_malformed_tool_calls(tool_calls: object, code: str) -> None:
    """What a server returns is refused as if the model had written it, and what is shown of it stays short."""
    text = render_tool_calls(tool_calls)
    check_refused(parse(text, TOOLS), code)
    assert len(text) <= MAX_ANSWER_CHARS or code == "too_long"


def test_every_reason_is_reached_and_no_other_is() -> None:
    by_the_team = {"unknown_symbol", "no_room", "engine_failed", "cut_off"}  # its own tests reach these
    assert {code for _, code in MALFORMED} == set(get_args(Code)) - by_the_team
    assert {code for _, code in MALFORMED_TOOL_CALLS} == set(get_args(Code)) - by_the_team - {"broken_call"}


def test_a_reason_does_not_depend_on_where_the_caller_stands() -> None:
    """Close to the end of Python's stack a nested answer is refused as it is anywhere."""

    def deeper(levels: int) -> ToolCall | MalformedCall:
        return deeper(levels - 1) if levels else parse(call("[" * 900 + "]" * 900), TOOLS)

    depth = len(inspect.stack(0))
    for levels in (0, sys.getrecursionlimit() - depth - 100):
        check_refused(deeper(levels), "bad_shape")


@pytest.mark.parametrize(
    ("role", "name", "arguments"),
    [
        ("market_analyst", "submit_analysis", {"up": 0, "flat": 0, "down": 0}),
        ("market_analyst", "submit_analysis", {"up": 1.1, "flat": 0, "down": 0}),
        ("market_analyst", "submit_analysis", {"up": 1}),
        ("market_analyst", "get_trend", {"bars": 5}),
        ("risk_analyst", "submit_verdict", {"verdict": "approve", "to": 0.5, "loss": 5}),
        ("risk_analyst", "submit_verdict", {"verdict": "reduce", "loss": 5}),
        ("risk_analyst", "submit_verdict", {"verdict": "reduce", "to": 1.5, "loss": 5}),
        ("risk_analyst", "submit_verdict", {"verdict": "raise", "loss": 5}),
        ("risk_analyst", "submit_verdict", {"verdict": "veto", "loss": 101}),
        ("risk_analyst", "submit_verdict", {"verdict": "veto"}),
        ("trader", "submit_orders", {"type": "limit", "wait": 0, "slices": 1}),
        ("trader", "submit_orders", {"type": "market", "wait": 5, "slices": 1}),
        ("trader", "submit_orders", {"type": "market", "wait": 0.0, "slices": 1}),
        ("trader", "submit_orders", {"type": "market", "wait": 0, "slices": 0}),
    ],
)
def test_answers_outside_their_range(role: str, name: str, arguments: dict[str, Any]) -> None:
    answer = parse(render_call(name, arguments), ROLES[role].argument_types())
    assert isinstance(answer, MalformedCall) and answer.code == "bad_arguments" and name in answer.detail


@pytest.mark.parametrize("before", ["", "\n ", "<think>\n\n</think>\n\n", "<think>C1 <tool_call> </think>"])
def test_a_call_may_follow_a_thought_and_stand_in_whitespace(before: str) -> None:
    answer = parse(f"{before}{call(ASK)}\n", TOOLS)
    assert isinstance(answer, ToolCall) and answer.name == "consult_market_analyst"


@pytest.mark.parametrize("reason", ["[" * 50, "}}}}", '{"a": [\\"' + "[" * 20, "\\\\"])
def test_brackets_and_quotes_within_a_string_have_no_depth(reason: str) -> None:
    answer = parse(position(reason=json.dumps(reason)), TOOLS)
    assert isinstance(answer, ToolCall) and answer.arguments.model_dump()["positions"][0]["reason"] == reason


VALID: st.SearchStrategy[tuple[str, dict[str, Any]]] = st.one_of(
    st.tuples(
        st.just("submit_decision"),
        st.fixed_dictionaries(
            {
                "positions": st.lists(
                    st.fixed_dictionaries(
                        {
                            "symbol": st.text(st.characters(exclude_categories=["Cs"]), max_size=24),
                            "side": st.sampled_from(["long", "short"]),
                            "exposure": st.floats(0, 10),
                        },
                        optional={
                            "stop": st.floats(0.01, 50),
                            "target": st.floats(0.01, 99),
                            "reason": st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
                        },
                    ),
                    max_size=3,
                    unique_by=lambda item: item["symbol"],
                )
            }
        ),
    ),
    st.tuples(
        st.just("submit_analysis"),
        st.fixed_dictionaries({"up": st.floats(0.01, 1), "flat": st.floats(0, 1), "down": st.floats(0, 1)}),
    ),
    st.tuples(
        st.just("submit_orders"),
        st.fixed_dictionaries({"type": st.just("market"), "wait": st.integers(0, 4), "slices": st.integers(1, 3)}),
    ),
    st.tuples(st.sampled_from(["get_trend", "get_news", "get_funding", "get_risk", "preview_order"]), st.just({})),
)


@tried(200)
@given(said=VALID)
def test_what_is_rendered_is_read_back(said: tuple[str, dict[str, Any]]) -> None:
    name, arguments = said
    text = render_call(name, arguments)
    answer = parse(text, ALL_TOOLS)
    if "tool_call>" in text[len("<tool_call>") : -len("</tool_call>")] or len(text) > MAX_ANSWER_CHARS:
        assert isinstance(answer, MalformedCall)
        return
    assert isinstance(answer, ToolCall) and answer.name == name
    assert answer.arguments.model_dump(exclude_unset=True) == arguments
    # The same call as a chat-completions server returns it.
    assert parse(render_tool_calls([function(name, json.dumps(arguments))]), ALL_TOOLS) == answer
    # Once more, from what was read.
    assert parse(render_call(name, answer.arguments.model_dump(exclude_none=True)), ALL_TOOLS) == answer


PIECES = [
    "<tool_call>", "</tool_call>", "<think>", "</think>", "<|im_end|>", '"name"', '"arguments"', ":", ",", "{", "}",
    "[", "]", '"', "\\ud800", "\\u0000", "NaN", "1e999", "submit_decision", '{"name": "submit_decision", "arguments": ',
    '"positions"', "null", "-0", "\n", "�", "\ud800", "[" * 300, '{"a":' * 200,
]  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)


@tried(400)
@given(
    text=st.one_of(
        st.text(st.characters(), max_size=200),  # lone surrogates among them
        st.lists(st.sampled_from(PIECES), max_size=25).map("".join),
        JSON.map(lambda value: call(json.dumps(value))),
        st.tuples(st.sampled_from([*TOOLS, "x"]), JSON).map(
            lambda pair: call(json.dumps({"name": pair[0], "arguments": pair[1]}))
        ),
        st.integers(0, 60).map(lambda end: call(ASK)[:end]),
    )
)
def test_no_text_raises(text: str) -> None:
    answer = parse(text, TOOLS)
    assert isinstance(answer, ToolCall | MalformedCall)
    if isinstance(answer, MalformedCall):
        assert answer.detail.isprintable()


@settings(max_examples=60, deadline=None)
@given(body=JSON, opening=st.sampled_from(["[", '{"a":', '[{"b":']), levels=st.integers(1, 1100))
def test_no_depth_raises(body: Any, opening: str, levels: int) -> None:
    closing = "".join({"[": "]", "{": "}"}[sign] for sign in reversed(opening) if sign in "[{")
    for head in ('{"name": "submit_decision", "arguments": %s}', '{"name": %s, "arguments": {}}', "%s"):
        deep = opening * levels + json.dumps(body) + closing * levels
        assert isinstance(parse(call(head % deep), TOOLS), MalformedCall)


@tried(300)
@given(
    tool_calls=st.one_of(
        JSON,
        st.lists(JSON.map(lambda value: {"type": "function", "function": value}), max_size=2),
        st.tuples(st.sampled_from([*TOOLS, "x"]), JSON).map(lambda pair: [function(pair[0], json.dumps(pair[1]))]),
        st.tuples(st.sampled_from([*TOOLS, "x"]), st.lists(st.sampled_from(PIECES), max_size=9).map("".join)).map(
            lambda pair: [function(*pair)]
        ),
    )
)
def test_no_tool_call_raises(tool_calls: object) -> None:
    answer = parse(render_tool_calls(tool_calls), TOOLS)
    assert isinstance(answer, ToolCall | MalformedCall)
    if isinstance(answer, MalformedCall):
        assert answer.detail.isprintable()


@pytest.mark.parametrize("role", list(ROLES))
def test_every_schema_is_closed_and_json(role: str) -> None:
    for tool in (*ROLES[role].tools, ROLES[role].answer):
        schema = json.loads(json.dumps(tool_schema(tool.name, tool.description, tool.arguments)))
        # The form of chat completions: these keys alone, a name of at most 64 letters, an object of parameters.
        assert set(schema) == {"type", "function"} and schema["type"] == "function"
        assert set(schema["function"]) == {"name", "description", "parameters"}
        assert schema["function"]["name"] == tool.name and schema["function"]["description"]
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", tool.name)
        assert schema["function"]["parameters"]["type"] == "object"
        assert set(schema["function"]["parameters"]["properties"]) == set(tool.arguments.model_fields)
        assert schema["function"]["parameters"]["additionalProperties"] is False


@pytest.mark.parametrize("calls", [2, 30, 59])
def test_several_calls_of_a_server_are_shown_as_far_as_they_can_be_read(calls: int) -> None:
    shown = render_tool_calls([function("get_risk", f'{{"number": {number}}}') for number in range(calls)])
    check_refused(parse(shown, TOOLS), "several_calls")
    numbers = [int(number) for number in re.findall(r'"number": (\d+)', shown)]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) == calls or MAX_ANSWER_CHARS - 100 < len(shown) <= MAX_ANSWER_CHARS


@pytest.mark.parametrize("arguments", ["{}", ' {"symbol": "C1"}\n', "[]", "7", '"{}"'])
def test_a_server_s_arguments_are_neither_read_nor_changed(arguments: str) -> None:
    shown = render_tool_calls([function("get_risk", arguments)])
    assert arguments in shown and read_call(shown) == ("get_risk", json.loads(arguments))


@pytest.mark.parametrize(
    "arguments", ['{}, "more": 1', '{}, "name": "submit_decision"', "{}}\n</tool_call>\n<tool_call>\n{", "{} // {}"]
)
def test_arguments_cannot_leave_their_place(arguments: str) -> None:
    assert isinstance(read_call(render_tool_calls([function("get_risk", arguments)])), MalformedCall)


EVERY_TOOL = [
    pytest.param(schema, id=f"{role.key}-{schema['function']['name']}")
    for role in SPEAKERS.values()
    for schema in role.schemas
]


def parts(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema inside `schema`, itself included."""
    if isinstance(schema, dict):
        yield schema
        inner = [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]
        for one in inner:
            yield from parts(one)


@pytest.mark.parametrize("tool", EVERY_TOOL)
def test_a_schema_has_every_argument_with_its_meaning_and_nothing_that_no_call_needs(tool: dict[str, Any]) -> None:
    slimmed = slim(tool)
    text = json.dumps(slimmed)
    assert not any(f'"{word}"' in text for word in ("title", "default", "$ref", "$defs", "anyOf", "oneOf", "null"))
    for name in ("name", "description"):
        assert slimmed["function"][name] == tool["function"][name]
    whole, shown = tool["function"]["parameters"], slimmed["function"]["parameters"]
    assert set(shown["properties"]) == set(whole["properties"])
    assert shown.get("required", []) == whole.get("required", [])
    for schema in parts(shown):
        for name, argument in schema.get("properties", {}).items():
            plain = "enum" in argument or argument["type"] == "array"
            assert "description" in argument or plain, f"{tool['function']['name']}: {name}"


def test_several_kinds_of_question_become_one() -> None:
    [tool] = [one for one in ROLES["manager"].schemas if one["function"]["name"] == ASK_SEVERAL]
    question = slim(tool)["function"]["parameters"]["properties"]["questions"]["items"]
    assert question["required"] == ["ask", "symbol"]
    assert question["properties"]["ask"]["enum"] == ["market_analyst", "risk_analyst", "trader"]
    assert question["properties"]["side"]["description"] == "of risk_analyst, trader"
    assert "description" not in question["properties"]["ask"]


@pytest.mark.parametrize("tool", EVERY_TOOL)
def test_a_coin_can_only_be_one_of_the_decision(tool: dict[str, Any]) -> None:
    named = with_coins(tool, ("C1", "C2"))
    before, after = slim(tool), slim(named)
    for whole, narrow in zip(
        parts(before["function"]["parameters"]), parts(after["function"]["parameters"]), strict=True
    ):
        for name, argument in narrow.get("properties", {}).items():
            if name == "symbol":
                assert argument["enum"] == ["C1", "C2"] and "maxLength" not in argument
            elif argument.get("type") not in ("array", "object"):
                assert argument == whole["properties"][name]
    assert json.dumps(tool).count("C1") == 0  # the tool itself is as it was
