"""Messages to the database, written in CBOR.

The SDK's encoder is written for every value that CBOR has, in Python, and takes longer than the engine with most rows.
This one writes the few kinds of which requests and rows are made, several times as fast; a message with any other is
given to the SDK as a whole, so that the bytes are always the SDK's.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from surrealdb import RecordID
from surrealdb.data import cbor

_FLOAT = struct.Struct(">Bd")
_LENGTHS = (
    (1 << 8, struct.Struct(">BB"), 24),
    (1 << 16, struct.Struct(">BH"), 25),
    (1 << 32, struct.Struct(">BL"), 26),
)
_LONGEST = struct.Struct(">BQ")
_UNSIGNED, _NEGATIVE, _BYTES, _TEXT, _LIST, _MAP = range(6)
_NONE, _FALSE, _TRUE = b"\xc6\xf6", b"\xf4", b"\xf5"
_RECORD = b"\xc8\x82"  # a tag of SurrealDB, and a list of two: table and key
_REMEMBERED = 64  # characters of a text: names of fields come in every row

_Write = Callable[[bytes], None]


class _Unusual(Exception):
    """A value that only the SDK writes, or none that it does."""


def encoded(value: Any) -> bytes:
    """The value in CBOR, as the SDK's `encode` gives it. Raises what that one raises for what cannot be sent."""
    parts: list[bytes] = []
    try:
        _put(value, parts.append)
    except (_Unusual, RecursionError, UnicodeEncodeError):
        return bytes(cbor.encode(value))
    return b"".join(parts)


def _put(value: Any, write: _Write) -> None:
    kind = type(value)  # exactly: what is made of one of these may be written in another way
    if kind is str:
        write(_short_text(value) if len(value) <= _REMEMBERED else _text(value))
    elif kind is int:
        if not -(1 << 63) <= value < 1 << 63:
            raise _Unusual
        write(_head(_UNSIGNED, value) if value >= 0 else _head(_NEGATIVE, -1 - value))
    elif kind is float:
        if not math.isfinite(value):
            raise _Unusual
        write(_FLOAT.pack(0xFB, value))
    elif kind is RecordID:
        write(_RECORD)
        _put(value.table_name, write)
        _put(value.id, write)
    elif value is None:
        write(_NONE)
    elif kind is bool:
        write(_TRUE if value else _FALSE)
    elif kind is dict:
        write(_head(_MAP, len(value)))
        for key, item in value.items():
            _put(key, write)
            _put(item, write)
    elif kind is list or kind is tuple:
        write(_head(_LIST, len(value)))
        for item in value:
            _put(item, write)
    elif kind is bytes:
        write(_head(_BYTES, len(value)))
        write(value)
    else:
        raise _Unusual


def _head(kind: int, length: int) -> bytes:
    """Of which kind what follows is, and how long; of a number it is all."""
    if length < 24:
        return bytes((kind << 5 | length,))
    for limit, form, mark in _LENGTHS:
        if length < limit:
            return form.pack(kind << 5 | mark, length)
    return _LONGEST.pack(kind << 5 | 27, length)


def _text(value: str) -> bytes:
    content = value.encode()
    return _head(_TEXT, len(content)) + content


_short_text = lru_cache(4096)(_text)
