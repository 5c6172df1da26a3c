"""Requests to the database in CBOR.

The SDK's encoder is written in Python for every value that CBOR has, and takes longer than the engine with most rows.
This one writes the few kinds of values of which requests and rows are made, three times as fast. A message with any
other value is encoded by the SDK as a whole, so the bytes are always the SDK's.
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
    (1 << 64, struct.Struct(">BQ"), 27),
)
_UNSIGNED, _NEGATIVE, _BYTES, _TEXT, _LIST, _MAP = range(6)  # the major types of RFC 8949
_NONE, _FALSE, _TRUE = b"\xc6\xf6", b"\xf4", b"\xf5"  # SurrealDB's tag 6 is its NONE
_RECORD = b"\xc8\x82"  # SurrealDB's tag 8, and a list of two: table and key
_CACHED = 64  # characters of a text: names of fields come in every row


class _Unusual(Exception):
    """A value that only the SDK encodes, or that cannot be encoded."""


def query_request(text: str, parameters: dict[str, Any]) -> bytes:
    """The request to run statements. Raises what the SDK raises for a value that cannot be sent."""
    return encoded({"id": "store", "method": "query", "params": [text, parameters]})


def decoded(message: bytes) -> Any:
    """The value of a message."""
    return cbor.decode(message)


def encoded(value: Any) -> bytes:
    """The value in CBOR, as the SDK's `encode` gives it."""
    parts: list[bytes] = []
    try:
        _put(value, parts.append)
    except (_Unusual, RecursionError, UnicodeEncodeError):
        return bytes(cbor.encode(value))
    return b"".join(parts)


def _put(value: Any, write: Callable[[bytes], None]) -> None:
    kind = type(value)  # exactly: a subclass may be encoded differently
    if kind is str:
        write(_short_text(value) if len(value) <= _CACHED else _text(value))
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
    """The type of what follows, and its length; of an integer this is all."""
    if length < 24:
        return bytes((kind << 5 | length,))
    form, mark = next((form, mark) for limit, form, mark in _LENGTHS if length < limit)
    return form.pack(kind << 5 | mark, length)


def _text(value: str) -> bytes:
    content = value.encode()
    return _head(_TEXT, len(content)) + content


_short_text = lru_cache(4096)(_text)
