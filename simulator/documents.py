"""JSON and text from files that somebody else may have written, read within limits.

The standard reader takes what is harmful: a document nested deeper than the stack, NaN, 1e999, a line of any length.
What is refused here is a `ValueError` with the reason; the reader of a file adds its name and what to do.
"""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

from simulator.folders import check_regular

_MOST_BYTES = 256 * 2**20  # of one document, or of one line of a file of lines
MOST_DEPTH = 200  # also that of the reader of long documents
_MOST_DIGITS = 300  # of one number: all of them have a float
_LARGE = re.compile(r"[eE]\+?\d{3,}(?=[\s,\]}]|$)")  # a number's exponent of three digits
_RUN = 100  # two hundred digits in a row hold a whole stretch of these
_LONG = 16_384  # characters from which a document is read by a reader that is several times as fast
_Kind = TypeVar("_Kind")
_ADAPTERS: dict[Any, Any] = {}  # of `typed`, by kind
_CONSTANTS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def parse_json(text: str | bytes, *, nan: bool = False) -> Any:
    """The value that `text` holds; with `nan` also NaN and infinities, as Python writes them.

    Raises `ValueError` for text that is not JSON or not UTF-8, numbers of absurd length or beyond all numbers, and
    values nested deeper than `MOST_DEPTH`.
    """
    if len(text) > _MOST_BYTES:
        raise ValueError(f"it has {len(text):,} characters, and at most {_MOST_BYTES:,} are read")
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    large = _may_be_too_large(text)
    if len(text) > _LONG and not large:
        import pydantic_core  # not where the command line begins

        try:
            return pydantic_core.from_json(text, allow_inf_nan=False)
        except (ValueError, TypeError):
            pass  # the standard reader accepts it, such as half of a surrogate pair, or gives the reason
    constant = _CONSTANTS.__getitem__ if nan else _no_constant
    numbers: dict[str, Any] = {"parse_float": _finite, "parse_int": _integer} if large else {}
    try:
        value = json.loads(text, parse_constant=constant, **numbers)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MOST_DEPTH} levels") from None
    # Few brackets cannot nest deeply: most documents need no further look.
    if text.count("[") + text.count("{") > MOST_DEPTH and depth_of(value) > MOST_DEPTH:
        raise ValueError(f"it is nested deeper than {MOST_DEPTH} levels")
    return value


def read_bytes(path: Path, most: int = _MOST_BYTES) -> bytes:
    """The content of a file, at most `most` bytes. Raises `OSError`, and `ValueError` for a longer one."""
    check_regular(path)
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it is longer than {most:,} bytes, the most that is read")
    return content


def read_document(path: Path, most: int = _MOST_BYTES, *, nan: bool = False) -> Any:
    """The value in a file of JSON. Raises `OSError` where it cannot be read, `ValueError` as `parse_json` does."""
    return parse_json(read_bytes(path, most), nan=nan)


def typed(kind: type[_Kind], value: Any) -> _Kind:
    """A value of JSON as the dataclass `kind`. Raises `ValueError` with the field for one that is missing, unknown or
    of another type."""
    from pydantic import TypeAdapter, ValidationError  # not where the command line begins

    adapter = _ADAPTERS.get(kind) or _ADAPTERS.setdefault(kind, TypeAdapter(kind))
    try:
        read: _Kind = adapter.validate_json(json.dumps(value), strict=True, extra="forbid")
        return read
    except ValidationError as error:
        wrong = error.errors()[0]
        place = ".".join(map(str, wrong["loc"])) or "the value"
        got = "" if wrong["type"] == "missing" else f", not {wrong['input']!r:.60}"
        raise ValueError(f"{place}: {wrong['msg']}{got}") from None


def lines_of(file: IO[bytes] | gzip.GzipFile, most: int = _MOST_BYTES) -> Iterator[bytes]:
    """The lines of a file with their ends, none longer than `most` bytes. Raises `ValueError` for a longer one."""
    while line := file.readline(most + 1):
        if len(line) > most:
            raise ValueError(f"a line is longer than {most:,} bytes, the most that is read")
        yield line


def depth_of(value: Any) -> int:
    """How deep lists and objects are nested in a value of JSON; 0 for a plain one."""
    depth, level = 0, [value]
    while level := [one for one in level if isinstance(one, list | dict)]:
        depth += 1
        level = [item for one in level for item in (one.values() if isinstance(one, dict) else one)]
    return depth


def _may_be_too_large(text: str) -> bool:
    """Whether a number in `text` may be beyond all numbers: with an exponent of two digits it needs two hundred before
    the point. Looking at each number takes several times as long as reading the document."""
    return _LARGE.search(text) is not None or any(
        text[start : start + _RUN].isdigit() for start in range(0, len(text), _RUN)
    )


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is beyond all numbers")
    return number


def _integer(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"a number has {len(text):,} digits")
    return int(text)
