"""Turns the kernel's log into records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from simulator.arrays import FloatArray
from simulator.exchange.exchange_records import (
    BorrowPayment,
    Fill,
    FillReason,
    FundingPayment,
    InsurancePayment,
    LedgerEntry,
    LiquidationFee,
    Payment,
    Rejection,
)
from simulator.exchange.orders import Order, RejectionReason, Target
from simulator.kernel import layout as at
from simulator.market.market import Market

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


def read(
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
