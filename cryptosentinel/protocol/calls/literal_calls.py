"""Calls that look like a call in a programming language.

python  <|tool_call_start|>[look(symbol='C1', size=1)]<|tool_call_end|>                LFM2
gemma   <|tool_call>call:look{size:1,symbol:<|"|>C1<|"|>}<tool_call|>                  Gemma 4
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from cryptosentinel.protocol.calls.syntax import CallSyntax, Said, json_text
from cryptosentinel.protocol.tool_calls import MAX_DEPTH, MalformedCall

_NAME = r"[A-Za-z_][A-Za-z0-9_.-]{0,99}"
_WORD = re.compile(r"true|false|null|None|-?(?:0|[1-9]\d{0,30})(?:\.\d{1,30})?(?:[eE][+-]?\d{1,3})?")
_ESCAPES = str.maketrans({"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r"})
_JSON_NAMES: dict[str, object] = {"true": True, "false": False, "null": None, "None": None}


class PythonCalls(CallSyntax):
    """A list of one Python call with keyword arguments. `whole`: lists in it are Python's too, not JSON's."""

    name = "python"
    markers = ("<|tool_call_start|>", "<|tool_call_end|>")

    def __init__(self, whole: bool = False) -> None:
        self._whole = whole

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        said = ", ".join(f"{key}={_python(value, self._whole)}" for key, value in arguments.items())
        return f"{self.markers[0]}[{name}({said})]{self.markers[1]}"

    def read(self, text: str) -> Said | MalformedCall:
        before, begun, inner = text.partition(self.markers[0])
        if not begun:
            return MalformedCall("no_call", "there is no <|tool_call_start|>")
        if self.markers[0] in inner:
            return MalformedCall("several_calls", "one tool call a turn, there are several")
        inner, ended, after = inner.partition(self.markers[1])
        if not ended or after.strip():
            return MalformedCall("broken_call", "the tool call is not closed, or there is text after it")
        try:
            tree = ast.parse(inner.strip(), mode="eval").body
            calls = tree.elts if isinstance(tree, ast.List) else []
            if len(calls) > 1:
                return MalformedCall("several_calls", "one tool call a turn, there are several")
            call = calls[0] if calls else None
            if not isinstance(call, ast.Call) or call.args or not isinstance(call.func, ast.Name):
                return MalformedCall("bad_shape", "expected [name(key=value, …)]")
            arguments: dict[str, object] = {}
            for word in call.keywords:
                if word.arg is None or word.arg in arguments:
                    return MalformedCall("bad_json", "a key occurs twice, or is none")
                arguments[word.arg] = _literal(word.value, MAX_DEPTH)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            return MalformedCall("bad_json", (str(error).splitlines() or ["it cannot be read"])[0][:200])
        return Said(before, call.func.id, arguments)


class GemmaCalls(CallSyntax):
    """Names and values in braces, text between quotation marks of their own; keys are sorted. `null` is how
    nothing is written."""

    name = "gemma"
    markers = ("<|tool_call>", "<tool_call|>", '<|"|>')

    def __init__(self, null: str = "null") -> None:
        self._null = null

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f"{self.markers[0]}call:{name}{self._value(dict(arguments))}{self.markers[1]}"

    def read(self, text: str) -> Said | MalformedCall:
        before, begun, inner = text.partition(self.markers[0])
        if not begun:
            return MalformedCall("no_call", "there is no <|tool_call>")
        if self.markers[0] in inner:
            return MalformedCall("several_calls", "one tool call a turn, there are several")
        inner, ended, after = inner.partition(self.markers[1])
        head = re.match(rf"call:({_NAME})(?=\{{)", inner)
        if not ended or after.strip() or head is None:
            return MalformedCall("broken_call", "the tool call is not closed, has no name, or there is text after it")
        try:
            value, place = _gemma_value(inner, head.end(), MAX_DEPTH)
        except ValueError as error:
            return MalformedCall("bad_json", str(error)[:200])
        if inner[place:].strip():
            return MalformedCall("bad_json", "there is text behind the arguments")
        return Said(before, head[1], value)

    def _value(self, value: Any) -> str:
        if isinstance(value, str):
            return f"{self.markers[2]}{value}{self.markers[2]}"
        if isinstance(value, Mapping):
            inner = sorted(value.items(), key=lambda item: item[0].lower())
            return "{" + ",".join(f"{key}:{self._value(one)}" for key, one in inner) + "}"
        if isinstance(value, list | tuple):
            return "[" + ",".join(map(self._value, value)) + "]"
        return self._null if value is None else json_text(value)


def _python(value: Any, whole: bool) -> str:
    """A value as Python writes it; lists and objects as JSON unless `whole`."""
    if isinstance(value, str):
        return "'" + value.translate(_ESCAPES) + "'"
    if isinstance(value, list | tuple | dict):
        return repr(value) if whole else json_text(value)
    return str(value)


def _literal(node: ast.expr, levels: int) -> object:
    """The value that a node of Python's syntax writes, if JSON has it. Raises `ValueError`."""
    if levels < 0:
        raise ValueError(f"arguments must be at most {MAX_DEPTH} deep")
    if isinstance(node, ast.Name) and node.id in _JSON_NAMES:
        return _JSON_NAMES[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(one, levels - 1) for one in node.elts]
    if isinstance(node, ast.Dict):
        keys = [_literal(key, levels - 1) if key is not None else None for key in node.keys]
        if not all(isinstance(key, str) for key in keys) or len(set(keys)) < len(keys):
            raise ValueError("a key occurs twice, or is no text")
        return dict(zip(keys, (_literal(one, levels - 1) for one in node.values), strict=True))
    negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    inner = node.operand if isinstance(node, ast.UnaryOp) else node
    if isinstance(inner, ast.Constant) and not (negative and isinstance(inner.value, bool | str | None)):
        value = inner.value
        if (node is inner or negative) and (value is None or isinstance(value, str | bool | int | float)):
            return -value if negative and isinstance(value, int | float) else value
    raise ValueError("a value that JSON does not have")


def _gemma_value(text: str, place: int, levels: int) -> tuple[object, int]:
    """The value that stands at `place`, and where it ends. Raises `ValueError`."""
    if levels < 0:
        raise ValueError(f"arguments must be at most {MAX_DEPTH} deep")
    quote = GemmaCalls.markers[2]
    if text.startswith(quote, place):
        end = text.find(quote, place + len(quote))
        if end < 0:
            raise ValueError("a text that is not closed")
        return text[place + len(quote) : end], end + len(quote)
    if text[place : place + 1] in ("{", "["):
        return _gemma_container(text, place, levels)
    found = _WORD.match(text, place)
    if found is None:
        raise ValueError(f"no value at character {place}")
    word = found[0]
    if word in _JSON_NAMES:
        return _JSON_NAMES[word], found.end()
    return (float(word) if re.search(r"[.eE]", word) else int(word)), found.end()


def _gemma_container(text: str, place: int, levels: int) -> tuple[object, int]:
    """An object or a list. Raises `ValueError`."""
    opened = text[place]
    close = "}" if opened == "{" else "]"
    entries: dict[str, object] = {}
    items: list[object] = []
    place += 1
    while text[place : place + 1] != close:
        if entries or items:
            if text[place : place + 1] != ",":
                raise ValueError(f"no comma at character {place}")
            place += 1
        if opened == "[":
            value, place = _gemma_value(text, place, levels - 1)
            items.append(value)
            continue
        key = re.compile(rf'(?:<\|"\|>)?({_NAME})(?:<\|"\|>)?:').match(text, place)
        if key is None or key[1] in entries:
            raise ValueError(f"no key at character {place}, or one that occurs twice")
        value, place = _gemma_value(text, key.end(), levels - 1)
        entries[key[1]] = value
    return (entries if opened == "{" else items), place + 1
