"""How the values of a record become what the database holds, and come back.

Values are checked here, so that the error names the record and the field, and because the database is silent about
some: it turns a null inside an object into an absent field, and servers of version 2 wrap integers beyond 64 bits and
cannot read a string with a NUL. Free-form documents are therefore kept as JSON text, arrays of numbers as little-endian
bytes; both come back exactly as they went in.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from backend.store.errors import StoreError
from simulator.documents import parse_json

_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True)
class Codec:
    """How a field is written and read where the database has no type for it."""

    encode: Callable[[Any, str], Any]
    decode: Callable[[Any], Any]


def _encode_json(value: Any, where: str) -> str:
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"), default=_numpy_scalar)
    except (ValueError, TypeError) as error:
        raise StoreError(f"{where} cannot be stored as JSON: {error}") from error


def _document(text: Any) -> dict[str, Any]:
    value = parse_json(text) if isinstance(text, str) else None
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    return value


def _plain(value: Any) -> Any:
    """A scalar of numpy as Python's own, anything else as it is. Who has such a scalar has imported numpy; listing runs
    needs none, and does without the fifth of a second that this takes."""
    numpy = sys.modules.get("numpy")
    return value.item() if numpy is not None and isinstance(value, numpy.generic) else value


def _numpy_scalar(value: Any) -> Any:
    plain = _plain(value)
    if plain is value:
        raise TypeError(f"a value of type {type(value).__name__}")
    return plain


def _array_codec(dtype: str, kind: type) -> Codec:
    def encode(value: Any, where: str) -> bytes:
        import numpy as np

        try:
            array = np.asarray(value, dtype=np.float64 if kind is float else np.int64)
        except (ValueError, TypeError, OverflowError) as error:
            raise StoreError(f"{where}: {error}") from error
        if array.ndim != 1:
            raise StoreError(f"{where} has shape {array.shape}, expected one dimension")
        if kind is float and not np.isfinite(array).all():
            raise StoreError(f"{where} holds a value that is not finite")
        with np.errstate(over="ignore"):  # looked at on the next line
            narrow = array.astype(dtype)
        if not (np.isfinite(narrow).all() if kind is float else np.array_equal(narrow, array)):
            raise StoreError(f"{where} holds a value that does not fit {np.dtype(dtype).name}")
        return narrow.tobytes()

    def decode(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, bytes):
            raise ValueError("it is no array of numbers")
        import numpy as np

        return tuple(np.frombuffer(value, dtype=dtype).tolist())

    return Codec(encode, decode)


def _clean(value: str | None, where: str) -> str | None:
    """Free text, of a model or an exception: what the database cannot hold becomes a question mark."""
    return None if value is None else value.replace("\0", "?").encode(errors="replace").decode()


def _encode_pairs(value: Any, where: str) -> list[list[Any]] | None:
    return None if value is None else [[_plain(number), _clean(text, where)] for number, text in value]


def _pairs(value: Any) -> tuple[tuple[Any, ...], ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(pair, list) for pair in value):
        raise ValueError("it is no list of pairs")
    return tuple(tuple(pair) for pair in value)


# Metadata of fields that are not plain values.
JSON = {"codec": Codec(_encode_json, _document)}
INT32 = {"codec": _array_codec("<i4", int)}
FLOAT32 = {"codec": _array_codec("<f4", float)}
PAIRS = {"codec": Codec(_encode_pairs, _pairs)}  # of a number and a text
TEXT = {"codec": Codec(_clean, lambda value: value)}
MASK = {"codec": _array_codec("?", bool)}


def is_plain(value: Any, allow_nan: bool) -> bool:
    """Whether `database_value` gives just what it gets, told quickly for nearly all that records hold."""
    kind = type(value)
    if kind is int:
        return value in _INT64
    if kind is float:
        return allow_nan or math.isfinite(value)
    if kind is str:
        return value.isascii() and "\0" not in value
    if kind is dict:
        return all(type(key) is str and is_plain(key, True) and is_plain(value[key], allow_nan) for key in value)
    return value is None or kind is bool


def database_value(value: Any, where: str, allow_nan: bool) -> Any:
    """`value` as the database takes it, numpy scalars made plain; `StoreError` for what would be stored wrongly."""
    value = _plain(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if value not in _INT64:
            raise StoreError(f"{where} is {value}, which does not fit 64 bits")
        return value
    if isinstance(value, float):
        if not (allow_nan or math.isfinite(value)):
            raise StoreError(f"{where} is {value}; only finite numbers are stored here")
        return value
    if isinstance(value, str):
        if "\0" in value or not _is_utf8(value):
            raise StoreError(f"{where} holds a NUL character or half a surrogate pair: {value[:60]!r}")
        return value
    if isinstance(value, dict):
        return {
            database_value(str(k), where, allow_nan): database_value(v, f"{where}[{k!r}]", allow_nan)
            for k, v in value.items()
        }
    if isinstance(value, tuple):
        return [database_value(item, where, allow_nan) for item in value]
    raise StoreError(f"{where} has type {type(value).__name__}, which the store does not take")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
