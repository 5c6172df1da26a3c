"""How far the positions of an account can get by the orders that are open; the guard applies its limits to that.

Nobody knows at the close of a bar which orders the next bars fill: a coin may have no bar, the volume may allow a part,
an order may arrive late, a stop may fire first. So every open order may fill by any part of it, at any time and in any
order, and each may fill without the others. `Reach` is the interval that a position can then get to. A reduction that
is not filled yet makes no room for an increase, and the limits hold for any subset of the orders that fills.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from simulator.exchange.exchange_records import AccountView
from simulator.exchange.orders import Cancel, Order, OrderRequest, objection, resulting_position
from simulator.market.market import MarketView

_ROUNDING = 1e-12  # of exposures


class Reach(NamedTuple):
    """Signed exposures of one symbol, as fractions of the equity: what is held, and how far it can fall and rise.

    What rests (any order but a plain market order) counts from flat as well as from the position: a stop may close the
    position before it. A plain market order counts from the position: a stop that fires before it cancels it. A
    position that a bracket or a time stop may close can become flat, so as a hedge it makes no room.
    """

    low: float
    held: float
    high: float

    @property
    def largest(self) -> float:
        """Largest |exposure|."""
        return max(self.high, -self.low)

    def far(self, sign: float) -> float:
        """How far it can get on the side of `sign`; negative: only so near."""
        return self.high if sign > 0.0 else -self.low

    @property
    def path(self) -> float:
        """The most that can still be traded until the symbol is flat again."""
        held = abs(self.held)
        return held + 2.0 * (max(self.high, 0.0) - max(self.held, 0.0) + max(-self.low, 0.0) - max(-self.held, 0.0))


class Level(NamedTuple):
    """How an order's size adds to the reach on its own side: `free` of it adds nothing, since another of its group is
    as large; the rest adds from `start` on, up to `end`."""

    start: float
    end: float = math.inf
    free: float = 0.0


def is_certain(order: Order) -> bool:
    """Whether `order` is a market order that nothing but a bracket can cancel. One of a group may be cancelled by
    another."""
    return order.kind == "market" and not order.group


def closing_orders(account: AccountView) -> list[OrderRequest]:
    """Requests that withdraw what waits and close what is held, at the market. A closing order that is under way stays:
    a new one would supersede it, and at a slow venue the next one that, before either has arrived."""
    requests: list[OrderRequest] = [Cancel(order.id) for order in account.pending if order.kind != "market"]
    for symbol, held in account.positions.items():
        waiting = [one for one in account.pending if one.symbol == symbol and one.kind == "market"]
        closing = math.fsum(one.quantity for one in waiting if one.reduce_only and one.quantity * held < 0.0)
        if held == 0.0 or not math.isfinite(held):
            requests += [Order(symbol, 0.0)] if waiting else []
        elif abs(closing) < abs(held) * (1.0 - _ROUNDING) or not all(one.reduce_only for one in waiting):
            requests.append(Order(symbol, -held, reduce_only=True))
    return requests


class OrderSchedule:
    """The account with its waiting orders and those that were let through now, valued at the last closes.

    Orders of a group count as their largest, a side each. An order that the exchange would refuse as it is may or may
    not stand, so what it would supersede counts as well.
    """

    def __init__(self, view: MarketView, account: AccountView) -> None:
        self._account = account
        self._equity = account.equity
        self._closes = {symbol: view.last_close(symbol) for symbol in view.symbols}
        self._held = {
            symbol: _exposure(account.positions.get(symbol, 0.0), self._at_close(symbol)) for symbol in view.symbols
        }
        self._waiting = list(account.pending)
        self._new: list[Order] = []
        self._doubtful: list[Order] = []

    def unit(self, order: Order) -> float:
        """Exposure of one base unit of `order`, at the last close or where it would open a position if that costs
        more; NaN without a price."""
        close = self._at_close(order.symbol)
        if order.kind == "market" or order.reduce_only:
            return close
        return max(close, *(price / self._equity for price in (order.limit, order.trigger, 0.0) if price is not None))

    def withdraws(self, order: Order) -> bool:
        """Whether `order` is a market order of nothing that takes back market orders from before."""
        return (
            order.kind == "market"
            and order.quantity == 0.0
            and any(other.symbol == order.symbol and other.kind == "market" for other in self._waiting)
        )

    def add(self, order: Order) -> None:
        """Count an order that was let through. It supersedes what the exchange would supersede for it."""
        if not self.is_refused(order) or (order.quantity == 0.0 and order.kind == "market"):
            self._waiting = self._left(order)
            self._new.append(order)
        else:
            self._doubtful.append(order)

    def surely(self, order: Order, sign: float) -> float:
        """How far the order's symbol can get on the side of `sign` without it and without what may be refused."""
        own = [one for one in (*self._left(order), *self._new) if one.symbol == order.symbol]
        return self._reach(order.symbol, own, False)[0].far(sign)

    def reaches(self, beside: Order | None = None, filled: bool = False) -> dict[str, Reach]:
        """How far each symbol can get.

        Args:
            beside: an order that is not counted, but what it supersedes is left out.
            filled: as if all plain market orders had filled whole.
        """
        orders = [*(self._waiting if beside is None else self._left(beside)), *self._new, *self._doubtful]
        by_symbol: dict[str, list[Order]] = {symbol: [] for symbol in self._held}
        for order in orders:
            if order.symbol in by_symbol:
                by_symbol[order.symbol].append(order)
        return {symbol: self._reach(symbol, own, filled)[0] for symbol, own in by_symbol.items()}

    def base_of(self, order: Order, filled: bool = False) -> tuple[Reach, Level]:
        """The reach of the order's symbol with an `order` of no size in it, and how its size adds to that."""
        own = [one for one in (*self._left(order), *self._new, *self._doubtful) if one.symbol == order.symbol]
        reach, below, above = self._reach(order.symbol, own, filled, order)
        sign = math.copysign(1.0, order.quantity)
        in_group = 0.0
        if order.group and not order.reduce_only:
            sure = [one for one in own if one not in self._doubtful]
            alike = [
                abs(self._change(one))
                for one in sure
                if one.group == order.group and not one.reduce_only and one.quantity * order.quantity > 0.0
            ]
            in_group = max(alike, default=0.0)
        return reach, (above if sign > 0.0 else below)._replace(free=in_group)

    def reducible(self, order: Order) -> float:
        """How much of what is or may come to be held an order on its side can close."""
        own = [one for one in (*self._left(order), *self._new, *self._doubtful) if one.symbol == order.symbol]
        reach = self._reach(order.symbol, own, False)[0]
        return max(reach.far(-math.copysign(1.0, order.quantity)), 0.0)

    def goal(self, order: Order) -> float:
        """Position in base units once the plain market orders before `order` have filled whole."""
        position = self._account.positions.get(order.symbol, 0.0)
        for one in (*self._left(order), *self._new):
            if one.symbol == order.symbol and is_certain(one):
                position = _filled(position, one.quantity, one.reduce_only)
        return position

    def queued(self, symbol: str) -> float:
        """Signed base units of the market orders that wait for a symbol from before."""
        return math.fsum(one.quantity for one in self._waiting if one.symbol == symbol and one.kind == "market")

    def is_refused(self, order: Order) -> bool:
        """Whether the exchange would refuse `order` as it is, or could: it names those without an id `#0`, `#1`, ..."""
        account = self._account
        taken = {one.id for one in (*self._waiting, *self._new, *self._doubtful)} - {""}
        if order.id.startswith("#") or order.id in taken:
            return True
        held = account.positions.get(order.symbol, 0.0)
        position = resulting_position(order, held, (*self._left(order), *self._new))
        rules = account.rules.get(order.symbol)
        return objection(order, account.mark, position, account.liquidated, rules) is not None

    def _reach(
        self, symbol: str, orders: Sequence[Order], filled: bool, candidate: Order | None = None
    ) -> tuple[Reach, Level, Level]:
        """The reach by `orders` of one symbol, and how a sale and a purchase of the candidate's kind add to it."""
        held = self._held[symbol]
        account = self._account
        closable = (
            account.stop.get(symbol) is not None
            or account.target.get(symbol) is not None
            or symbol in account.time_stops
            or (candidate is not None and candidate.quantity != 0.0 and _may_close(candidate))
        )
        # By side (False: sales, True: purchases): plain market orders, what rests, and what only reduces.
        market, resting, easing = [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]
        groups: dict[tuple[bool, str], float] = {}
        for order in orders:
            if order.quantity == 0.0:
                continue  # it only withdraws
            change = self._change(order)
            closable |= _may_close(order)
            if not math.isfinite(change):
                held = math.nan
            rises, size = change > 0.0, abs(change)
            if filled and is_certain(order):
                held = _filled(held, change, order.reduce_only)
            elif order.reduce_only:
                easing[rises] += size
            elif order.group:
                groups[rises, order.group] = max(groups.get((rises, order.group), 0.0), size)
            elif order.kind == "market":
                market[rises] += size
            else:
                resting[rises] += size
        for (rises, _), size in groups.items():
            resting[rises] += size
        rests = candidate is not None and not candidate.reduce_only and not is_certain(candidate)
        rising = candidate is not None and candidate.quantity > 0.0
        above = _edges(held, market[1], resting[1], easing[1], closable, rests and rising)
        below = _edges(-held, market[0], resting[0], easing[0], closable, rests and not rising)
        return Reach(-max(below), held, max(above)), _level(candidate, below, -held), _level(candidate, above, held)

    def _left(self, order: Order) -> list[Order]:
        """What waits from before beside `order`. A market order supersedes those of its symbol."""
        if order.kind != "market":
            return self._waiting
        return [one for one in self._waiting if one.symbol != order.symbol or one.kind != "market"]

    def _at_close(self, symbol: str) -> float:
        price = self._closes.get(symbol, math.nan)
        return price / self._equity if price > 0.0 else math.nan

    def _change(self, order: Order) -> float:
        return _exposure(order.quantity, self.unit(order))


def _edges(
    held: float, market: float, resting: float, easing: float, closable: bool, rests: bool
) -> tuple[float, float, float]:
    """How far a position of `held` can rise: as it is; after what only reduces has closed what it can of a position on
    the other side; and, where something may close the position or rests, from flat by what rests."""
    whole = held + market + resting
    eased = held + min(max(-held, 0.0), easing) + market + resting
    flat = max(held, 0.0) + resting if closable or rests or resting > 0.0 else held
    return whole, eased, flat


def _level(candidate: Order | None, edges: tuple[float, float, float], held: float) -> Level:
    """How a candidate adds to `edges`: one that only reduces lets others count from nearer to flat, and a plain market
    order is cancelled by what makes the position flat."""
    if candidate is not None and candidate.reduce_only:
        return Level(edges[1], edges[0] + max(-held, 0.0))
    return Level(max(edges[:2]) if candidate is None or is_certain(candidate) else max(edges))


def _may_close(order: Order) -> bool:
    return order.stop is not None or order.target is not None or order.hold_bars is not None


def _exposure(quantity: float, unit: float) -> float:
    return 0.0 if quantity == 0.0 else quantity * unit


def _filled(before: float, change: float, reduce_only: bool) -> float:
    after = before + change
    if not reduce_only:
        return after
    if before * change >= 0.0:
        return before
    return 0.0 if before * after < 0.0 and abs(after) > _ROUNDING else after
