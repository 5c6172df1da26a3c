"""The exposures that an account will or could have once its orders fill; the guard applies its limits to them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from simulator.exchange.exchange_records import AccountView
from simulator.exchange.orders import Order, objection, resulting_position
from simulator.market.market import MarketView

_ROUNDING = 1e-12  # of exposures


class Holding(NamedTuple):
    """One symbol at one moment, in fractions of the equity.

    Attributes:
        base: signed exposure as the position and the market orders that were let through make it.
        low, high: where it may lie instead, if orders that only reduce close the position before a market order comes.
        up, down: what orders that may or may not fill could add to it and take from it, both from 0 up.
        stuck: largest |exposure| on the way where the symbol has no bar now, so that reductions may not fill; else 0.
        eased_up, eased_down: whether orders that only reduce may buy, or sell, before a market order does.
    """

    base: float
    low: float
    high: float
    up: float
    down: float
    stuck: float
    eased_up: bool
    eased_down: bool

    @property
    def largest(self) -> float:
        """Largest |exposure| that can come of it. A stop may close the position before what rests fills, so the
        position makes no room for that."""
        return max(max(self.high, 0.0) + self.up, max(-self.low, 0.0) + self.down, self.stuck)

    def reached(self, sign: float) -> float:
        """From where a market order on the side of `sign` counts: how far the position may lie on that side (negative:
        on the other)."""
        edge, eased = (self.high, self.eased_up) if sign > 0.0 else (-self.low, self.eased_down)
        return max(edge, 0.0) if eased else edge

    def side(self, sign: float) -> float:
        """What could be added on the side of `sign`."""
        return self.up if sign > 0.0 else self.down


def is_certain(order: Order) -> bool:
    """Whether `order` fills as soon as it acts and its symbol trades. One of a group may be cancelled by another."""
    return order.kind == "market" and not order.group


class OrderSchedule:
    """The account, its waiting orders and those that were let through now, valued at the last closes.

    Orders of a group count as their largest. What waits from an earlier decision, or the exchange would refuse as it
    is, counts where it adds to a position and makes no room where it reduces one. What only reduces never adds.
    """

    def __init__(self, view: MarketView, account: AccountView) -> None:
        self._account = account
        self._equity = account.equity
        self._closes = {symbol: view.last_close(symbol) for symbol in view.symbols}
        self._view = view
        self._trades: dict[str, bool] = {}  # by symbol, as it was asked for
        self._held = {
            symbol: self._exposure(account.positions.get(symbol, 0.0), self._at_close(symbol))
            for symbol in view.symbols
        }
        self._waiting = list(account.pending)
        self._new: list[Order] = []
        self._doubtful: list[Order] = []

    def unit(self, order: Order) -> float:
        """Exposure of one base unit of `order`, at the last close or where it would open a position if that is dearer;
        NaN without a price."""
        close = self._at_close(order.symbol)
        if order.kind == "market" or order.reduce_only:
            return close
        return max(close, *(price / self._equity for price in (order.limit, order.trigger, 0.0) if price is not None))

    def close_of(self, symbol: str) -> float:
        """The last close, NaN before the first."""
        return self._closes[symbol]

    def _is_traded(self, symbol: str) -> bool:
        """Whether there is a bar of `symbol` now."""
        if symbol not in self._trades:
            self._trades[symbol] = bool(self._view.bars(symbol, 1).present.any())
        return self._trades[symbol]

    def withdraws(self, order: Order) -> bool:
        """Whether `order` is a market order of nothing that takes back market orders from before."""
        return (
            order.kind == "market"
            and order.quantity == 0.0
            and any(other.symbol == order.symbol and other.kind == "market" for other in self._waiting)
        )

    def add(self, order: Order) -> None:
        """Count an order that was let through. It supersedes what the exchange would supersede for it."""
        beside, account = self._left(order), self._account
        held = account.positions.get(order.symbol, 0.0)
        position = resulting_position(order, held, (*beside, *self._new))
        wrong = objection(order, account.mark, position, account.liquidated, account.rules.get(order.symbol))
        if wrong is None or (order.quantity == 0.0 and order.kind == "market"):
            self._waiting = beside
            self._new.append(order)
        else:
            self._doubtful.append(order)

    def course(self, order: Order) -> list[tuple[dict[str, Holding], float]]:
        """What stands beside `order` at each moment from that on at which it acts.

        With each: the largest order of its group on its side, which it need only exceed to count for more.
        """
        waiting = self._beside(order)
        return [
            (self._holdings(waiting, self._new, moment), self._in_group(order, waiting, moment))
            for moment in self._moments(order, waiting)
        ]

    def course_with(self, order: Order) -> list[Holding]:
        """The holdings of the order's symbol at the same moments with `order` among the others."""
        waiting = self._beside(order)
        return [
            self._holdings(waiting, [*self._new, order], moment)[order.symbol]
            for moment in self._moments(order, waiting)
        ]

    def _moments(self, order: Order, waiting: Sequence[Order]) -> list[int]:
        later = (other.delay for other in (*waiting, *self._new) if other.delay > order.delay)
        return sorted({order.delay, *later})

    def open_after(self, order: Order) -> tuple[int, bool]:
        """How many symbols hold or may come to hold something once all has filled, `order` included, and whether it
        is a plain market order that leaves its own with nothing."""
        waiting = self._beside(order)
        last = max(other.delay for other in (order, *waiting, *self._new))
        after = self._holdings(waiting, [*self._new, order], last)
        empty = {
            symbol: max(abs(one.base), one.up, one.down) <= 1e-9 * max(1.0, abs(self._held[symbol]))
            for symbol, one in after.items()
        }
        return sum(not one for one in empty.values()), is_certain(order) and empty[order.symbol]

    def _holdings(self, waiting: Sequence[Order], new: Sequence[Order], moment: int) -> dict[str, Holding]:
        unsure = [one for one in (*waiting, *(one for one in new if not is_certain(one))) if one.delay <= moment]
        eased = {(one.symbol, one.quantity > 0.0) for one in unsure if one.reduce_only}
        base, stuck = dict(self._held), dict.fromkeys(self._held, 0.0)
        edges = {(symbol, rises): held for symbol, held in base.items() for rises in (False, True)}
        for order in sorted((one for one in new if is_certain(one)), key=lambda one: one.delay):
            if order.delay > moment:
                continue
            symbol, change = order.symbol, self._change(order)
            if not self._is_traded(symbol):
                stuck[symbol] = max(stuck[symbol], abs(base[symbol]))
            base[symbol] = _filled(base[symbol], change, order.reduce_only)
            for rises in (False, True):
                edge = edges[symbol, rises]
                if rises == (change > 0.0) and (symbol, rises) in eased and not order.reduce_only:
                    edge = max(edge, 0.0) if rises else min(edge, 0.0)
                edges[symbol, rises] = _filled(edge, change, order.reduce_only)
        groups: dict[tuple[str, bool, str | int], float] = {}
        for number, order in enumerate(unsure):
            change = self._change(order)
            if order.reduce_only or order.symbol not in base:
                continue
            if not math.isfinite(change):
                base[order.symbol] = math.nan
            key = (order.symbol, change > 0.0, order.group or number)
            groups[key] = max(groups.get(key, 0.0), abs(change))
        ends = dict.fromkeys(edges, 0.0)
        for (symbol, rises, _), size in groups.items():
            ends[symbol, rises] += size
        return {
            symbol: Holding(
                held, edges[symbol, False], edges[symbol, True], ends[symbol, True], ends[symbol, False],
                stuck[symbol], (symbol, True) in eased, (symbol, False) in eased,
            )
            for symbol, held in base.items()
        }  # fmt: skip

    def _in_group(self, order: Order, waiting: Sequence[Order], moment: int) -> float:
        if not order.group:
            return 0.0
        alike = (
            abs(self._change(other))
            for other in (*waiting, *self._new)
            if other.group == order.group and other.symbol == order.symbol and other.delay <= moment
            and not other.reduce_only and other.quantity * order.quantity > 0.0
        )  # fmt: skip
        return max(alike, default=0.0)

    def _beside(self, order: Order) -> list[Order]:
        """What may or may not fill beside `order`. A market order supersedes those of its symbol from before."""
        return [*self._left(order), *self._doubtful]

    def _left(self, order: Order) -> list[Order]:
        if order.kind != "market":
            return self._waiting
        return [one for one in self._waiting if one.symbol != order.symbol or one.kind != "market"]

    def _at_close(self, symbol: str) -> float:
        price = self._closes.get(symbol, math.nan)
        return price / self._equity if price > 0.0 else math.nan

    def _change(self, order: Order) -> float:
        return self._exposure(order.quantity, self.unit(order))

    @staticmethod
    def _exposure(quantity: float, unit: float) -> float:
        return 0.0 if quantity == 0.0 else quantity * unit


def _filled(before: float, change: float, reduce_only: bool) -> float:
    after = before + change
    if not reduce_only:
        return after
    if before * change >= 0.0:
        return before
    return 0.0 if before * after < 0.0 and abs(after) > _ROUNDING else after
