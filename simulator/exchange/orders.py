"""The requests to an exchange: orders, target exposures and cancels; and the checks of an order.

Quantities are signed base units (+ buys), prices are in the quote currency.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from simulator.exchange.rules import SymbolRules
from simulator.kernel.layout import DUST

OrderKind = Literal["market", "limit", "stop", "stop_limit", "take_profit", "trailing_stop"]
InForce = Literal["gtc", "ioc", "fok", "post_only"]

# Which prices each kind of order needs; the others must be absent.
PRICES: dict[str, tuple[str, ...]] = {
    "market": (),
    "limit": ("limit",),
    "stop": ("trigger",),
    "stop_limit": ("trigger", "limit"),
    "take_profit": ("trigger",),
    "trailing_stop": ("trail",),
}


@dataclass(frozen=True)
class Order:
    """An order, decided at the close of a bar, that may act from the open of a later one.

    Attributes:
        quantity: signed base units; a market order of 0 only withdraws the market orders that wait for the symbol.
        stop, target: bracket of the position that results. An order that opens or turns a position sets its bracket
            exactly so (None: none); one that enlarges or reduces it replaces what is given and keeps the rest. The stop
            of a long position lies below the price at which the order trades, see `entry_level`, its target above.
        delay: bars to wait before the order becomes active; 0 acts from the next present bar's open on.
        reduce_only: never opens, enlarges or turns a position.
        kind: "market" trades at the open. "limit" trades at `limit` or better. "stop" trades at the market once the
            price has gone against the order to `trigger`, "take_profit" once it has come its way; "stop_limit" becomes
            a limit there. "trailing_stop" is a stop that follows the price at a distance of `trail`, a fraction.
        in_force: of limits: "gtc" rests until it is filled, cancelled or expires; "ioc" takes what it can at its first
            open; "fok" takes all or nothing there; "post_only" never takes liquidity.
        hold_bars: the position that results is closed at the open this many bars after the fill (a time stop).
        expire_bars: bars after which what is left of the order expires.
        group: one cancels the others: the quantity that one order of the group trades is taken off the others.
        id: a name of your own, to cancel it by; empty: the exchange gives one.
    """

    symbol: str
    quantity: float
    stop: float | None = None
    target: float | None = None
    delay: int = 0
    reduce_only: bool = False
    kind: OrderKind = "market"
    limit: float | None = None
    trigger: float | None = None
    trail: float | None = None
    in_force: InForce = "gtc"
    hold_bars: int | None = None
    expire_bars: int | None = None
    group: str = ""
    id: str = ""


@dataclass(frozen=True)
class Target:
    """Bring a symbol to `exposure` (signed notional over equity), sized at the open where it trades, costs included."""

    symbol: str
    exposure: float
    delay: int = 0


@dataclass(frozen=True)
class Cancel:
    """Withdraw the order `id`."""

    id: str


OrderRequest = Order | Target | Cancel


def oco(*orders: Order, group: str) -> list[Order]:
    """`orders` as one group in which one cancels the others, as a stop and a take-profit around a position."""
    return [replace(order, group=group) for order in orders]


def resulting_position(order: Order, held: float, pending: Iterable[Order]) -> float:
    """Position in the order's symbol once it and the market orders before it have filled; exactly 0 where only rounding
    is left."""
    waiting = (other.quantity for other in pending if other.symbol == order.symbol and other.kind == "market")
    before = held + sum(waiting)
    after = before + order.quantity
    return 0.0 if abs(after) <= DUST * max(abs(before), abs(order.quantity)) else after


def bracket_side(order: Order, position: float) -> int:
    """Sign of the resulting `position` if `order` carries a bracket for it, else 0."""
    if order.stop is None and order.target is None:
        return 0
    return (position > 0.0) - (position < 0.0)


def objection(
    order: Order, marks: Mapping[str, float], position: float, ended: bool, rules: SymbolRules | None = None
) -> tuple[RejectionReason, str] | None:
    """Why `order` cannot be used, with the detail; None for a usable one.

    Args:
        marks: last close of every symbol of the market.
        position: what the order results in, see `resulting_position`.
        ended: the account has been liquidated.
    """
    if order.symbol not in marks:
        return "unknown_symbol", f"the market has {', '.join(marks)}"
    if ended:
        return "liquidated", "the account has been liquidated"
    if not math.isfinite(order.quantity) or order.quantity == 0.0:
        return "bad_quantity", f"quantity {order.quantity}"
    if order.delay < 0:
        return "bad_delay", f"delay {order.delay}"
    for name, bars in (("hold_bars", order.hold_bars), ("expire_bars", order.expire_bars)):
        if bars is not None and bars < 1:
            return "bad_duration", f"{name} {bars}"
    wrong = _price_objection(order)
    if wrong is not None:
        return "bad_price", wrong
    for name, level in (("stop", order.stop), ("target", order.target)):
        if level is not None and not (math.isfinite(level) and level > 0.0):
            return "bad_bracket", f"{name} {level}"
    mark = marks[order.symbol]
    if math.isnan(mark):
        return "no_price", f"{order.symbol} has no bar yet"
    wrong_side = _bracket_objection(order, entry_level(order, mark), position)
    if wrong_side is not None:
        return wrong_side
    level = order.limit if order.limit is not None else order.trigger if order.trigger is not None else mark
    return None if rules is None else _rules_objection(order, rules, level, position)


def entry_level(order: Order, mark: float) -> float:
    """Price at which `order` trades first if the market stands at `mark` and moves no further than it has to.

    A limit that the market has reached already trades at the market, a trigger that it has passed fires there. A stop
    that becomes a limit trades at the better of its two prices.
    """
    side = 1.0 if order.quantity > 0.0 else -1.0
    level = mark
    if order.trigger is not None:
        reached = side if order.kind != "take_profit" else -side
        level = reached * max(reached * order.trigger, reached * mark)
    if order.trail is not None:
        level = mark * (1.0 + side * order.trail)
    return level if order.limit is None else side * min(side * order.limit, side * level)


def _bracket_objection(order: Order, level: float, position: float) -> tuple[RejectionReason, str] | None:
    """A stop or target on the wrong side of `level`, where the order trades. Beside a position that ends flat they
    protect nothing and are ignored."""
    if position == 0.0:
        return None
    holder, where = ("long" if position > 0.0 else "short"), f"{level:.8g}, where the {order.kind} order trades"
    for name, price, sign in (("stop", order.stop, 1.0), ("target", order.target, -1.0)):
        if price is not None and sign * position * (level - price) <= 0.0:
            side = "below" if sign * position > 0.0 else "above"
            reason: RejectionReason = "stop_side" if name == "stop" else "target_side"
            return reason, f"{name} {price:.8g} of a {holder} position must be {side} {where}"
    return None


def _price_objection(order: Order) -> str | None:
    """What is wrong with the prices of an order of this kind."""
    if order.kind not in PRICES:
        return f"kind '{order.kind}'; use one of {', '.join(PRICES)}"
    for name in ("limit", "trigger", "trail"):
        value = getattr(order, name)
        if (value is None) == (name in PRICES[order.kind]):
            return f"a {order.kind} order {'needs a' if value is None else 'has no'} {name}"
        if value is not None and not (math.isfinite(value) and value > 0.0):
            return f"{name} {value}"
    if order.trail is not None and order.trail >= 1.0:
        return f"trail {order.trail}: give a fraction of the price below 1"
    if order.in_force not in ("gtc", "ioc", "fok", "post_only"):
        return f"in_force '{order.in_force}'; use one of gtc, ioc, fok, post_only"
    if order.in_force != "gtc" and order.limit is None:
        return f"in_force {order.in_force} is for limit orders"
    return None


def _rules_objection(
    order: Order, rules: SymbolRules, level: float, position: float
) -> tuple[RejectionReason, str] | None:
    """What the venue's rules say against an order that would trade at `level`."""
    for name in ("limit", "trigger", "stop", "target"):
        price = getattr(order, name)
        if price is not None and not on_step(price, rules.tick):
            return "off_tick", f"{name} {price:.12g} is not a multiple of the tick {rules.tick:.12g}"
    size = abs(order.quantity)
    closes = position == 0.0  # a remainder below the lot may always be closed
    if not closes and not on_step(size, rules.lot):
        return "off_lot", f"quantity {size:.12g} is not a multiple of the lot {rules.lot:.12g}"
    if not closes and size < rules.min_quantity:
        return "min_quantity", f"quantity {size:.12g} is below {rules.min_quantity:.12g}"
    if size > rules.max_quantity:
        return "max_quantity", f"quantity {size:.12g} is above {rules.max_quantity:.12g}"
    if not closes and not order.reduce_only and size * level < rules.min_notional:
        return "min_notional", f"worth {size * level:.8g}, the least is {rules.min_notional:.8g}"
    return None


def on_step(value: float, step: float) -> bool:
    """Whether `value` is a whole number of steps, up to the rounding of decimal fractions."""
    if step == 0.0:
        return True
    steps = value / step
    if not math.isfinite(steps):
        return False  # a value this large cannot be told from its neighbours
    return abs(steps - round(steps)) <= 1e-6 + 1e-12 * abs(steps)


RejectionReason = Literal[
    "unknown_symbol",  # the market has no such symbol
    "bad_quantity",  # zero, NaN or infinite
    "bad_delay",  # negative
    "bad_bracket",  # a stop or target that is no positive number
    "bad_price",  # a limit, trigger or trail that is missing, not wanted by this kind of order, or no positive number
    "bad_exposure",  # a target exposure that is not finite, or beyond the leverage cap
    "bad_duration",  # hold or expiry below one bar
    "off_tick",  # a price that is no multiple of the tick
    "off_lot",  # a quantity that is no multiple of the lot
    "min_quantity",  # below the venue's smallest order
    "max_quantity",  # above the venue's largest order
    "min_notional",  # worth less than the venue's smallest order
    "duplicate_id",  # an order with this id waits already
    "unknown_id",  # no order with this id waits
    "stop_side",  # a stop beyond the market: it would be hit at once
    "target_side",  # a target on the losing side
    "no_price",  # the symbol has not traded yet
    "liquidated",  # the account is over
    "window_end",  # no bar was left to fill it
    "delisted",  # the symbol's bars have ended
    "superseded",  # a later decision about the same symbol replaced it
    "cancelled",  # by a Cancel
    "expired",  # its time was up
    "reduce_only",  # it would have opened or enlarged a position (or the part of it that would have)
    "leverage_cap",  # the part that the margin did not allow
    "not_filled",  # the part of an immediate-or-cancel order that was not traded at once
    "not_filled_whole",  # a fill-or-kill order that could not be traded whole
    "would_take",  # a post-only order that would have taken liquidity
    "one_cancels_other",  # another order of its group traded
    "bracket_closed",  # stop, target or time closed the position that it was meant to change
    "position_changed",  # the position has turned so that the order's bracket would stand on the wrong side
]
