"""How families of models write a tool call: one table, `SYNTAXES`.

hermes    <tool_call>\\n{"name": "look", "arguments": {}}\\n</tool_call>     Qwen 2.5 and 3, Hermes, many others
llama3    {"name": "look", "parameters": {}}                              Llama 3.1 to 3.3
json      {"name": "look", "arguments": {}}                               any model that is told so
mistral   [TOOL_CALLS][{"name": "look", "arguments": {}}]
mistral11 [TOOL_CALLS]look[ARGS]{}
deepseek  ...function<｜tool▁sep｜>look\\n```json\\n{}\\n```...
harmony   ... to=functions.look<|channel|>commentary json<|message|>{}     GPT-OSS
qwen_xml  <tool_call>\\n<function=look>\\n<parameter=size>\\n1\\n</parameter>\\n</function>\\n</tool_call>
glm       <tool_call>look\\n<arg_key>size</arg_key>\\n<arg_value>1</arg_value>\\n</tool_call>

In the last two each argument has a tag. The tags do not tell text from numbers: the tool's types do.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cryptosentinel.protocol.tool_calls import (
    MAX_ANSWER_CHARS,
    MAX_DEPTH,
    Arguments,
    MalformedCall,
    ToolCall,
    check_call,
    strict_json,
)
from cryptosentinel.protocol.tool_schemas import kinds_of

_NAME = r"[^\s<>\[\]{}\"|]{1,100}"
_TAG_NAME = r"[^\s<>\[\]{}\"|=]{1,100}"
_NOTHING = object()
_PYTHON = {"True": True, "False": False, "None": None}  # what some templates make of JSON's constants


class Untyped(str):
    """The text of an argument in a syntax that does not tell text from numbers."""


@dataclass(frozen=True)
class Said:
    """A call as it was read: what was said before it, the tool's name, and its arguments (of an object, when sound)."""

    before: str
    name: str
    arguments: object


@dataclass(frozen=True)
class JsonPart:
    """In a grammar: a value of JSON by its schema."""

    schema: Mapping[str, Any]


@dataclass(frozen=True)
class TextPart:
    """In a grammar: text that begins no tag and holds no line break."""


@dataclass(frozen=True)
class ChoiceOf:
    """In a grammar: one of these sequences."""

    options: tuple[tuple[GrammarPart, ...], ...]


GrammarPart = str | JsonPart | TextPart | ChoiceOf


class CallSyntax(ABC):
    """One way to write a call.

    Attributes:
        name: in reports, as `hermes`.
        markers: the tokens that an assistant may say by id in this syntax, where the tokenizer has them.
    """

    name: str
    markers: tuple[str, ...] = ()

    @abstractmethod
    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The text of a call."""

    @abstractmethod
    def read(self, text: str) -> Said | MalformedCall:
        """The one call at the end of `text`, in which there is no thought and no end of turn."""

    @property
    def frame(self) -> tuple[str, str]:
        """What every call begins and ends with, for any tool."""
        return "", ""

    @abstractmethod
    def grammar(self, function: Mapping[str, Any]) -> Sequence[GrammarPart]:
        """The parts of a call of `function` (name and parameters of a tool's schema) between those of its `frame`."""

    def parse(self, text: str, tools: Mapping[str, type[Arguments]]) -> ToolCall | MalformedCall:
        """The checked call that `text` ends with; any text may stand before it."""
        if len(text) > MAX_ANSWER_CHARS:
            return MalformedCall("too_long", f"{len(text)} characters, at most {MAX_ANSWER_CHARS} are read")
        said = self.read(text)
        if isinstance(said, MalformedCall):
            return said
        arguments = said.arguments
        if isinstance(arguments, dict) and said.name in tools:
            arguments = typed_arguments(arguments, tools[said.name].model_json_schema())
        return check_call(said.name, arguments, dict(tools))

    def _found(self, heads: Sequence[re.Match[str]]) -> MalformedCall | None:
        """What is wrong with this number of heads of calls; None for one."""
        if len(heads) == 1:
            return None
        if heads:
            return MalformedCall("several_calls", "one tool call a turn, there are several")
        example = self.write("name", {})
        return MalformedCall("no_call", f"there is no tool call as this model writes one: {example}")


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
        closed = bool(self.tail.strip())  # else nothing says where it ends but the JSON itself
        wrong = self._found(found if closed else found[:1])
        if wrong is not None:
            return wrong
        first = found[0]
        inner = text[first.end() :].rstrip()
        if closed:
            tail = next((one for one in (self.tail.strip(), *self.tails) if inner.endswith(one)), None)
            if tail is None:
                example = self.write("name", {})
                return MalformedCall("broken_call", f"the tool call does not end as it should: {example}")
            inner = inner[: len(inner) - len(tail)]
        else:
            inner, more = _whole(inner)
            if pattern.search(more):
                return MalformedCall("several_calls", "one tool call a turn, there are several")
            if more.strip() not in ("", *self.tails):
                return MalformedCall("broken_call", "there is text after the tool call")
        value = strict_json(inner.strip(), MAX_DEPTH + (0 if self._named else 1))
        if isinstance(value, MalformedCall):
            return value
        before = text[: first.start()]
        if self._named:
            return Said(before, first["name"] or first["behind"], value)
        keys = {"name", self.key}
        sound = isinstance(value, dict) and keys <= set(value) <= keys | self.more and isinstance(value["name"], str)
        if not sound:
            return MalformedCall("bad_shape", f'expected {{"name": …, "{self.key}": {{…}}}}')
        return Said(before, value["name"], value[self.key])

    def grammar(self, function: Mapping[str, Any]) -> Sequence[GrammarPart]:
        name, arguments = str(function["name"]), JsonPart(function["parameters"])
        if self._named:
            return [self.head.replace("{name}", name), arguments, self.tail]
        return [json.dumps({"name": name})[:-1] + f', "{self.key}": ', arguments, "}"]


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
        wrong = self._found(heads)
        if wrong is not None:
            return wrong
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


def typed_arguments(arguments: Mapping[str, object], schema: Mapping[str, Any]) -> dict[str, object]:
    """The arguments of a call as the tool's `schema` means them where they are `Untyped`: text stays text where text is
    allowed and JSON is not."""
    properties = schema.get("properties", {})
    return {key: _typed(value, properties.get(key, {}), schema) for key, value in arguments.items()}


def _typed(value: object, schema: Mapping[str, Any], root: Mapping[str, Any]) -> object:
    if not isinstance(value, Untyped):
        return value
    allowed, found = _kinds(schema, root), _json_value(value)
    if "string" in allowed and not (found is None and "null" in allowed):
        return str(value)
    return str(value) if found is _NOTHING else found


def guessed(value: object) -> object:
    """`value` without its schema: JSON's where it is JSON, else text."""
    if not isinstance(value, Untyped):
        return value
    found = _json_value(value)
    return str(value) if found is _NOTHING else found


def json_text(value: object) -> str:
    """JSON as chat templates write it."""
    return json.dumps(value, ensure_ascii=False)


def _json_value(text: str) -> object:
    if text.strip() in _PYTHON:
        return _PYTHON[text.strip()]
    value = strict_json(text, MAX_DEPTH)
    return _NOTHING if isinstance(value, MalformedCall) else value


def _kinds(schema: Mapping[str, Any], root: Mapping[str, Any]) -> set[str]:
    """The types of JSON that a schema allows."""
    if "$ref" in schema:
        return _kinds(root.get("$defs", {}).get(str(schema["$ref"]).rpartition("/")[2], {}), root)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return {kind for part in schema[key] for kind in _kinds(part, root)}
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return {"string" if isinstance(one, str) else "null" if one is None else "other" for one in values}
    named = schema.get("type", "other")
    return set(named) if isinstance(named, list) else {str(named)}


def _value(schema: Mapping[str, Any], root: Mapping[str, Any]) -> GrammarPart:
    """What may stand between the tags of an argument."""
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return ChoiceOf(tuple((one if isinstance(one, str) else json_text(one),) for one in values))
    found = _kinds(schema, root)
    if "string" not in found:
        return JsonPart({**schema, "$defs": root["$defs"]} if "$defs" in root else schema)
    return ChoiceOf(((TextPart(),), ("null",))) if "null" in found else TextPart()


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


def _pattern(text: str) -> str:
    """A pattern for a tag: white space in it is free, and its names are groups."""
    pattern = ""
    for part in re.split(r"(\{name\}|\{key\}|\{value\}|\s+)", text):
        if part in ("{name}", "{key}"):
            group = part[1:-1]
            pattern += f"(?P={group})" if f"(?P<{group}>" in pattern else f"(?P<{group}>{_TAG_NAME})"
        elif part == "{value}":
            pattern = pattern.removesuffix(r"\s*") + r"\n?(?P<value>.*?)"
        elif part.isspace():
            # A value's own spaces are its own: one line break belongs to the tag.
            pattern += r"\n?" if pattern.endswith("(?P<value>.*?)") else r"\s*"
        else:
            pattern += re.escape(part)
    return pattern + r"\s*"


_BARE = r'(?:<\|python_tag\|>\s*)?(?:```(?:json)?\s*)?(?=\{\s*"name"\s*:)'
_AS_JSON = r"(?: ?<\|constrain\|>)? ?(?:json)?<\|message\|>"
_CALLS = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
)
_TAGS = ("<tool_call>", "</tool_call>")

HERMES = JsonCalls("hermes", "<tool_call>\n", "\n</tool_call>", markers=_TAGS, heads=r"<tool_call>\s*")
QWEN_XML = TaggedCalls(
    "qwen_xml",
    "<tool_call>\n<function={name}>\n",
    "<parameter={key}>\n{value}\n</parameter>\n",
    "</function>\n</tool_call>",
    _TAGS,
)
# What a model is told to write whose template knows no tool calls.
FALLBACK = JsonCalls("json", "", "", heads=_BARE, tails=("```",))

# All syntaxes, the most particular first: whose text a template writes is the one that it uses. Llama 3's call is JSON
# in no frame, so it would be found in another's frame too. Where two differ only in how they write lists and constants,
# they have one name and stand side by side. A new one is a class with `write`, `read` and `grammar`, or an entry here.
SYNTAXES: Sequence[CallSyntax] = (
    HERMES,
    QWEN_XML,
    replace(QWEN_XML, python=True),
    TaggedCalls(
        "glm",
        "<tool_call>{name}\n",
        "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n",
        "</tool_call>",
        (*_TAGS, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    JsonCalls(
        "harmony",
        " to=functions.{name}<|channel|>commentary json<|message|>",
        "",
        markers=("<|channel|>", "<|message|>", "<|constrain|>"),
        heads=(
            rf" to=functions\.(?P<name>{_NAME})<\|channel\|>(?:commentary|analysis){_AS_JSON}|"
            rf"<\|channel\|>(?:commentary|analysis) to=functions\.(?P<behind>{_NAME}){_AS_JSON}"
        ),
    ),
    JsonCalls(
        "deepseek",
        f"{_CALLS[0]}{_CALLS[1]}function{_CALLS[2]}{{name}}\n```json\n",
        f"\n```{_CALLS[3]}{_CALLS[4]}",
        markers=_CALLS,
        tails=(f"\n```{_CALLS[3]}",),
    ),
    JsonCalls("mistral11", "[TOOL_CALLS]{name}[ARGS]", "", markers=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")),
    JsonCalls(
        "mistral", "[TOOL_CALLS][", "]", markers=("[TOOL_CALLS]",), heads=r"\[TOOL_CALLS\]\s*\[", more=frozenset({"id"})
    ),
    JsonCalls(
        "llama3", "", "", "parameters", ("<|python_tag|>",), _BARE, ("```", "<|eom_id|>"), more=frozenset({"type"})
    ),
    FALLBACK,
)
