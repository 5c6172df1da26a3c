"""The records of an exchange: fills, rejections, payments, the account; as JSON, and made of the kernel's log.

Quantities are signed base units (+ buys), prices and money are in the quote currency, `bar` is the index of a bar of
the market, times are milliseconds UTC.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

import numpy as np

from simulator.arrays import FloatArray
from simulator.errors import DataError
from simulator.exchange.orders import Cancel, Order, OrderRequest, RejectionReason, Target
from simulator.exchange.rules import SymbolRules
from simulator.kernel import layout as at
from simulator.market.market import Market

FillReason = Literal["order", "stop", "target", "time", "liquidation", "delisted"]


@dataclass(frozen=True)
class Fill:
    """An execution. `price` holds half spread, impact and the rounding to the tick, which counts as spread; the two
    costs say how much money those were.

    `time` is the bar's open for what traded there, a latency in milliseconds left out, and its close for the others
    (their moment inside the bar is not known). "delisted": the venue ended the trade in the symbol.
    `order` is the id of the order, empty where none stood behind the fill. `maker`: it gave liquidity.
    """

    time: int
    bar: int
    symbol: str
    quantity: float
    price: float
    fee: float
    spread_cost: float
    reason: FillReason
    impact_cost: float = 0.0
    maker: bool = False
    order: str = ""


@dataclass(frozen=True)
class Rejection:
    """A request, or the part of it that `detail` names, that was not executed. `bar` is where that was decided.

    `quantity` is what was not executed of an order or target that had been accepted, signed base units; None for a
    request that was refused, and where the quantity is not known because no price was there to size it.
    """

    bar: int
    order: OrderRequest
    reason: RejectionReason
    detail: str
    quantity: float | None = None


@dataclass(frozen=True)
class FundingPayment:
    """A settlement: `amount` left the account (negative: was received). `assumed`: the data lacks it, and both sides
    pay the stated rate."""

    bar: int
    symbol: str
    amount: float
    assumed: bool = False


@dataclass(frozen=True)
class BorrowPayment:
    """Interest of one bar on coins sold short on a spot market, or on the cash borrowed for those held."""

    bar: int
    symbol: str
    amount: float


@dataclass(frozen=True)
class InsurancePayment:
    """What the venue's insurance paid of a loss beyond an isolated position's margin (so `amount` is negative)."""

    bar: int
    symbol: str
    amount: float


@dataclass(frozen=True)
class LiquidationFee:
    """What the venue takes for a liquidation, on top of the fee of the fill that stands before it in the ledger."""

    bar: int
    symbol: str
    amount: float


Payment = FundingPayment | BorrowPayment | InsurancePayment | LiquidationFee
LedgerEntry = Fill | Payment


@dataclass(frozen=True)
class AccountView:
    """An account at the close of a bar. The dicts have every symbol of the market as key.

    Attributes:
        positions: signed quantities, 0.0 where flat.
        exposure: signed notional as a fraction of equity.
        entry_price: average price of the open position, None where flat. stop, target: None where not set.
        mark: last close, NaN before the symbol's first bar.
        drawdown: fraction lost since the highest equity at a close, from 0 (at a peak) up.
        rules: of the venue, by symbol, as far as it has any.
        pending: orders that wait, oldest first, each with what is left of its quantity and delay. pending_sides: for
            each of them the sign of the position that its bracket was meant for when it was submitted, 0 without one.
        time_stops: symbols whose position is to be closed at a time that is set.
        traded: notional of all fills so far, in quote currency.
        taker_fee: fraction of the notional that the account pays now, where the venue's rules have none for a symbol;
            None: not stated.
    """

    equity: float
    cash: float
    initial_cash: float
    positions: dict[str, float]
    exposure: dict[str, float]
    entry_price: dict[str, float | None]
    stop: dict[str, float | None]
    target: dict[str, float | None]
    mark: dict[str, float]
    drawdown: float
    pending: tuple[Order, ...] = ()
    pending_sides: tuple[int, ...] = ()
    liquidated: bool = False
    rules: Mapping[str, SymbolRules] = field(default_factory=dict)
    time_stops: tuple[str, ...] = ()
    traded: float = 0.0
    taker_fee: float | None = None


# Requests, records and arrays as JSON: a record by the name of its class, an array byte for byte. What is read may have
# been edited. So only the classes listed here are created, and anything else raises `DataError`.

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
    """The record again; raises `DataError` where it is not a record."""
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


# The kernel's log as records


_FILL_REASONS: dict[int, FillReason] = {
    at.FILL_ORDER: "order",
    at.FILL_INSIDE: "order",
    at.FILL_STOP: "stop",
    at.FILL_TARGET: "target",
    at.FILL_TIME: "time",
    at.FILL_LIQUIDATION: "liquidation",
    at.FILL_DELISTED: "delisted",
}
_PAYMENTS: dict[int, type[Payment]] = {
    at.PAID_FUNDING: FundingPayment,
    at.PAID_BORROW: BorrowPayment,
    at.PAID_INSURANCE: InsurancePayment,
    at.PAID_LIQUIDATION: LiquidationFee,
}
_DROP_REASONS: dict[int, RejectionReason] = {
    at.DROP_LEVERAGE: "leverage_cap",
    at.DROP_REDUCE_ONLY: "reduce_only",
    at.DROP_BRACKET_CLOSED: "bracket_closed",
    at.DROP_BRACKET_SIDE: "position_changed",
    at.DROP_LIQUIDATED: "liquidated",
    at.DROP_CANCELLED: "cancelled",
    at.DROP_EXPIRED: "expired",
    at.DROP_IOC: "not_filled",
    at.DROP_FOK: "not_filled_whole",
    at.DROP_POST_ONLY: "would_take",
    at.DROP_OCO: "one_cancels_other",
    at.DROP_MIN_NOTIONAL: "min_notional",
    at.DROP_DELISTED: "delisted",
}


def unreached(
    bar: int, symbol: str, wanted: float, equity: float, mark: float, held: float, reason: RejectionReason, detail: str
) -> Rejection:
    """That the exposure `wanted` was not reached by the close of `bar`, with what is missing at the price `mark`."""
    missing = wanted * equity / mark - held
    what = f"{detail}; exposure {wanted:g} not reached, {missing:.8g} not executed"
    return Rejection(bar, Target(symbol, wanted), reason, what, missing)


def read_log(
    rows: FloatArray, market: Market, start: int, per_bar: int, names: Mapping[int, str], orders: Mapping[int, Order]
) -> Iterator[LedgerEntry | Rejection]:
    """The records of log rows (n, LOG_FIELDS), in their order.

    Args:
        start: when the bar that is counted as 0 opens, ms.
        per_bar: rows of the tape in a bar of the market.
        names, orders: the id of every order that can stand behind a fill, and the orders as submitted, by number.
    """
    interval = market.interval // per_bar
    for row in rows.tolist():
        kind, place, symbol = int(row[at.KIND]), int(row[at.LOG_BAR]), market.symbols[int(row[at.LOG_SYMBOL])]
        bar, quantity, key = place // per_bar, row[at.LOG_QUANTITY], int(row[at.LOG_ORDER])
        if kind == at.PAID_MISSING_FUNDING:
            yield FundingPayment(bar, symbol, row[at.LOG_FEE], assumed=True)
        elif kind in _PAYMENTS:
            yield _PAYMENTS[kind](bar, symbol, row[at.LOG_FEE])
        elif kind in _FILL_REASONS:
            at_open = kind in (at.FILL_ORDER, at.FILL_TIME, at.FILL_DELISTED)
            yield Fill(
                start + (place if at_open else place + 1) * interval, bar, symbol, quantity, row[at.LOG_PRICE],
                row[at.LOG_FEE], row[at.LOG_SPREAD], _FILL_REASONS[kind], row[at.LOG_IMPACT],
                row[at.LOG_MAKER] != 0.0, names.get(key, ""),
            )  # fmt: skip
        elif key in orders:
            part = "" if quantity == orders[key].quantity else f" of {orders[key].quantity:.8g}"
            yield Rejection(bar, orders[key], _DROP_REASONS[kind], f"{quantity:.8g}{part} not executed", quantity)
        else:
            target = Target(symbol, row[at.LOG_PRICE])
            what = f"{quantity:.8g} not executed" if quantity else f"exposure {target.exposure:g} not reached"
            yield Rejection(bar, target, _DROP_REASONS[kind], what, quantity or None)
