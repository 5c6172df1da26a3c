"""The records of an exchange: fills, rejections, payments, the account.

Quantities are signed base units (+ buys), prices and money are in the quote currency, `bar` is the index of a bar of
the market, times are milliseconds UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from simulator.exchange.orders import Order, OrderRequest, RejectionReason
from simulator.exchange.rules import SymbolRules

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
