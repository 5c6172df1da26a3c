"""What agents may say: one tool call a turn, in the form that Qwen3's chat template writes.

    <tool_call>
    {"name": "submit_analysis", "arguments": {"up": 0.6, "flat": 0.2, "down": 0.2}}
    </tool_call>

Model output is untrusted input. `parse` accepts exactly one call to a tool the role has, with arguments of the declared
types, and otherwise returns a `Malformed` with the reason; it never raises.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from pydantic import BaseModel, ConfigDict, ValidationError

MAX_ANSWER_CHARS = 4_000  # longer answers are refused before any parsing
MAX_DEPTH = 6
_THINK = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)
_CALL = re.compile(r"\A\s*<tool_call>(.*)</tool_call>\s*\Z", re.DOTALL)


class Arguments(BaseModel):
    """Base of every tool's arguments: unknown keys and values of another type are refused, nothing is coerced."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class NoArguments(Arguments):
    """For tools that take none."""


@dataclass(frozen=True)
class ToolCall:
    """A valid call: the tool's name and its checked arguments."""

    name: str
    arguments: Arguments


@dataclass(frozen=True)
class Malformed:
    """An answer that cannot be used, and why: `code` is machine-readable, `detail` for people."""

    code: str
    detail: str


def render_call(name: str, arguments: dict[str, Any]) -> str:
    """The assistant's text for a call, as Qwen3's template writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def parse(text: str, tools: dict[str, type[Arguments]]) -> ToolCall | Malformed:
    """Read one assistant turn. `tools` maps the names that the role may call to their argument types."""
    if len(text) > MAX_ANSWER_CHARS:
        return Malformed("too_long", f"{len(text)} characters, at most {MAX_ANSWER_CHARS} are read")
    body = _THINK.sub("", text, count=1)
    match = _CALL.match(body)
    if match is None:
        code = "no_call" if "<tool_call>" not in body else "broken_call"
        return Malformed(code, "the turn is not exactly one <tool_call>…</tool_call>")
    inner = match.group(1)
    if "<tool_call>" in inner or "</tool_call>" in inner:
        return Malformed("several_calls", "one tool call a turn, there are several")
    try:
        value = json.loads(inner, object_pairs_hook=_distinct_keys, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        return Malformed("bad_json", str(error)[:200])
    if not isinstance(value, dict) or set(value) != {"name", "arguments"} or not isinstance(value["name"], str):
        return Malformed("bad_shape", 'expected {"name": …, "arguments": {…}}')
    name, arguments = value["name"], value["arguments"]
    if name not in tools:
        return Malformed("unknown_tool", f"no tool {name[:60]!r}; there are {', '.join(tools)}")
    if not isinstance(arguments, dict) or _deeper_than(MAX_DEPTH, arguments):
        return Malformed("bad_shape", f"arguments must be an object at most {MAX_DEPTH} deep")
    try:
        return ToolCall(name, tools[name].model_validate(arguments))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "arguments"
        return Malformed("bad_arguments", f"{name}: {where}: {first['msg']}"[:200])


def tool_schema(name: str, description: str, arguments: type[Arguments]) -> dict[str, Any]:
    """The JSON schema of a tool, as chat templates put it before the conversation."""
    schema = arguments.model_json_schema()
    schema.pop("title", None)
    schema.pop("description", None)
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def _distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # json keeps the last of two equal keys in silence; which one the model meant cannot be known.
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("a key occurs twice")
    return dict(pairs)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _deeper_than(levels: int, value: object) -> bool:
    # Looks no deeper than it must: what json could just read might exhaust Python's stack here.
    if not isinstance(value, dict | list):
        return False
    items = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_deeper_than(levels - 1, item) for item in items)
