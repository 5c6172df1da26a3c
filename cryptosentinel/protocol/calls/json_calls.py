"""Calls whose arguments are one JSON object, in the frames that families of models put around it.

hermes    <tool_call>\\n{"name": "look", "arguments": {}}\\n</tool_call>     Qwen 2.5 and 3, Hermes, many others
llama3    {"name": "look", "parameters": {}}                              Llama 3.1 to 3.3
json      {"name": "look", "arguments": {}}                               any model that is told so
mistral   [TOOL_CALLS][{"name": "look", "arguments": {}}]
mistral11 [TOOL_CALLS]look[ARGS]{}
deepseek  ...function<｜tool▁sep｜>look\\n```json\\n{}\\n```...
harmony   ... to=functions.look<|channel|>commentary json<|message|>{}     GPT-OSS
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cryptosentinel.protocol.calls.syntax import CallSyntax, GrammarPart, JsonPart, Said, json_text
from cryptosentinel.protocol.tool_calls import MAX_DEPTH, MalformedCall, strict_json

_NAME = r"[^\s<>\[\]{}\"|]{1,100}"


@dataclass(frozen=True)
class JsonCalls(CallSyntax):
    """A frame around JSON. `head` and `tail` are what is written; `heads` is what is read as a head (a pattern, by
    default `head`), `tails` what may follow the JSON. With `{name}` in the head the JSON is the arguments alone,
    otherwise it holds the name and, under `key`, the arguments, and may hold the keys in `more`."""

    name: str
    head: str
    tail: str
    key: str = "arguments"
    markers: tuple[str, ...] = ()
    heads: str = ""
    tails: tuple[str, ...] = ()
    more: frozenset[str] = frozenset()

    @property
    def _named(self) -> bool:
        return "{name}" in self.head

    @property
    def frame(self) -> tuple[str, str]:
        return ("", "") if self._named else (self.head, self.tail)

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        body: dict[str, Any] = dict(arguments) if self._named else {"name": name, self.key: dict(arguments)}
        return self.head.replace("{name}", name) + json_text(body) + self.tail

    def read(self, text: str) -> Said | MalformedCall:
        pattern = re.compile(self.heads or re.escape(self.head).replace(re.escape("{name}"), f"(?P<name>{_NAME})"))
        found = list(pattern.finditer(text))
        if not found:
            return MalformedCall("no_call", f"there is no tool call as this model writes one: {self._example()}")
        first = found[0]
        inner = text[first.end() :].rstrip()
        if not self.tail.strip():  # nothing says where it ends but the JSON itself
            inner, more = _whole(inner)
            if pattern.search(more):
                return MalformedCall("several_calls", "one tool call a turn, there are several")
            if more.strip() not in ("", *self.tails):
                return MalformedCall("broken_call", "there is text after the tool call")
        else:
            if len(found) > 1:
                return MalformedCall("several_calls", "one tool call a turn, there are several")
            tail = next((one for one in (self.tail.strip(), *self.tails) if inner.endswith(one)), None)
            if tail is None:
                return MalformedCall("broken_call", f"the tool call does not end as it should: {self._example()}")
            inner = inner[: len(inner) - len(tail)]
        value = strict_json(inner.strip(), MAX_DEPTH + (0 if self._named else 1))
        if isinstance(value, MalformedCall):
            return value
        before = text[: first.start()]
        if self._named:
            return Said(before, first["name"] or first["behind"], value)
        keys = {"name", self.key}
        if (
            not isinstance(value, dict)
            or not keys <= set(value) <= keys | self.more
            or not isinstance(value["name"], str)
        ):
            return MalformedCall("bad_shape", f'expected {{"name": …, "{self.key}": {{…}}}}')
        return Said(before, value["name"], value[self.key])

    def grammar(self, function: Mapping[str, Any]) -> Sequence[GrammarPart]:
        name, arguments = str(function["name"]), JsonPart(function["parameters"])
        if self._named:
            return [self.head.replace("{name}", name), arguments, self.tail]
        return [json.dumps({"name": name})[:-1] + f', "{self.key}": ', arguments, "}"]

    def _example(self) -> str:
        return self.write("name", {})


def _whole(text: str) -> tuple[str, str]:
    """The JSON value that `text` begins with, and what follows it; all of it where it begins with none."""
    depth = 0
    inside = escaped = False
    for place, sign in enumerate(text):
        if inside:
            inside, escaped = escaped or sign != '"', not escaped and sign == "\\"
            continue
        inside = sign == '"'
        depth += (sign in "{[") - (sign in "}]")
        if depth == 0 and sign in "}]":
            return text[: place + 1], text[place + 1 :]
    return text, ""


_BARE = r'(?:<\|python_tag\|>\s*)?(?:```(?:json)?\s*)?(?=\{\s*"name"\s*:)'
_AS_JSON = r"(?: ?<\|constrain\|>)? ?(?:json)?<\|message\|>"
_CALLS = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
)

HERMES = JsonCalls(
    "hermes",
    "<tool_call>\n",
    "\n</tool_call>",
    markers=("<tool_call>", "</tool_call>"),
    heads=r"<tool_call>\s*",
)
LLAMA3 = JsonCalls(
    "llama3", "", "", "parameters", ("<|python_tag|>",), _BARE, ("```", "<|eom_id|>"), more=frozenset({"type"})
)
PLAIN_JSON = JsonCalls("json", "", "", heads=_BARE, tails=("```",))
MISTRAL = JsonCalls(
    "mistral", "[TOOL_CALLS][", "]", markers=("[TOOL_CALLS]",), heads=r"\[TOOL_CALLS\]\s*\[", more=frozenset({"id"})
)
MISTRAL11 = JsonCalls("mistral11", "[TOOL_CALLS]{name}[ARGS]", "", markers=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"))
DEEPSEEK = JsonCalls(
    "deepseek",
    f"{_CALLS[0]}{_CALLS[1]}function{_CALLS[2]}{{name}}\n```json\n",
    f"\n```{_CALLS[3]}{_CALLS[4]}",
    markers=_CALLS,
    tails=(f"\n```{_CALLS[3]}",),
)
HARMONY = JsonCalls(
    "harmony",
    " to=functions.{name}<|channel|>commentary json<|message|>",
    "",
    markers=("<|channel|>", "<|message|>", "<|constrain|>"),
    heads=(
        rf" to=functions\.(?P<name>{_NAME})<\|channel\|>(?:commentary|analysis){_AS_JSON}|"
        rf"<\|channel\|>(?:commentary|analysis) to=functions\.(?P<behind>{_NAME}){_AS_JSON}"
    ),
)
