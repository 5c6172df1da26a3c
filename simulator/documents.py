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

from simulator.folders import check_regular

_MOST_BYTES = 256 * 2**20  # of one document, or of one line of a file of lines
MOST_DEPTH = 100
_MOST_DIGITS = 300  # of one number: all of them have a float
_LARGE = re.compile(r"[eE]\+?\d{3}")  # an exponent of three digits
_LONG = 16_384  # characters from which a document is read by a faster reader
_LARGE_IN_BYTES = re.compile(_LARGE.pattern.encode())
_RUN = 100  # two hundred digits in a row hold a whole stretch of these
_APART = 9  # letters of a stretch so far apart are looked at first, since few stretches are digits in all of them
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
        long = _LongText(text) if len(text) > _LONG else None
        if _may_be_too_large(text) if long is None else long.may_be_too_large():
            value = json.loads(text, parse_constant=constant, parse_float=_finite, parse_int=_integer)
        elif long is None:
            value = json.loads(text, parse_constant=constant)
        else:
            value = _long_value(text, constant)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MOST_DEPTH} levels") from None
    # Few brackets cannot nest deeply: most documents need no further look.
    if text.count("[") + text.count("{") > MOST_DEPTH:
        depth = depth_of(value) if long is None else long.depth()
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


class _LongText:
    """The letters of a long document and where its strings are, so that what is between them can be looked at without
    a walk through the value, which takes longer than to read it. Of what is no JSON it may say anything."""

    def __init__(self, text: str) -> None:
        import numpy as np  # not where the command line begins

        self._bytes = text.encode("utf-8", "surrogatepass")
        self._letters = np.frombuffer(self._bytes, np.uint8)
        quotes = np.flatnonzero(self._letters == ord('"'))
        slashes = np.flatnonzero(self._letters == ord("\\"))
        if len(slashes):  # an odd number of them in a row makes the quote that follows a part of its string
            last = np.flatnonzero(np.diff(slashes, append=-1) != 1)
            escaped = np.zeros(len(self._letters) + 1, np.bool_)
            escaped[slashes[last[np.diff(last, prepend=-1) % 2 == 1]] + 1] = True
            quotes = quotes[~escaped[quotes]]
        self._quotes = quotes  # those with which a string begins or ends

    def _outside(self, places: Any) -> Any:
        """Those of the places that are in no string."""
        import numpy as np

        return places[np.searchsorted(self._quotes, places) % 2 == 0]

    def depth(self) -> int:
        """`depth_of` the value."""
        import numpy as np

        # { and } are [ and ] with one more bit, and the letter between each pair is a backslash or a bar.
        places = np.flatnonzero((self._letters | 0x20) - ord("{") <= 2)
        marks = self._letters[places] | 0x20
        brackets = marks != ord("|")
        places, marks = places[brackets], marks[brackets]
        outside = np.searchsorted(self._quotes, places) % 2 == 0
        return int(np.cumsum(np.where(marks[outside] == ord("{"), 1, -1)).max(initial=0))

    def may_be_too_large(self) -> bool:
        """`_may_be_too_large`, where digits in strings do not count."""
        import numpy as np

        marks = self._outside(np.flatnonzero(self._letters[:-1] | 0x20 == ord("e")))
        marks = marks[self._letters[marks + 1] != ord("-")]
        if any(_LARGE_IN_BYTES.match(self._bytes, place) for place in marks.tolist()):
            return True
        whole = self._letters[: len(self._letters) // _RUN * _RUN].reshape(-1, _RUN)
        stretches = np.flatnonzero(_are_digits(whole[:, ::_APART]))
        stretches = stretches[_are_digits(whole[stretches])]
        return len(self._outside(_RUN * stretches)) > 0


def _are_digits(letters: Any) -> Any:
    """Which rows of letters (n, k) are all digits."""
    return (letters - ord("0") < 10).all(axis=1)  # below "0" it is large, since it has no sign


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
