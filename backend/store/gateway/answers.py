"""Answers of the database, read from CBOR.

The SDK's decoder is written for every form that CBOR has, in Python, and takes longer than the engine and all that is
done with a row. This one reads the few forms that the engine uses, several times as fast; a message with any other is
given to the SDK as a whole, so that the result is always the SDK's.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from io import BytesIO
from typing import Any

from surrealdb.cbor import CBORDecoder, CBORTag
from surrealdb.data import cbor
from surrealdb.data.types.null import Null

_NONE, _RECORD = 6, 8  # tags of SurrealDB
_LENGTHS = {24: struct.Struct(">B"), 25: struct.Struct(">H"), 26: struct.Struct(">L"), 27: struct.Struct(">Q")}
_FLOATS = {0xF9: struct.Struct(">e"), 0xFA: struct.Struct(">f"), 0xFB: struct.Struct(">d")}
_NULL = 0xF6
_SIMPLE: dict[int, Any] = {0xF4: False, 0xF5: True, _NULL: Null}

_NO_DECODER = CBORDecoder(BytesIO())  # what makes a value of a tag asks it for nothing

Read = tuple[Any, int]  # a value, and where the next one begins


class _Unusual(Exception):
    """A form that only the SDK reads, or no CBOR."""


def decoded_answer(message: bytes) -> Any:
    """The value of a message, as the SDK's `decode` gives it. Raises what that one raises for what is no CBOR."""
    try:
        return _value(message, 0)[0]
    except (_Unusual, IndexError, struct.error, UnicodeDecodeError, RecursionError):
        return cbor.decode(message)


def _value(message: bytes, at: int) -> Read:
    head = message[at]
    kind, length = head >> 5, head & 31
    at += 1
    if kind == 7:
        if head in _FLOATS:
            form = _FLOATS[head]
            return form.unpack_from(message, at)[0], at + form.size
        if head not in _SIMPLE:
            raise _Unusual
        return _SIMPLE[head], at
    if length > 23:
        if length not in _LENGTHS:
            raise _Unusual
        form = _LENGTHS[length]
        (length,) = form.unpack_from(message, at)
        at += form.size
    return _KINDS[kind](message, at, length)


def _positive(message: bytes, at: int, length: int) -> Read:
    return length, at


def _negative(message: bytes, at: int, length: int) -> Read:
    return -1 - length, at


def _bytes(message: bytes, at: int, length: int) -> Read:
    end = at + length
    if end > len(message):
        raise _Unusual
    return message[at:end], end


def _text(message: bytes, at: int, length: int) -> Read:
    end = at + length
    if end > len(message):
        raise _Unusual
    return str(message[at:end], "utf-8"), end


def _list(message: bytes, at: int, length: int) -> Read:
    items = []
    for _ in range(length):
        item, at = _value(message, at)
        items.append(item)
    return items, at


def _map(message: bytes, at: int, length: int) -> Read:
    entries: dict[str, Any] = {}
    for _ in range(length):
        if not 0x60 <= message[at] < 0x78:  # a key is a short text
            raise _Unusual
        start, at = at + 1, at + 1 + (message[at] & 31)
        if at > len(message):
            raise _Unusual
        key = str(message[start:at], "utf-8")
        entries[key], at = _value(message, at)
    return entries, at


def _tagged(message: bytes, at: int, tag: int) -> Read:
    if tag == _NONE and message[at] == _NULL:
        return None, at + 1
    if tag != _RECORD:
        raise _Unusual
    value, at = _value(message, at)
    return cbor.tag_decoder(_NO_DECODER, CBORTag(tag, value)), at


_KINDS: tuple[Callable[[bytes, int, int], Read], ...] = (_positive, _negative, _bytes, _text, _list, _map, _tagged)
