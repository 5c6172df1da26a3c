"""JSON and text from files that somebody else may have written, read within limits.

The standard reader takes what is harmful: a document nested deeper than the stack, NaN, 1e999, a line of any length.
Whatever is refused here is a `ValueError` that says why; whoever reads a file adds its name and what to do.
"""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

_MOST_BYTES = 256 * 2**20  # of one document, or of one line of a file of lines
MOST_DEPTH = 100
_MOST_DIGITS = 300  # of one number: all of them have a float
_LARGE = re.compile(r"[eE]\+?\d{3}")  # an exponent of three digits
_LONG = 16_384  # characters from which a document is read by a faster reader
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_RUN = 100  # two hundred digits in a row hold a whole stretch of these
_CONSTANTS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def parse_json(text: str | bytes, *, nan: bool = False) -> Any:
    """The value that `text` holds; with `nan` also NaN and infinities, as Python writes them.

    Raises `ValueError` for what is no JSON, for bytes that are no UTF-8, numbers of absurd length or beyond all
    numbers, and values nested deeper than `MOST_DEPTH`.
    """
    if len(text) > _MOST_BYTES:
        raise ValueError(f"it has {len(text):,} characters, and at most {_MOST_BYTES:,} are read")
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        constant = _CONSTANTS.__getitem__ if nan else _no_constant
        if _may_be_too_large(text):
            value = json.loads(text, parse_constant=constant, parse_float=_finite, parse_int=_integer)
        elif len(text) > _LONG:
            value = _long_value(text, constant)
        else:
            value = json.loads(text, parse_constant=constant)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MOST_DEPTH} levels") from None
    # Few brackets cannot nest deeply: most documents need no further look.
    if text.count("[") + text.count("{") > MOST_DEPTH:
        depth = _depth_in(text) if len(text) > _LONG else depth_of(value)
        if depth > MOST_DEPTH:
            raise ValueError(f"it is nested deeper than {MOST_DEPTH} levels")
    return value


def _long_value(text: str, constant: Callable[[str], Any]) -> Any:
    """The value of a long document by a reader that is several times as fast. What that one refuses, such as half of a
    surrogate pair, the standard reader takes or refuses with its own words."""
    import pydantic_core  # not where the command line begins

    try:
        return pydantic_core.from_json(text, allow_inf_nan=False)
    except (ValueError, TypeError):  # the latter for a text that is no UTF-8
        return json.loads(text, parse_constant=constant)


def _depth_in(text: str) -> int:
    """`depth_of` the value that a long `text` holds, by its brackets: to walk through the value takes longer."""
    import numpy as np

    letters = np.frombuffer(_STRING.sub("", text).encode("utf-8"), np.uint8) | 0x20  # which makes { and } of [ and ]
    brackets = letters[(letters == ord("{")) | (letters == ord("}"))]
    return int(np.cumsum(np.where(brackets == ord("{"), 1, -1)).max(initial=0))


def read_bytes(path: Path, most: int = _MOST_BYTES) -> bytes:
    """The content of a file, at most `most` bytes. Raises `OSError`, and `ValueError` for a longer one."""
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it is longer than {most:,} bytes, the most that is read")
    return content


def read_document(path: Path, most: int = _MOST_BYTES, *, nan: bool = False) -> Any:
    """The value in a file of JSON. Raises `OSError` where it cannot be read, `ValueError` as `parse_json` does."""
    return parse_json(read_bytes(path, most), nan=nan)


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
    the point. To look at each number takes several times as long as to read the document."""
    return _LARGE.search(text) is not None or any(
        text[start : start + _RUN].isdigit() for start in range(0, len(text), _RUN)
    )


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is beyond all numbers")
    return number


def _integer(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"a number has {len(text):,} digits")
    return int(text)
