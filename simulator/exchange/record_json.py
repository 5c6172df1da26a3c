"""Requests, records and arrays as JSON: a record by the name of its class, an array byte for byte.

What is read may have been edited. So only the classes listed here are created, and anything else raises `DataError`.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from simulator.arrays import FloatArray
from simulator.errors import DataError
from simulator.exchange.exchange_records import (
    BorrowPayment,
    Fill,
    FundingPayment,
    InsurancePayment,
    LiquidationFee,
    Rejection,
)
from simulator.exchange.orders import Cancel, Order, Target

_KINDS = {
    kind.__name__: kind
    for kind in (
        Order, Target, Cancel, Fill, Rejection, FundingPayment, BorrowPayment, InsurancePayment, LiquidationFee,
    )
}  # fmt: skip


def array_to_json(array: FloatArray) -> dict[str, Any]:
    """Shape and bytes of an array; NaN and infinity survive, which they would not in JSON's own numbers."""
    return {"shape": list(array.shape), "data": base64.b64encode(np.ascontiguousarray(array, "<f8").tobytes()).decode()}


def array_from_json(value: Any, shape: tuple[int | None, ...]) -> FloatArray:
    """The array again. `shape` is what is expected, None for any length; raises `DataError` for anything else."""
    try:
        given = tuple(int(length) for length in value["shape"])
        array = np.frombuffer(base64.b64decode(value["data"], validate=True), "<f8").reshape(given).astype(np.float64)
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise DataError(f"an array cannot be read ({error}): what holds it was changed.") from error
    if len(given) != len(shape) or any(want not in (None, have) for want, have in zip(shape, given, strict=True)):
        raise DataError(f"an array is {given} and should be {shape}: what holds it was changed.")
    return array


def record_to_json(record: Any) -> dict[str, Any]:
    """A request or a record of the ledger, by the name of its class."""
    named = {"kind_of_record": type(record).__name__, **asdict(record)}
    if isinstance(record, Rejection):
        named["order"] = record_to_json(record.order)
    return {
        name: repr(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in named.items()
    }


def record_from_json(value: Any) -> Any:
    """The record again; raises `DataError` where it is none."""
    if not isinstance(value, Mapping) or value.get("kind_of_record") not in _KINDS:
        raise DataError("a record has no known kind: what holds it was changed.")
    kind = _KINDS[value["kind_of_record"]]
    types = {field.name: str(field.type) for field in fields(kind)}
    given: dict[str, Any] = {}
    try:
        for name, part in value.items():
            if name == "order" and kind is Rejection:
                given[name] = record_from_json(part)
            elif name != "kind_of_record":
                given[name] = float(part) if "float" in types[name] and part is not None else part
        return kind(**given)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"a {kind.__name__} cannot be read ({error}): what holds it was changed.") from error
