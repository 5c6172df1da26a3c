"""Calls in the syntaxes of the families: what is written is read again, by the rules of the project's own form."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cryptosentinel.protocol.syntaxes import SYNTAXES, CallSyntax
from cryptosentinel.protocol.tool_calls import MAX_ANSWER_CHARS, Arguments, MalformedCall, ToolCall
from tests.examples import tried


class Leg(Arguments):
    size: float
    note: str = ""


class Order(Arguments):
    symbol: str
    size: float
    count: int = 1
    sure: bool = False
    stop: float | None = None
    why: str | None = None
    legs: tuple[Leg, ...] | None = None


TOOLS: dict[str, type[Arguments]] = {"submit_order": Order}
EVERY = [pytest.param(one, id=f"{one.name}-{place}") for place, one in enumerate(SYNTAXES)]
# What stands in a text argument of a syntax with tags cannot hold its tags, line breaks at its border or markers.
WORDS = st.text(st.characters(blacklist_categories=["Cs", "Cc"], blacklist_characters="<>[]|`\\'\""), max_size=20).map(
    lambda text: f"a{text}z"
)
NUMBERS = st.floats(-1e6, 1e6, allow_nan=False).map(lambda value: round(value, 4))
ORDERS = st.fixed_dictionaries(
    {"symbol": WORDS, "size": NUMBERS},
    optional={
        "count": st.integers(-9, 9),
        "sure": st.booleans(),
        "stop": NUMBERS,
        "why": WORDS,
    },
)


@pytest.mark.parametrize("syntax", EVERY)
@settings(max_examples=60, deadline=None)
@given(order=ORDERS, before=st.sampled_from(["", "Let me see. ", "I think so:\n\n"]))
def test_what_is_written_is_read_again(syntax: CallSyntax, order: dict[str, Any], before: str) -> None:
    call = syntax.parse(before + syntax.write("submit_order", order), TOOLS)
    assert isinstance(call, ToolCall), call
    assert call.arguments.model_dump(exclude_unset=True) == order


@pytest.mark.parametrize("syntax", EVERY)
def test_what_is_not_one_sound_call_is_refused(syntax: CallSyntax) -> None:
    right = syntax.write("submit_order", {"symbol": "C1", "size": 1.5})
    cases = {
        "": "no_call",
        "I do nothing.": "no_call",
        right + right: "several_calls",
        f"{right}\nand that is why": "broken_call",
        syntax.write("submit_orders", {"symbol": "C1", "size": 1.5}): "unknown_tool",
        syntax.write("submit_order", {"symbol": "C1"}): "bad_arguments",
        syntax.write("submit_order", {"symbol": "C1", "size": "much"}): "bad_arguments",
        syntax.write("submit_order", {"symbol": "C1", "size": 1.5, "more": 1}): "bad_arguments",
        "x" * MAX_ANSWER_CHARS + right: "too_long",
    }
    for text, code in cases.items():
        said = syntax.parse(text, TOOLS)
        assert isinstance(said, MalformedCall), text[:80]
        # Where only the JSON says that it ends, what follows makes it none.
        assert said.code == code or (
            code in ("several_calls", "broken_call") and said.code in ("bad_json", "broken_call")
        )


@pytest.mark.parametrize("syntax", EVERY)
@tried(100)
@given(data=st.data())
def test_no_text_whatever_raises(syntax: CallSyntax, data: st.DataObject) -> None:
    whole = syntax.write("submit_order", {"symbol": "C1", "size": 1.5, "legs": [{"size": 1}]})
    parts = data.draw(st.lists(st.one_of(st.sampled_from(_pieces(whole)), st.text(max_size=5)), max_size=12))
    said = syntax.parse("".join(parts), TOOLS)
    assert isinstance(said, ToolCall | MalformedCall)


@pytest.mark.parametrize("syntax", EVERY)
def test_deep_nesting_is_refused_by_its_depth_alone(syntax: CallSyntax) -> None:
    value: Any = 1
    for _ in range(40):
        value = [value]
    said = syntax.parse(syntax.write("submit_order", {"symbol": "C1", "size": 1.5, "legs": value}), TOOLS)
    assert isinstance(said, MalformedCall) and said.code in ("bad_shape", "bad_json", "bad_arguments")


def test_text_stays_text_where_the_tool_wants_text() -> None:
    """Tags do not tell the text 12 from the number 12: the tool's types do."""
    tagged = next(one for one in SYNTAXES if one.name == "qwen_xml")
    call = tagged.parse(tagged.write("submit_order", {"symbol": "12", "size": 12, "why": "null and void"}), TOOLS)
    assert isinstance(call, ToolCall)
    assert call.arguments.model_dump(exclude_unset=True) == {"symbol": "12", "size": 12, "why": "null and void"}


def test_what_the_families_really_say_is_read() -> None:
    by_name = {one.name: one for one in reversed(SYNTAXES)}
    arguments = '{"symbol": "C1", "size": 1.5}'
    named = json.dumps({"name": "submit_order", "parameters": {"symbol": "C1", "size": 1.5}})
    said = {
        "llama3": (f"<|python_tag|>{named}", f"```json\n{named}\n```"),
        "harmony": (
            f"<|channel|>commentary to=functions.submit_order <|constrain|>json<|message|>{arguments}",
            f" to=functions.submit_order<|channel|>commentary json<|message|>{arguments}",
        ),
        "mistral": ('[TOOL_CALLS] [{"name": "submit_order", "arguments": ' + arguments + ', "id": "q1w2e3r4t"}]',),
        "hermes": ('<tool_call>{"name": "submit_order", "arguments": ' + arguments + "}</tool_call>",),
        "json": ('Sure!\n```json\n{"name": "submit_order", "arguments": ' + arguments + "}\n```",),
    }
    for name, texts in said.items():
        for text in texts:
            call = by_name[name].parse(text, TOOLS)
            assert isinstance(call, ToolCall), (name, text, call)


def _pieces(text: str) -> list[str]:
    return [text[start : start + 7] for start in range(0, len(text), 7)] + [text]
