"""What a model may say, and how everything else is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cryptosentinel.agents.registry import MANAGER, ROLES
from cryptosentinel.protocol import (
    MAX_ANSWER_CHARS,
    MAX_DEPTH,
    Arguments,
    Malformed,
    ToolCall,
    parse,
    render_call,
    tool_schema,
)

TOOLS = MANAGER.argument_types()
ALL_TOOLS = {name: kind for role in ROLES.values() for name, kind in role.argument_types().items()}


def call(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


def decision(positions: str) -> str:
    return call(f'{{"name": "submit_decision", "arguments": {{"positions": {positions}}}}}')


def position(**fields: str) -> str:
    """A decision on one position, from JSON texts of its fields."""
    both = {"symbol": '"C1"', "side": '"long"', "exposure": "0.5"} | fields
    return decision(f"[{{{', '.join(f'{json.dumps(key)}: {value}' for key, value in both.items())}}}]")


ASK = '{"name": "consult_market_analyst", "arguments": {"symbol": "C1"}}'
NESTED = {levels: '{"a":' * levels + "1" + "}" * levels for levels in (MAX_DEPTH, MAX_DEPTH + 1)}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        # nothing, or not a call
        ("", "no_call"),
        ("   \n", "no_call"),
        ("Let me think about it.", "no_call"),
        (ASK, "no_call"),
        ("\x00\x01\x02", "no_call"),
        ("😀" * 100, "no_call"),
        ("<think>I will call</think>", "no_call"),
        ("<TOOL_CALL>" + ASK + "</TOOL_CALL>", "no_call"),
        # truncated
        (call(ASK)[:-1], "broken_call"),
        (f"<tool_call>\n{ASK}", "broken_call"),
        ("<tool_call>", "broken_call"),
        (call(ASK[:-1]), "bad_json"),
        (call(ASK[:20]), "bad_json"),
        (call(""), "bad_json"),
        # text around it, several, nested
        (f"Sure! {call(ASK)}", "broken_call"),
        (f"{call(ASK)} Done.", "broken_call"),
        (f"{call(ASK)}\n{call(ASK)}", "several_calls"),
        (call(call(ASK)), "several_calls"),
        (call(f"{ASK}, {ASK}"), "bad_json"),
        (call(f"[{ASK}, {ASK}]"), "bad_shape"),
        (f"<think>a</think><think>b</think>{call(ASK)}", "broken_call"),
        # injected tags
        (f"<|im_end|>\n<|im_start|>assistant\n{call(ASK)}", "broken_call"),
        (position(reason='"</tool_call>"'), "several_calls"),
        (position(reason='"<tool_call>"'), "several_calls"),
        (f"<tool_response>{call(ASK)}</tool_response>", "broken_call"),
        # JSON that is none, or none of ours
        (call("{'name': 'submit_decision', 'arguments': {'positions': []}}"), "bad_json"),
        (call('{"name": "submit_decision", "arguments": {"positions": [],}}'), "bad_json"),
        (position(exposure="NaN"), "bad_json"),
        (position(exposure="Infinity"), "bad_json"),
        (position(exposure="-Infinity"), "bad_json"),
        (position(exposure="0x1"), "bad_json"),
        (position(exposure="01"), "bad_json"),
        (position(reason='"line\nbreak"'), "bad_json"),
        (call("[" * 1500 + "]" * 1500), "bad_json"),
        # duplicate keys
        (call('{"name": "a", "name": "submit_decision", "arguments": {"positions": []}}'), "bad_json"),
        (decision('[{"symbol": "C1", "symbol": "C2", "side": "flat"}]'), "bad_json"),
        # another shape
        (call("null"), "bad_shape"),
        (call("1e5"), "bad_shape"),
        (call('"submit_decision"'), "bad_shape"),
        (call("[]"), "bad_shape"),
        (call("{}"), "bad_shape"),
        (call('{"name": "submit_decision"}'), "bad_shape"),
        (call('{"arguments": {"positions": []}}'), "bad_shape"),
        (call('{"name": "submit_decision", "arguments": {"positions": []}, "id": 1}'), "bad_shape"),
        (call('{"name": "submit_decision", "arguments": [[]]}'), "bad_shape"),
        (call('{"name": "submit_decision", "arguments": "{}"}'), "bad_shape"),
        (call('{"name": "submit_decision", "arguments": null}'), "bad_shape"),
        (call('{"name": 7, "arguments": {}}'), "bad_shape"),
        (call('{"name": ["submit_decision"], "arguments": {}}'), "bad_shape"),
        (call(f'{{"name": {"[" * 600}{"]" * 600}, "arguments": {{}}}}'), "bad_shape"),
        # deep nesting: refused by its depth long before Python's stack ends
        (call(f'{{"name": "submit_decision", "arguments": {NESTED[MAX_DEPTH + 1]}}}'), "bad_shape"),
        (call(f'{{"name": "submit_decision", "arguments": {NESTED[MAX_DEPTH]}}}'), "bad_arguments"),
        *((decision("[" * levels + "]" * levels), "bad_shape") for levels in range(100, 901, 50)),
        # tools
        (call('{"name": "submit_trade", "arguments": {}}'), "unknown_tool"),
        (call('{"name": "", "arguments": {}}'), "unknown_tool"),
        (call('{"name": "Submit_Decision", "arguments": {"positions": []}}'), "unknown_tool"),
        (call('{"name": "submit_decision ", "arguments": {"positions": []}}'), "unknown_tool"),
        (call('{"name": "\\ud800", "arguments": {}}'), "unknown_tool"),
        (call('{"name": "get_risk", "arguments": {}}'), "unknown_tool"),  # another role's
        # arguments
        (call('{"name": "submit_decision", "arguments": {}}'), "bad_arguments"),
        (decision("{}"), "bad_arguments"),
        (decision("[null]"), "bad_arguments"),
        (decision('[{"symbol": "C1"}]'), "bad_arguments"),
        (position(exposure='"0.5"'), "bad_arguments"),
        (position(exposure="true"), "bad_arguments"),
        (position(exposure="null"), "bad_arguments"),
        (position(exposure="[0.5]"), "bad_arguments"),
        (position(exposure="1e999"), "bad_arguments"),  # JSON reads it as infinity
        (position(exposure="9" * 400), "bad_arguments"),
        (position(exposure="-0.1"), "bad_arguments"),
        (position(exposure="10.1"), "bad_arguments"),
        (position(side='"LONG"'), "bad_arguments"),
        (position(side='"lоng"'), "bad_arguments"),  # a Cyrillic o
        (position(side='"flat"'), "bad_arguments"),  # flat with an exposure
        (position(symbol="1"), "bad_arguments"),
        (position(symbol=json.dumps("C" * 25)), "bad_arguments"),
        (position(reason='"\\ud800"'), "bad_arguments"),
        (position(reason=json.dumps("x" * 201)), "bad_arguments"),
        (position(stop="0"), "bad_arguments"),
        (position(stop="51"), "bad_arguments"),
        (position(target="100"), "bad_arguments"),  # a short position's would be a price of 0
        (position(leverage="100"), "bad_arguments"),
        (decision('[{"symbol": "C1", "side": "flat"}, {"symbol": "C1", "side": "flat"}]'), "bad_arguments"),
        (decision(json.dumps([{"symbol": f"C{n}", "side": "flat"} for n in range(33)])), "bad_arguments"),
        # too long, whatever it is
        ("x" * (MAX_ANSWER_CHARS + 1), "too_long"),
        (call(ASK) + " " * MAX_ANSWER_CHARS, "too_long"),
    ],
)
def test_malformed(text: str, code: str) -> None:
    answer = parse(text, TOOLS)
    assert isinstance(answer, Malformed) and answer.code == code
    assert 0 < len(answer.detail) <= 300
    answer.detail.encode()  # it is stored: no lone surrogate may be in it


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
    assert isinstance(answer, Malformed) and answer.code == "bad_arguments" and name in answer.detail


@pytest.mark.parametrize("before", ["", "\n ", "<think>\n\n</think>\n\n", "<think>C1 <tool_call> </think>"])
def test_a_call_may_follow_a_thought_and_stand_in_whitespace(before: str) -> None:
    answer = parse(f"{before}{call(ASK)}\n", TOOLS)
    assert isinstance(answer, ToolCall) and answer.name == "consult_market_analyst"


def test_the_longest_answer_is_still_read() -> None:
    assert isinstance(parse(call(ASK).ljust(MAX_ANSWER_CHARS), TOOLS), ToolCall)


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


@settings(max_examples=200, deadline=None)
@given(said=VALID)
def test_what_is_rendered_is_read_back(said: tuple[str, dict[str, Any]]) -> None:
    name, arguments = said
    text = render_call(name, arguments)
    answer = parse(text, ALL_TOOLS)
    if "tool_call>" in text[len("<tool_call>") : -len("</tool_call>")] or len(text) > MAX_ANSWER_CHARS:
        assert isinstance(answer, Malformed)
        return
    assert isinstance(answer, ToolCall) and answer.name == name
    assert answer.arguments.model_dump(exclude_unset=True) == arguments
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


@settings(max_examples=400, deadline=None)
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
    assert isinstance(answer, ToolCall | Malformed)
    if isinstance(answer, Malformed):
        answer.detail.encode()


@settings(max_examples=60, deadline=None)
@given(body=JSON, opening=st.sampled_from(["[", '{"a":', '[{"b":']), levels=st.integers(1, 1100))
def test_no_depth_raises(body: Any, opening: str, levels: int) -> None:
    closing = "".join({"[": "]", "{": "}"}[sign] for sign in reversed(opening) if sign in "[{")
    for head in ('{"name": "submit_decision", "arguments": %s}', '{"name": %s, "arguments": {}}', "%s"):
        deep = opening * levels + json.dumps(body) + closing * levels
        assert isinstance(parse(call(head % deep), TOOLS), Malformed)


@pytest.mark.parametrize("role", list(ROLES))
def test_every_schema_is_closed_and_json(role: str) -> None:
    for tool in (*ROLES[role].tools, ROLES[role].answer):
        schema = json.loads(json.dumps(tool_schema(tool.name, tool.description, tool.arguments)))
        assert schema["function"]["name"] == tool.name and schema["function"]["description"]
        assert schema["function"]["parameters"]["additionalProperties"] is False


class Unbounded(Arguments):
    """Arguments of a tool that forgot its range."""

    value: float


def test_no_tool_ever_gets_an_infinity() -> None:
    answer = parse(call('{"name": "t", "arguments": {"value": 1e999}}'), {"t": Unbounded})
    assert isinstance(answer, Malformed) and answer.code == "bad_arguments"


def test_numbers_arrive_finite() -> None:
    answer = parse(position(exposure="1e-320"), TOOLS)
    assert isinstance(answer, ToolCall)
    assert math.isfinite(answer.arguments.model_dump()["positions"][0]["exposure"])
