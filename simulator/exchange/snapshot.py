"""A saved exchange as JSON: arrays byte for byte, requests and records by the name of their class.

A saved file may have been edited. So only the classes listed here are created, and anything else raises `DataError`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from simulator.arrays import FloatArray
from simulator.errors import DataError
from simulator.exchange.costs import Costs
from simulator.exchange.exchange_records import (
    BorrowPayment,
    Fill,
    FundingPayment,
    InsurancePayment,
    LiquidationFee,
    Rejection,
)
from simulator.exchange.orders import Cancel, Order, Replace, Target
from simulator.exchange.venue import Venue
from simulator.market.market import Market
from simulator.market.timeframes import BAR_COLUMNS

SNAPSHOT_FORMAT = 2
_KINDS = {
    kind.__name__: kind
    for kind in (
        Order, Target, Cancel, Replace, Fill, Rejection, FundingPayment, BorrowPayment, InsurancePayment,
        LiquidationFee,
    )
}  # fmt: skip


def identity(market: Market, index: int, costs: Costs, venue: Venue, max_leverage: float) -> dict[str, str]:
    """What must be the same when a saved exchange goes on: the bars up to `index` and the terms of trading."""
    past = hashlib.sha256(f"{market.timeframe}|{','.join(market.symbols)}".encode())
    for array in (market.open_time, *(getattr(market, name) for name in BAR_COLUMNS)):
        past.update(np.ascontiguousarray(array[: index + 1]).tobytes())
    grids = [None if other is None else other.timeframe for other in (venue.finer, venue.mark)]
    return {
        "market's bars so far": past.hexdigest(),
        "costs": repr(costs),
        "venue": repr((sorted(venue.rules.items()), sorted(venue.isolated.items()), grids)),
        "max_leverage": repr(float(max_leverage)),
    }


def check_snapshot_format(data: Mapping[str, Any]) -> None:
    """Raise `DataError` for a saved exchange of another format."""
    if data.get("format") != SNAPSHOT_FORMAT:
        raise DataError(
            f"the saved exchange has format {data.get('format')!r}, and this program reads {SNAPSHOT_FORMAT}: continue "
            "it with the program that saved it."
        )


def array_to_json(array: FloatArray) -> dict[str, Any]:
    """Shape and bytes of an array; NaN and infinity survive, which they would not in JSON's own numbers."""
    return {"shape": list(array.shape), "data": base64.b64encode(np.ascontiguousarray(array, "<f8").tobytes()).decode()}


def array_from_json(value: Any, shape: tuple[int | None, ...]) -> FloatArray:
    """The array again. `shape` is what is expected, None for any length; raises `DataError` for anything else."""
    try:
        given = tuple(int(length) for length in value["shape"])
        array = np.frombuffer(base64.b64decode(value["data"], validate=True), "<f8").reshape(given).astype(np.float64)
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise DataError(f"the saved exchange is damaged: an array cannot be read ({error}); save it anew.") from error
    if len(given) != len(shape) or any(want not in (None, have) for want, have in zip(shape, given, strict=True)):
        raise DataError(f"the saved exchange is of another market: an array is {given}, it should be {shape}.")
    return array


def record_to_json(record: Any) -> dict[str, Any]:
    """A request or a record of the ledger."""
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
        raise DataError("the saved exchange is damaged: one of its records has no known kind; save it anew.")
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
        raise DataError(f"the saved exchange is damaged: a {kind.__name__} cannot be read ({error}).") from error
