"""How the values of a record become what the database holds, and come back.

Values are checked here, because the database stores some of them wrongly. Free-form documents are kept as JSON text,
arrays of numbers as little-endian bytes; both come back exactly as they went in. What cannot be stored is a
`ValueError` whose text continues the name of the field.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simulator.documents import parse_json

_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True)
class Codec:
    """How a field is written and read where the database has no type for it."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def _encode_json(value: Any) -> str:
    if not isinstance(value, dict):
        raise ValueError(f" has type {type(value).__name__}, and a document is expected")
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"), default=_numpy_scalar)
    except (ValueError, TypeError) as error:
        raise ValueError(f" cannot be stored as JSON: {error}") from error


def _document(text: Any) -> dict[str, Any]:
    value = parse_json(text) if isinstance(text, str) else None
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
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
    def encode(value: Any) -> bytes:
        import numpy as np

        try:
            array = np.asarray(value, dtype=np.float64 if kind is float else np.int64)
        except (ValueError, TypeError, OverflowError) as error:
            raise ValueError(f": {error}") from error
        if array.ndim != 1:
            raise ValueError(f" has shape {array.shape}, expected one dimension")
        if kind is float and not np.isfinite(array).all():
            raise ValueError(" holds a value that is not finite")
        with np.errstate(over="ignore"):  # looked at on the next line
            narrow = array.astype(dtype)
        if not (np.isfinite(narrow).all() if kind is float else np.array_equal(narrow, array)):
            raise ValueError(f" holds a value that does not fit {np.dtype(dtype).name}")
        return narrow.tobytes()

    def decode(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, bytes):
            raise ValueError("it is not an array of numbers")
        import numpy as np

        return tuple(np.frombuffer(value, dtype=dtype).tolist())

    return Codec(encode, decode)


def _clean(value: str | None) -> str | None:
    """Free text, of a model or an exception: what the database cannot hold becomes a question mark."""
    return None if value is None else value.replace("\0", "?").encode(errors="replace").decode()


# Metadata of fields that are not plain values.
JSON = {"codec": Codec(_encode_json, _document)}
INT32 = {"codec": _array_codec("<i4", int)}
FLOAT32 = {"codec": _array_codec("<f4", float)}
TEXT = {"codec": Codec(_clean, lambda value: value)}
MASK = {"codec": _array_codec("?", bool)}


def database_value(value: Any, allow_nan: bool = False) -> Any:
    """`value` as the database takes it, numpy scalars made plain; `ValueError` for what would be stored wrongly."""
    value = _plain(value)
    if isinstance(value, dict):
        return {database_value(str(key)): _item(key, item, allow_nan) for key, item in value.items()}
    if isinstance(value, tuple):
        return [database_value(item, allow_nan) for item in value]
    if isinstance(value, str):
        if value != _clean(value):
            raise ValueError(f" holds a NUL character or half a surrogate pair: {value[:60]!r}")
    elif isinstance(value, int):
        if value not in _INT64:
            raise ValueError(f" is {value}, which does not fit 64 bits")
    elif isinstance(value, float):
        if not (allow_nan or math.isfinite(value)):
            raise ValueError(f" is {value}; only finite numbers are stored here")
    elif value is not None:
        raise ValueError(f" has type {type(value).__name__}, which the store does not take")
    return value


def _item(key: Any, value: Any, allow_nan: bool) -> Any:
    try:
        return database_value(value, allow_nan)
    except ValueError as error:
        raise ValueError(f"[{key!r}]{error}") from error
