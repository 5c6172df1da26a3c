"""Calls with a tag for every argument, and the list of all syntaxes.

The tags do not tell text from numbers: the tool's types do.

qwen_xml  <tool_call>\\n<function=look>\\n<parameter=size>\\n1\\n</parameter>\\n</function>\\n</tool_call>
glm       <tool_call>look\\n<arg_key>size</arg_key>\\n<arg_value>1</arg_value>\\n</tool_call>
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cryptosentinel.protocol.calls.json_calls import DEEPSEEK, HARMONY, HERMES, LLAMA3, MISTRAL, MISTRAL11, PLAIN_JSON
from cryptosentinel.protocol.calls.syntax import (
    CallSyntax,
    ChoiceOf,
    GrammarPart,
    JsonPart,
    Said,
    TextPart,
    Untyped,
    json_text,
    kinds,
)
from cryptosentinel.protocol.tool_calls import MalformedCall
from cryptosentinel.protocol.tool_schemas import kinds_of

_NAME = r"[^\s<>\[\]{}\"|=]{1,100}"


@dataclass(frozen=True)
class TaggedCalls(CallSyntax):
    """`head` with `{name}`, then for each argument `argument` with `{key}` and `{value}`, then `tail`."""

    name: str
    head: str
    argument: str
    tail: str
    markers: tuple[str, ...] = ()
    python: bool = False  # numbers, true and null are written as Python writes them

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        text = self.head.replace("{name}", name)
        for key, value in arguments.items():
            bare = self.python and not isinstance(value, list | tuple | dict)
            said = str(value) if bare or isinstance(value, str) else json_text(value)
            text += self.argument.replace("{key}", key).replace("{value}", said)
        return text + self.tail

    def read(self, text: str) -> Said | MalformedCall:
        heads = list(re.finditer(_pattern(self.head), text))
        if not heads:
            return MalformedCall("no_call", f"there is no tool call as this model writes one: {self.write('name', {})}")
        if len(heads) > 1:
            return MalformedCall("several_calls", "one tool call a turn, there are several")
        arguments: dict[str, Untyped] = {}
        argument, place = re.compile(_pattern(self.argument), re.DOTALL), heads[0].end()
        while found := argument.match(text, place):
            if found["key"] in arguments:
                return MalformedCall("bad_json", "a key occurs twice")
            arguments[found["key"]] = Untyped(found["value"])
            place = found.end()
        if not re.fullmatch(_pattern(self.tail), text[place:]):
            return MalformedCall("broken_call", "the tool call is not closed, or there is text in or after it")
        return Said(text[: heads[0].start()], heads[0]["name"], arguments)

    def grammar(self, function: Mapping[str, Any]) -> Sequence[GrammarPart]:
        kinds = tuple(self._arguments(kind) for kind in kinds_of(function["parameters"]))
        inner: Sequence[GrammarPart] = (ChoiceOf(kinds),) if len(kinds) > 1 else kinds[0]
        return [self.head.replace("{name}", str(function["name"])), *inner, self.tail]

    def _arguments(self, schema: Mapping[str, Any]) -> tuple[GrammarPart, ...]:
        required = schema.get("required", ())
        parts: list[GrammarPart] = []
        for key, inner in schema.get("properties", {}).items():
            before, after = self.argument.replace("{key}", key).split("{value}")
            whole: tuple[GrammarPart, ...] = (before, _value(inner, schema), after)
            parts += whole if key in required else (ChoiceOf((whole, ())),)
        return tuple(parts)


def _value(schema: Mapping[str, Any], root: Mapping[str, Any]) -> GrammarPart:
    """What may stand between the tags of an argument."""
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return ChoiceOf(tuple((one if isinstance(one, str) else json_text(one),) for one in values))
    found = kinds(schema, root)
    if "string" not in found:
        return JsonPart({**schema, "$defs": root["$defs"]} if "$defs" in root else schema)
    return ChoiceOf(((TextPart(),), ("null",))) if "null" in found else TextPart()


def _pattern(text: str) -> str:
    """A pattern for a tag: white space in it is free, and its names are groups."""
    pattern = ""
    for part in re.split(r"(\{name\}|\{key\}|\{value\}|\s+)", text):
        if part in ("{name}", "{key}"):
            group = part[1:-1]
            pattern += f"(?P={group})" if f"(?P<{group}>" in pattern else f"(?P<{group}>{_NAME})"
        elif part == "{value}":
            pattern = pattern.removesuffix(r"\s*") + r"\n?(?P<value>.*?)"
        elif part.isspace():
            # A value's own spaces are its own: one line break belongs to the tag.
            pattern += r"\n?" if pattern.endswith("(?P<value>.*?)") else r"\s*"
        else:
            pattern += re.escape(part)
    return pattern + r"\s*"


QWEN_XML = TaggedCalls(
    "qwen_xml",
    "<tool_call>\n<function={name}>\n",
    "<parameter={key}>\n{value}\n</parameter>\n",
    "</function>\n</tool_call>",
    ("<tool_call>", "</tool_call>"),
)
QWEN_XML_PYTHON = replace(QWEN_XML, python=True)
GLM = TaggedCalls(
    "glm",
    "<tool_call>{name}\n",
    "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n",
    "</tool_call>",
    ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)

# What a model is told to write whose template knows no tool calls.
FALLBACK: CallSyntax = PLAIN_JSON

# All syntaxes, the most particular first: whose text a template writes is the one that it uses. Llama 3's call is JSON
# in no frame, so it would be found in another's frame too. Where two differ only in how they write lists and constants,
# they have one name and stand side by side. A new one is a class with `write`, `read` and `grammar`, or an entry here.
SYNTAXES: Sequence[CallSyntax] = (
    HERMES,
    QWEN_XML,
    QWEN_XML_PYTHON,
    GLM,
    HARMONY,
    DEEPSEEK,
    MISTRAL11,
    MISTRAL,
    LLAMA3,
    PLAIN_JSON,
)
