"""What a syntax of tool calls must offer, and what all of them share."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
        """What every call begins and ends with, whichever tool it calls."""
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
            schema = tools[said.name].model_json_schema()
            arguments = {key: typed(value, _property(schema, key), schema) for key, value in arguments.items()}
        return check_call(said.name, arguments, dict(tools))


def typed(value: object, schema: Mapping[str, Any], root: Mapping[str, Any]) -> object:
    """`value` as its schema means it where it is `Untyped`: text stays text where text is allowed and JSON is not."""
    if not isinstance(value, Untyped):
        return value
    allowed = kinds(schema, root)
    found = _json_value(value)
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


_NOTHING = object()
_PYTHON = {"True": True, "False": False, "None": None}  # what some templates make of JSON's constants


def _json_value(text: str) -> object:
    if text.strip() in _PYTHON:
        return _PYTHON[text.strip()]
    value = strict_json(text, MAX_DEPTH)
    return _NOTHING if isinstance(value, MalformedCall) else value


def _property(schema: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = schema.get("properties", {}).get(key, {})
    return found if isinstance(found, Mapping) else {}


def kinds(schema: Mapping[str, Any], root: Mapping[str, Any]) -> set[str]:
    """The types of JSON that a schema allows."""
    if "$ref" in schema:
        return kinds(root.get("$defs", {}).get(str(schema["$ref"]).rpartition("/")[2], {}), root)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return {kind for part in schema[key] for kind in kinds(part, root)}
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return {"string" if isinstance(one, str) else "null" if one is None else "other" for one in values}
    named = schema.get("type", "other")
    return set(named) if isinstance(named, list) else {str(named)}
