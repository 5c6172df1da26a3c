"""What agents may say: one tool call a turn, in the form that Qwen3's chat template writes.

    <tool_call>
    {"name": "submit_analysis", "arguments": {"up": 0.6, "flat": 0.2, "down": 0.2}}
    </tool_call>

Model output is untrusted input. `parse` accepts exactly one call to a tool the role has, with arguments of the declared
types, and otherwise returns a `MalformedCall` with the reason; it never raises and repairs nothing. `render_tool_calls`
writes what a chat-completions server returned as the text that `parse` judges; the forms of other families of models
are read in `syntaxes.py`, by the same rules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, ValidationError

from cryptosentinel.protocol.tool_schemas import KINDS

MAX_ANSWER_CHARS = 4_000  # longer answers are refused before any parsing
MAX_DEPTH = 6
_THINK = re.compile(r"\A\s*<think>(.*?)</think>", re.DOTALL)
_CALL = re.compile(r"\A\s*<tool_call>(.*)</tool_call>\s*\Z", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"?', re.DOTALL)  # of JSON, the last one perhaps not closed
_BRACKETS = re.compile(r"[][{}]")

# Why an answer could not be used. These names are stored with conversations and counted by reports: add, never rename.
Code = Literal[
    "too_long",  # more than MAX_ANSWER_CHARS characters; nothing of it was read
    "no_call",  # no tool call in it
    "broken_call",  # a call that is not closed, or has text before or after it
    "several_calls",  # more than one call, or a tag of one inside another
    "bad_json",  # not JSON: cut short, a key twice, NaN or Infinity
    "bad_shape",  # not a name and an object of arguments, or brackets more than MAX_DEPTH deep in it
    "unknown_tool",  # the role has no tool of that name, letter by letter
    "bad_arguments",  # unknown or missing arguments, or values outside their type or range
    "unknown_symbol",  # a coin that does not exist or is not this decision's (found by the team)
    "no_room",  # the conversation has outgrown the model's context
    "engine_failed",  # the engine gave no answer
    "cut_off",  # the model reached its limit of tokens before its end of turn
]


class Arguments(BaseModel):
    """Base of every tool's arguments: unknown keys and values of another type are refused, nothing is coerced."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


def in_kinds(*kinds: Mapping[str, Mapping[str, Any] | None]) -> ConfigDict:
    """The `model_config` of arguments of which not every value goes with every other: what they may be together, for a
    grammar, see `tool_schemas.kinds_of`. A validator has to refuse the rest."""
    said: list[Any] = [dict(kind) for kind in kinds]
    return ConfigDict(json_schema_extra={KINDS: said})


class NoArguments(Arguments):
    """For tools that take none."""


@dataclass(frozen=True)
class ToolCall:
    """A valid call: the tool's name and its checked arguments."""

    name: str
    arguments: Arguments


@dataclass(frozen=True)
class MalformedCall:
    """An answer that cannot be used, and why: `code` is machine-readable, `detail` for people."""

    code: Code
    detail: str


def split_thought(text: str) -> tuple[str, str]:
    """The thought that an assistant's text begins with, "" where there is none, and the rest."""
    found = _THINK.match(text)
    return (found[1].strip(), text[found.end() :].lstrip()) if found else ("", text)


def render_thought(thought: str, text: str) -> str:
    """An assistant's text with a thought before it; the inverse of `split_thought`."""
    return f"<think>\n{thought}\n</think>\n\n{text}" if thought else text


def render_call(name: str, arguments: dict[str, Any]) -> str:
    """The assistant's text for a call, as Qwen3's template writes it."""
    return _framed(json.dumps({"name": name, "arguments": arguments}))


def parse(text: str, tools: dict[str, type[Arguments]]) -> ToolCall | MalformedCall:
    """Read one assistant turn. `tools` maps the names that the role may call to their argument types."""
    said = read_call(text)
    return said if isinstance(said, MalformedCall) else check_call(*said, tools)


def read_call(text: str) -> tuple[str, object] | MalformedCall:
    """Name and arguments of the call that `text` is, whether or not there is such a tool."""
    if len(text) > MAX_ANSWER_CHARS:
        return MalformedCall("too_long", f"{len(text)} characters, at most {MAX_ANSWER_CHARS} are read")
    body = _THINK.sub("", text, count=1)
    match = _CALL.match(body)
    if match is None:
        code: Code = "no_call" if "<tool_call>" not in body else "broken_call"
        return MalformedCall(code, "the turn is not exactly one <tool_call>…</tool_call>")
    inner = match.group(1)
    if "<tool_call>" in inner or "</tool_call>" in inner:
        return MalformedCall("several_calls", "one tool call a turn, there are several")
    value = strict_json(inner, MAX_DEPTH + 1)
    if isinstance(value, MalformedCall):
        return value
    if not isinstance(value, dict) or set(value) != {"name", "arguments"} or not isinstance(value["name"], str):
        return MalformedCall("bad_shape", 'expected {"name": …, "arguments": {…}}')
    return value["name"], value["arguments"]


def render_tool_calls(tool_calls: object) -> str:
    """The `tool_calls` of a chat completion's message as an assistant's text: None, or a list of

        {"type": "function", "function": {"name": "get_risk", "arguments": "{}"}}

    where the arguments are JSON in a string, which goes into the text as it is; other keys beside `type` and
    `function`, like `id`, are not looked at. What has another form is shown in a list, as no call ever is, so that
    `parse` refuses it as `bad_shape`. Of several calls the beginning is shown, as long as one answer may be, but
    two at least. `tool_calls` must be a value of JSON, nested no deeper than Python's `json` can write.
    """
    if tool_calls is None or tool_calls == []:
        return ""
    if not isinstance(tool_calls, list):
        return _framed(json.dumps([tool_calls]))
    text = _tool_call_text(tool_calls[0])
    for number, call in enumerate(tool_calls[1:]):
        more = f"{text}\n{_tool_call_text(call)}"
        if number > 0 and len(more) > MAX_ANSWER_CHARS:
            break
        text = more
    return text


def tool_schema(name: str, description: str, arguments: type[Arguments]) -> dict[str, Any]:
    """A tool in the form of OpenAI's chat completions, which is also what chat templates put before a conversation."""
    schema = arguments.model_json_schema()
    schema.pop("title", None)
    schema.pop("description", None)
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def check_call(name: str, arguments: object, tools: dict[str, type[Arguments]]) -> ToolCall | MalformedCall:
    """The call of `name` with `arguments`, if there is such a tool and they are of its types."""
    # Details show the model's own words in ASCII alone: they are stored, and look-alikes and hidden signs must show.
    if name not in tools:
        return MalformedCall("unknown_tool", f"no tool {ascii(name[:60])[:62]}; there are {', '.join(tools)}"[:300])
    if not isinstance(arguments, dict):
        return MalformedCall("bad_shape", "arguments must be an object")
    try:
        return ToolCall(name, tools[name].model_validate(arguments))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(ascii(str(part))[1:-1] for part in first["loc"])[:60] or "arguments"
        return MalformedCall("bad_arguments", f"{name}: {where}: {first['msg']}"[:200])


def strict_json(text: str, levels: int) -> Any:
    """The JSON in `text` as Python values, or why it is a `MalformedCall`. The nesting depth is counted in the text
    first: Python's own limit depends on the depth of the call stack, and a reason must not depend on that."""
    depth = 0
    for bracket in _BRACKETS.findall(_STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > levels:
            return MalformedCall("bad_shape", f"arguments must be an object at most {MAX_DEPTH} deep")
    try:
        return json.loads(text, object_pairs_hook=_distinct_keys, parse_constant=_no_constant)
    except ValueError as error:
        return MalformedCall("bad_json", str(error)[:200])


def _tool_call_text(call: object) -> str:
    """One entry of `tool_calls`, by the rules of `render_tool_calls`."""
    function = call.get("function") if isinstance(call, dict) and call.get("type") == "function" else None
    if (
        not isinstance(function, dict)
        or set(function) != {"name", "arguments"}
        or not all(isinstance(part, str) for part in function.values())
    ):
        return _framed(json.dumps([call]))
    return _framed(f'{{"name": {json.dumps(function["name"])}, "arguments": {function["arguments"]}}}')


def _framed(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


def _distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # json keeps the last of two equal keys in silence; which one the model meant cannot be known.
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")
