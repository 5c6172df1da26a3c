"""Long lists of numbers as one text: the base64 of their bytes, eight a number.

A document is JSON, whose reader looks at each digit: the curves of a long backtest took seconds. Their bytes are read
at once, are half as long, and are the very same numbers.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np

from simulator.arrays import FloatArray

# The bytes of a number do not depend on the machine: little-endian.
_FORMS = {"i8": np.dtype("<i8"), "f8": np.dtype("<f8")}


def packed(numbers: Sequence[Any], form: str) -> str:
    """Integers (`form` "i8") or floats ("f8"), (n,) or (n, k), row after row, as a text with their form before it."""
    return f"{form}:{base64.b64encode(np.asarray(numbers, _FORMS[form]).tobytes()).decode('ascii')}"


def unpacked(text: str, form: str) -> np.ndarray[tuple[int], np.dtype[Any]]:
    """(n,): the numbers of `packed`. Raises `ValueError` for any other text, and for what is no number of JSON: NaN and
    the infinities."""
    stated, _, content = text.partition(":")
    if stated != form:
        raise ValueError(f"numbers as a text must be {form}, not {stated[:8]!r}")
    try:
        numbers = np.frombuffer(base64.b64decode(content, validate=True), _FORMS[form])
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"numbers as a text cannot be read: {error}") from None
    if not np.isfinite(numbers).all():
        raise ValueError("numbers as a text hold one that is not finite")
    return numbers


class PackedRows(Sequence[list[float]]):
    """The rows of an array (n, k), each made when it is asked for: a hundred thousand lists take longer than all else.
    It is equal to any other sequence with the same rows."""

    def __init__(self, array: FloatArray) -> None:
        self._array = array

    @property
    def width(self) -> int:
        """The length of each row, k."""
        return int(self._array.shape[1])

    def __len__(self) -> int:
        return len(self._array)

    @overload
    def __getitem__(self, index: int) -> list[float]: ...
    @overload
    def __getitem__(self, index: slice) -> PackedRows: ...
    def __getitem__(self, index: int | slice) -> list[float] | PackedRows:
        return PackedRows(self._array[index]) if isinstance(index, slice) else self._array[index].tolist()

    def __iter__(self) -> Iterator[list[float]]:
        return iter(self._array.tolist())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> FloatArray:
        return np.array(self._array, dtype, copy=copy)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._array.tolist() == list(other)

    __hash__ = None  # type: ignore[assignment]  # as a list has none

    def __repr__(self) -> str:
        return f"PackedRows({self._array!r})"
