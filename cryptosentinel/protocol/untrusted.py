"""Cleaning of all text from outside: headlines, names, tool output, remembered lessons, messages of an exchange.

Cleaned text is one line of visible characters of bounded length, and spells no tag of a chat format: a headline with
tags reads as the one without them. The codec already encodes data without special tokens (`llm/chat_codec.py`). Here
the characters themselves are made safe. So an engine that sends text to a server meets no tag, and neither does a model
that quotes what it read, or a small one that was never shown such a word.

`clean` and `render_result` are for what models read, `visible` for what people do.

Nothing here judges the content. A model may believe a lie; the guard bounds what it can then do.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

CUT_MARK = "..."
MAX_RESULT_CHARS = 8_000  # a tool's whole result, as JSON
MAX_VALUE_CHARS = 400  # one string in it
MAX_KEY_CHARS = 64
MAX_VALUES = 1_000  # values in a result, objects and lists among them
_MAX_DEPTH = 6
TOO_LARGE = '{"error": "the result is too large to be read"}'

_MAX_MARKS = 2  # accents on one letter; more of them only paint over the lines around it
# Categories that show nothing: controls, formats (zero-width, bidi, tags), surrogates, private use, unassigned.
_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn"))
# Controls, which a terminal obeys; formats, which turn or hide text; lone surrogates; separators of lines.
_OBEYED = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
# Letters, marks and symbols that may be shown as nothing.
_BLANK = frozenset(
    chr(code)
    for first, last in (
        (0x034F, 0x034F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x2800, 0x2800), (0x3164, 0x3164),
        (0xFE00, 0xFE0F), (0xFFA0, 0xFFA0), (0xE0100, 0xE01EF),
    )
    for code in range(first, last + 1)
)  # fmt: skip
_UNSEEN = re.compile(f"[{''.join(sorted(_BLANK - {chr(0xFE0E), chr(0xFE0F)}))}]")  # these two choose an emoji's form
# Cyrillic and Greek letters that look Latin: folded where a word mixes them with Latin ones, as no language does.
_LOOKALIKES = str.maketrans(
    "АВЕЅІЈКМНОРСТХаеѕіјорсухԁԛԝΑΒΕΖΗΙΚΜΝΟΡΤΥΧο",
    "ABESIJKMHOPCTXaesijopcyxdqwABEZHIKMNOPTYXo",
)
_WORD = re.compile(r"\w+")
_LATIN = re.compile(r"[A-Za-z]")
# Tags of chat formats, with the role behind one: <|im_end|>, <|im_start|>user, </tool_response>, <<SYS>>, [/INST].
_BRACKETED = "INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|THINK|ARGS|CALL_ID|PREFIX|SUFFIX"
_TAG = re.compile(
    r"<\|[^<>]{0,60}\|>(?:(?:assistant|user|system|tool|developer)\b)?"
    rf"|</?[A-Za-z_][\w:|-]{{0,60}}/?>|<</?[A-Za-z_]{{1,60}}>>|\[/?(?:{_BRACKETED})\]"
)
# What would open one that is longer, or that is made of the rest.
_TAG_START = re.compile(rf"<(?=[|/!A-Za-z])|\[(?=/?(?:{_BRACKETED})\])")
_CONTAINERS = (dict, list, tuple, Mapping)


def clean(text: str, limit: int) -> str:
    """`text` as one visible line of at most `limit` characters; a longer one is cut and ends in `...`.

    What cannot be seen is removed, compatibility forms (full-width, mathematical) become plain characters, white space
    is one space. Tags of chat formats are left out, and any other `<` or `[` is set apart from a tag's name. Reads a
    bounded part of `text`, whatever its length. Raises `ValueError` if `limit` has no room for the mark.
    """
    if limit < len(CUT_MARK):
        raise ValueError(f"a limit of {limit} characters has no room for the mark {CUT_MARK!r}")
    read = text[: 4 * limit + 64]
    shown = read if read.isascii() and read.isprintable() else _visible(read)
    if "<" in shown or "[" in shown:
        shown = _TAG_START.sub(r"\g<0> ", _TAG.sub(" ", shown))
    shown = " ".join(shown.split())
    if len(shown) <= limit and len(read) == len(text):
        return shown
    return shown[: limit - len(CUT_MARK)].rstrip() + CUT_MARK


def visible(text: str) -> str:
    """`text` for people: every character that a terminal or a page would obey or hide is spelled out as `\\u{1b}`; only
    new lines stay. All outside text that people see passes here: what turns the direction of a line, has no width or is
    a control character changes nothing around it.

    >>> visible("ok\\x1b[2J")
    'ok\\\\u{1b}[2J'
    """
    if text.isprintable() and _UNSEEN.search(text) is None:
        return text
    return "".join(f"\\u{{{ord(one):x}}}" if _is_unseen(one) else one for one in text)


def visible_values(value: Any) -> Any:
    """A document of JSON whose keys and texts are `visible`."""
    if isinstance(value, Mapping):
        return {visible(str(key)): visible_values(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [visible_values(one) for one in value]
    return visible(value) if isinstance(value, str) else value


def _is_unseen(one: str) -> bool:
    return one != "\n" and (unicodedata.category(one) in _OBEYED or _UNSEEN.match(one) is not None)


def render_result(result: Mapping[str, Any]) -> str:
    """A tool's result as the JSON that a model reads: all its strings cleaned, numbers that are not finite as null.

    A result that is too long or too deep becomes an error that says so, since half a result may mislead. Raises
    `TypeError` for values that JSON does not have.
    """
    if not _fits(result):
        return TOO_LARGE
    text = json.dumps(_cleaned(result), allow_nan=False)
    return text if len(text) <= MAX_RESULT_CHARS else TOO_LARGE


def _visible(text: str) -> str:
    """`text` in plain, visible characters; white space of every kind becomes a space."""
    kept: list[str] = []
    marks = 0
    for character in unicodedata.normalize("NFKC", text):
        category = unicodedata.category(character)
        if character.isspace():
            character = " "
        elif category in _HIDDEN or character in _BLANK:
            continue
        marks = marks + 1 if category in ("Mn", "Me") else 0
        if marks <= _MAX_MARKS:
            kept.append(character)
    return _WORD.sub(_unmixed, unicodedata.normalize("NFKC", "".join(kept)))


def _unmixed(word: re.Match[str]) -> str:
    return word[0].translate(_LOOKALIKES) if _LATIN.search(word[0]) else word[0]


def _fits(result: Mapping[str, Any]) -> bool:
    """Whether few enough values lie shallow enough. Looked at level by level, and no further than it fits."""
    level: list[Any] = [result]
    count = 1
    for _ in range(_MAX_DEPTH + 1):
        containers = [value for value in level if isinstance(value, _CONTAINERS)]
        count += sum(map(len, containers))
        if count > MAX_VALUES:
            return False
        level = [item for one in containers for item in (one.values() if isinstance(one, Mapping) else one)]
    return not level


def _cleaned(value: Any) -> Any:
    # What there is most of comes first: to ask whether a value is some Mapping takes longest.
    if isinstance(value, str):
        return clean(value, MAX_VALUE_CHARS)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int):  # Python refuses to write very long ones
        return value if value.bit_length() <= 64 else None
    if isinstance(value, list | tuple):
        return [_cleaned(item) for item in value]
    if isinstance(value, Mapping):
        return {clean(str(key), MAX_KEY_CHARS): _cleaned(item) for key, item in value.items()}
    return value
