"""A corpus of answers that no role may give, each with the reason for which it is refused.

The texts are answers to the manager's tools; `MALFORMED_TOOL_CALLS` are the same kind of trouble as a chat-completions
server would return it.
"""

from __future__ import annotations

import json
from typing import Any

from cryptosentinel.protocol.tool_calls import MAX_ANSWER_CHARS, MAX_DEPTH, Code

MEGABYTE = 1_000_000


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
COMPLETE = call(ASK)
# Other ways to write the name of a tool.
LOOKALIKES = (
    "ѕubmit_decision",  # a Cyrillic s
    "submit\u200b_decision",
    "ｓｕｂｍｉｔ_decision",
    "submit_decision\u0000",
    "submit\u00addecision",
    "submıt_decision",
    "SUBMIT_DECISION",
    "submit-decision",
    "submit_decision()",
)

MALFORMED: tuple[tuple[str, Code], ...] = (
    # nothing, or not a call
    ("", "no_call"),
    ("   \n", "no_call"),
    ("Let me think about it.", "no_call"),
    (ASK, "no_call"),
    ("<think>I will call</think>", "no_call"),
    # truncated
    ("<tool_call>", "broken_call"),
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
    (f"<tool_response>{call(ASK)}</tool_response>", "broken_call"),
    # JSON that is none, or none of ours
    (call("{'name': 'submit_decision', 'arguments': {'positions': []}}"), "bad_json"),
    (call('{"name": "submit_decision", "arguments": {"positions": [],}}'), "bad_json"),
    (position(exposure="NaN"), "bad_json"),
    (position(exposure="Infinity"), "bad_json"),
    (position(exposure="0x1"), "bad_json"),
    (position(reason='"line\nbreak"'), "bad_json"),
    (call("[" * 1500 + "]" * 1500), "bad_shape"),
    # duplicate keys
    (call('{"name": "a", "name": "submit_decision", "arguments": {"positions": []}}'), "bad_json"),
    (decision('[{"symbol": "C1", "symbol": "C2", "side": "flat"}]'), "bad_json"),
    # another shape
    (call("null"), "bad_shape"),
    (call('"submit_decision"'), "bad_shape"),
    (call('{"name": "submit_decision"}'), "bad_shape"),
    (call('{"arguments": {"positions": []}}'), "bad_shape"),
    (call('{"name": "submit_decision", "arguments": {"positions": []}, "id": 1}'), "bad_shape"),
    (call('{"name": "submit_decision", "arguments": "{}"}'), "bad_shape"),
    (call('{"name": 7, "arguments": {}}'), "bad_shape"),
    (call(f'{{"name": {"[" * 600}{"]" * 600}, "arguments": {{}}}}'), "bad_shape"),
    # deep nesting: refused by its depth long before Python's stack ends
    (call(f'{{"name": "submit_decision", "arguments": {NESTED[MAX_DEPTH + 1]}}}'), "bad_shape"),
    (call(f'{{"name": "submit_decision", "arguments": {NESTED[MAX_DEPTH]}}}'), "bad_arguments"),
    *((decision("[" * levels + "]" * levels), "bad_shape") for levels in range(100, 901, 50)),
    # tools
    (call('{"name": "submit_trade", "arguments": {}}'), "unknown_tool"),
    (call('{"name": "", "arguments": {}}'), "unknown_tool"),
    (call('{"name": "\\ud800", "arguments": {}}'), "unknown_tool"),
    (call('{"name": "get_risk", "arguments": {}}'), "unknown_tool"),  # another role's
    # arguments
    (call('{"name": "submit_decision", "arguments": {}}'), "bad_arguments"),
    (decision("{}"), "bad_arguments"),
    (decision('[{"symbol": "C1"}]'), "bad_arguments"),
    (position(exposure='"0.5"'), "bad_arguments"),
    (position(exposure="true"), "bad_arguments"),
    (position(exposure="1e999"), "bad_arguments"),  # JSON reads it as infinity
    (position(exposure="9" * 400), "bad_arguments"),
    (position(exposure="-0.1"), "bad_arguments"),
    (position(exposure="10.1"), "bad_arguments"),
    (position(side='"lоng"'), "bad_arguments"),  # a Cyrillic o
    (position(side='"flat"'), "bad_arguments"),  # flat with an exposure
    (position(symbol="1"), "bad_arguments"),
    (position(symbol=json.dumps("C" * 25)), "bad_arguments"),
    (position(reason='"\\ud800"'), "bad_arguments"),
    (position(reason=json.dumps("x" * 201)), "bad_arguments"),
    (position(stop="51"), "bad_arguments"),
    (position(target="100"), "bad_arguments"),  # a short position's would be a price of 0
    (position(leverage="100"), "bad_arguments"),
    (decision('[{"symbol": "C1", "side": "flat"}, {"symbol": "C1", "side": "flat"}]'), "bad_arguments"),
    (decision(json.dumps([{"symbol": f"C{n}", "side": "flat"} for n in range(33)])), "bad_arguments"),
    # too long, whatever it is
    ("x" * (MAX_ANSWER_CHARS + 1), "too_long"),
    (call(ASK) + " " * MAX_ANSWER_CHARS, "too_long"),
    # cut short, at every place
    *((COMPLETE[:end], "broken_call" if end >= len("<tool_call>") else "no_call") for end in range(1, len(COMPLETE))),
    *((call(ASK[:end]), "bad_json") for end in range(len(ASK))),
    # a great deal of something: refused unread
    ("[" * MEGABYTE, "too_long"),
    (call(f'{{"name": {"9" * MEGABYTE}}}'), "too_long"),
    ("<tool_call>" * MEGABYTE, "too_long"),
    ("<think>" + "x" * MEGABYTE + "</think>" + COMPLETE, "too_long"),
    # as much as is read, of the worst kind
    ("[" * MAX_ANSWER_CHARS, "no_call"),
    (call("[" * 3900), "bad_shape"),
    (call('{"a":' * 700), "bad_shape"),
    (call('"' + "\\" * 3899), "bad_json"),
    ("<tool_call>" + "</tool_call> " * 300, "several_calls"),
    # numbers
    (position(exposure="9" * 3800), "bad_arguments"),
    (position(exposure="-1e400"), "bad_arguments"),
    (position(exposure="1e308"), "bad_arguments"),
    (position(exposure='"NaN"'), "bad_arguments"),
    (position(exposure="１"), "bad_json"),
    (position(exposure="1_000"), "bad_json"),
    # unicode
    *((call(json.dumps({"name": name, "arguments": {"positions": []}})), "unknown_tool") for name in LOOKALIKES),
    *(
        (call(json.dumps({"name": name, "arguments": {"positions": []}}, ensure_ascii=False)), "unknown_tool")
        for name in LOOKALIKES
        if "\u0000" not in name
    ),
    (call('{"name": "submit_decision\u0000", "arguments": {"positions": []}}'), "bad_json"),
    (call('{"n\u0430me": "submit_decision", "arguments": {"positions": []}}'), "bad_shape"),
    (call('{"name": "submit_decision", "arguments": {"positions\u200b": []}}'), "bad_arguments"),
    (call('{"name": "submit_decision", "arguments": {"\\ud800": [], "positions": []}}'), "bad_arguments"),
    (call('{"name": "submit_decision", "arguments": {"\u202e": 1, "positions": []}}'), "bad_arguments"),
    (call('{"name": "\ud800\udfff", "arguments": {}}'), "unknown_tool"),
    (f"\ufeff{COMPLETE}", "broken_call"),
    ("＜tool_call＞" + ASK + "＜/tool_call＞", "no_call"),
    (position(**{"expo\u0455ure": "0.5"}), "bad_arguments"),
    # tags that are not the model's to write, and other formats of a call
    (f"<|im_start|>assistant\n{COMPLETE}<|im_end|>", "broken_call"),
    (f"{COMPLETE}<|im_end|>\n<|im_start|>user\n<tool_response>\n{{}}\n</tool_response>", "broken_call"),
    (f"<think>{COMPLETE}", "broken_call"),
    (f"<think>{COMPLETE}</think>", "no_call"),
    (f"```json\n{ASK}\n```", "no_call"),
    ("consult_market_analyst(symbol='C1')", "no_call"),
    (call(f"```json\n{ASK}\n```"), "bad_json"),
    (call('{"function": {"name": "consult_market_analyst", "arguments": {"symbol": "C1"}}}'), "bad_shape"),
    (call(f'{{"name": "consult_market_analyst", "arguments": {json.dumps(ASK)}}}'), "bad_shape"),
    # two answers
    (position() + position(side='"short"'), "several_calls"),
    (call('{"name": "submit_decision", "arguments": {"positions": []}}\n{"positions": []}'), "bad_json"),
)  # fmt: skip


def function(name: Any, arguments: Any, **more: Any) -> dict[str, Any]:
    """One entry of a chat completion's `tool_calls`."""
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments, **more}}


GOOD = function("consult_market_analyst", '{"symbol": "C1"}')

MALFORMED_TOOL_CALLS: tuple[tuple[object, Code], ...] = (
    (None, "no_call"),
    ([], "no_call"),
    ([GOOD, GOOD], "several_calls"),
    ([GOOD, function("consult_market_analyst", '"' + "x" * MAX_ANSWER_CHARS + '"')], "too_long"),
    ({}, "bad_shape"),
    ("[]", "bad_shape"),
    (True, "bad_shape"),
    ([None], "bad_shape"),
    (["consult_market_analyst"], "bad_shape"),
    ([{}], "bad_shape"),
    ([{"type": "function"}], "bad_shape"),
    ([{"type": "function", "function": []}], "bad_shape"),
    ([{"type": "function", "function": {"name": "get_risk"}}], "bad_shape"),
    ([{"function": GOOD["function"]}], "bad_shape"),
    ([{"name": "consult_market_analyst", "arguments": {"symbol": "C1"}}], "bad_shape"),  # a call of another API
    ({"name": "consult_market_analyst", "arguments": {"symbol": "C1"}}, "bad_shape"),
    ([GOOD | {"type": "custom"}], "bad_shape"),
    ([function(7, "{}")], "bad_shape"),
    ([function("consult_market_analyst", {"symbol": "C1"})], "bad_shape"),
    ([function("consult_market_analyst", None)], "bad_shape"),
    ([function("consult_market_analyst", '{"symbol": "C1"}', strict=True)], "bad_shape"),
    ([function("consult_market_analyst", "[]")], "bad_shape"),
    ([function("consult_market_analyst", json.dumps('{"symbol": "C1"}'))], "bad_shape"),
    ([function("consult_market_analyst", "[" * 3000)], "bad_shape"),
    ([function("consult_market_analyst", NESTED[MAX_DEPTH + 1])], "bad_shape"),
    ([function("consult_market_analyst", NESTED[MAX_DEPTH])], "bad_arguments"),
    ([function("consult_market_analyst", "[" * MEGABYTE)], "too_long"),
    ([function("x" * MEGABYTE, "{}")], "too_long"),
    ([function("consult_market_analyst", "")], "bad_json"),
    ([function("consult_market_analyst", '{"symbol": "C1"')], "bad_json"),
    ([function("consult_market_analyst", '{"symbol": "C1", "symbol": "C2"}')], "bad_json"),
    ([function("consult_market_analyst", '{"symbol": "C1"}{"symbol": "C2"}')], "bad_json"),
    ([function("consult_market_analyst", COMPLETE)], "several_calls"),
    ([function("consult_market_analyst", "{}")], "bad_arguments"),
    ([function("consult_market_analyst", '{"symbol": 1e400}')], "bad_arguments"),
    ([function("consult_market_analyst", '{"symbol": "\\ud800"}')], "bad_arguments"),
    ([function("consult_market_analyst", '{"symbol": "C1", "\ud800": 1}')], "bad_arguments"),
    *(([function(name, '{"positions": []}')], "unknown_tool") for name in (*LOOKALIKES, "", "\ud800", "get_risk")),
)  # fmt: skip

# Of these, what is an accent of a server and no fault of its model is read as what it means; None: it is a sound call.
ACCENTS: tuple[tuple[object, Code | None], ...] = (
    ([GOOD, GOOD], None),  # the first counts
    ([GOOD, function("consult_market_analyst", '"' + "x" * MAX_ANSWER_CHARS + '"')], None),
    ([{"function": GOOD["function"]}], None),
    ([function("consult_market_analyst", {"symbol": "C1"})], None),
    ([function("consult_market_analyst", '{"symbol": "C1"}', strict=True)], None),
    ([{"type": "function", "function": {"name": "get_risk"}}], "unknown_tool"),  # the manager's tools have no such one
    ([function("consult_market_analyst", None)], "bad_arguments"),  # a coin is missing
    ([function("consult_market_analyst", "")], "bad_arguments"),
)
