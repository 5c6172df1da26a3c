"""What goes into an exchange and what comes out: orders, fills, rejections, settlements, the account.

Quantities are signed base units (+ buys), prices and money are in the quote currency, `bar` is the index of a bar of
the market, times are milliseconds UTC.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from simulator.errors import DataError
from simulator.kernel import DUST

FillReason = Literal["order", "stop", "target", "bankrupt"]

RejectionReason = Literal[
    "unknown_symbol",  # the market has no such symbol
    "bad_quantity",  # zero, NaN or infinite
    "bad_delay",  # negative
    "bad_bracket",  # a stop or target that is no positive number
    "stop_side",  # a stop beyond the market: it would be hit at once
    "target_side",  # a target on the losing side
    "no_price",  # the symbol has not traded yet
    "bankrupt",  # the account is over
    "window_end",  # no bar was left to fill it
    "superseded",  # a later decision about the same symbol replaced it
    "reduce_only",  # it would have opened or enlarged a position (or the part of it that would have)
    "leverage_cap",  # the part that did not fit under the leverage cap
    "bracket_closed",  # stop or target closed the position that it was meant to change
    "position_changed",  # the position has turned so that the order's bracket would stand on the wrong side
]


@dataclass(frozen=True)
class Costs:
    """What trading costs. Every fill takes liquidity.

    Attributes:
        taker_fee: fraction of the traded notional, on the fill price.
        spread_multiplier: scales the market's half spread; 0 trades at the mid price.
    """

    taker_fee: float = 0.0005
    spread_multiplier: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.taker_fee < 1.0:
            raise DataError(f"taker_fee is {self.taker_fee}; give a fraction from 0 to below 1, as 0.0005 for 5 bps.")
        if not (math.isfinite(self.spread_multiplier) and self.spread_multiplier >= 0.0):
            raise DataError(f"spread_multiplier is {self.spread_multiplier}; give a finite number from 0 up.")


@dataclass(frozen=True)
class Order:
    """A market order, decided at the close of a bar, filled at the open of a later one.

    Attributes:
        quantity: signed base units; 0 only withdraws the orders that wait for the symbol.
        stop, target: bracket of the position that results. An order that opens or turns a position sets its bracket
            exactly so (None: none); one that enlarges or reduces it replaces what is given and keeps the rest.
        delay: bars to wait before the order becomes active; 0 fills at the next present bar's open.
        reduce_only: never opens, enlarges or turns a position.
    """

    symbol: str
    quantity: float
    stop: float | None = None
    target: float | None = None
    delay: int = 0
    reduce_only: bool = False


@dataclass(frozen=True)
class Fill:
    """An execution. `price` holds the half spread; `spread_cost` says how much money that was.

    `time` is the bar's open for orders, its close for the others (their moment inside the bar is not known).
    """

    time: int
    bar: int
    symbol: str
    quantity: float
    price: float
    fee: float
    spread_cost: float
    reason: FillReason


@dataclass(frozen=True)
class Rejection:
    """An order, or the part of it that `detail` names, that was not executed. `bar` is where that was decided."""

    bar: int
    order: Order
    reason: RejectionReason
    detail: str


@dataclass(frozen=True)
class FundingPayment:
    """A settlement: `amount` left the account (negative: was received)."""

    bar: int
    symbol: str
    amount: float


@dataclass(frozen=True)
class AccountView:
    """An account at the close of a bar. The dicts have every symbol of the market as key.

    Attributes:
        positions: signed quantities, 0.0 where flat.
        exposure: signed notional as a fraction of equity.
        entry_price: average price of the open position, None where flat. stop, target: None where not set.
        mark: last close, NaN before the symbol's first bar.
        drawdown: fraction lost since the highest equity at a close, from 0 (at a peak) up.
        pending: orders that wait, oldest first, each with the delay that is left. pending_sides: for each of them the
            sign of the position that its bracket was meant for when it was submitted, 0 without a bracket.
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
    bankrupt: bool = False


def resulting_position(order: Order, held: float, pending: Iterable[Order]) -> float:
    """Position in the order's symbol once it and those before it have filled; exactly 0 where only rounding is left."""
    before = held + sum(other.quantity for other in pending if other.symbol == order.symbol)
    after = before + order.quantity
    return 0.0 if abs(after) <= DUST * max(abs(before), abs(order.quantity)) else after


def bracket_side(order: Order, position: float) -> int:
    """Sign of the resulting `position` if `order` carries a bracket for it, else 0."""
    if order.stop is None and order.target is None:
        return 0
    return (position > 0.0) - (position < 0.0)


def objection(
    order: Order, marks: Mapping[str, float], position: float, bankrupt: bool
) -> tuple[RejectionReason, str] | None:
    """Why `order` cannot be used, with the detail; None for a usable one.

    Args:
        marks: last close of every symbol of the market.
        position: what the order results in, see `resulting_position`.
    """
    if order.symbol not in marks:
        return "unknown_symbol", f"the market has {', '.join(marks)}"
    if bankrupt:
        return "bankrupt", "the account's equity reached zero"
    if not math.isfinite(order.quantity) or order.quantity == 0.0:
        return "bad_quantity", f"quantity {order.quantity}"
    if order.delay < 0:
        return "bad_delay", f"delay {order.delay}"
    for name, level in (("stop", order.stop), ("target", order.target)):
        if level is not None and not (math.isfinite(level) and level > 0.0):
            return "bad_bracket", f"{name} {level}"
    mark = marks[order.symbol]
    if math.isnan(mark):
        return "no_price", f"{order.symbol} has no bar yet"
    # A bracket beside a position that ends flat protects nothing and is ignored.
    if position != 0.0 and order.stop is not None and position * (mark - order.stop) <= 0.0:
        return "stop_side", f"stop {order.stop} for a {_word(position)} position at {mark}"
    if position != 0.0 and order.target is not None and position * (order.target - mark) <= 0.0:
        return "target_side", f"target {order.target} for a {_word(position)} position at {mark}"
    return None


def _word(position: float) -> str:
    return "long" if position > 0.0 else "short"
