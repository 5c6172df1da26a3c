"""Hard limits in plain code. Every order passes here after all models have spoken, and none can pass it.

The guard only ever shrinks: it lessens or drops orders and logs each clamp with its rule. It fails closed: where a
number that it needs is missing, the order is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from simulator.market import MarketView
from simulator.orders import Order
from simulator.records import AccountView
from simulator.rules import SymbolRules, down_to

DAY_MS = 86_400_000


@dataclass(frozen=True)
class GuardLimits:
    """All as fractions of equity, but for the counts. Past `max_drawdown` or `daily_loss` positions may only shrink."""

    max_exposure: float = 1.0
    max_gross_exposure: float = 1.0
    max_orders: int = 12
    max_drawdown: float = 0.5
    daily_loss: float = 0.2
    max_stale_bars: int = 3


@dataclass(frozen=True)
class Clamp:
    """One intervention: the rule, what was asked and what was let through, in signed base units."""

    rule: str
    symbol: str
    asked: float
    allowed: float
    detail: str


class Guard:
    """Reviews the orders of one account. Keeps the equity from which each day's loss is measured: the last one reviewed
    before the day, and on the first day the first."""

    def __init__(self, limits: GuardLimits) -> None:
        self.limits = limits
        self._day: int | None = None
        self._day_equity = math.nan
        self._last_equity = math.nan

    def review(
        self, view: MarketView, account: AccountView, orders: Sequence[Order], sent: Sequence[Order] = ()
    ) -> tuple[list[Order], list[Clamp]]:
        """The orders that may be sent, and what was changed about the others. `sent` passed at this bar before."""
        if not math.isfinite(account.equity) or account.equity <= 0:
            return [], [_clamp("no_equity", order, 0.0, f"equity is {account.equity}") for order in orders]
        self._observe(view.now, account.equity)
        frozen = self._only_shrink(account)
        schedule = _Schedule(view, account)
        for order in sent:
            schedule.add(order)
        passed: list[Order] = []
        clamps: list[Clamp] = []
        for number, order in enumerate(orders):
            if number >= self.limits.max_orders:
                clamps.append(_clamp("max_orders", order, 0.0, f"at most {self.limits.max_orders} orders a decision"))
                continue
            quantity, new_clamps = self._review_one(view, account, order, schedule, frozen)
            clamps += new_clamps
            withdraws = order.quantity == 0.0 and any(other.symbol == order.symbol for other in account.pending)
            if quantity != 0.0 or withdraws:
                passed.append(order if quantity == order.quantity else replace(order, quantity=quantity))
                schedule.add(passed[-1])
        return passed, clamps

    def _review_one(
        self, view: MarketView, account: AccountView, order: Order, schedule: _Schedule, frozen: str | None
    ) -> tuple[float, list[Clamp]]:
        if order.symbol not in view.symbols:
            return 0.0, [_clamp("unknown_symbol", order, 0.0, f"there are {', '.join(view.symbols)}")]
        asked = order.quantity * schedule.per_unit(order.symbol)
        moments = schedule.exposures_from(order)
        if not all(map(math.isfinite, (asked, *(value for held in moments for value in held.values())))):
            return 0.0, [_clamp("not_a_number", order, 0.0, f"quantity {order.quantity}, exposures {moments[0]}")]
        rule = frozen
        if rule is None and not view.bars(order.symbol, self.limits.max_stale_bars).present.any():
            rule = "stale_data"
        if rule is None and order.reduce_only:
            rule = "reduce_only"
        allowed, binding = asked, ""
        # The order must fit when it fills and beside everything that fills after it.
        for held in moments:
            low, high, limit_rule = self._range(order.symbol, held, rule)
            fitting = min(max(allowed, low), high)
            if fitting != allowed:
                allowed, binding = fitting, limit_rule
        if abs(allowed - asked) <= 1e-12 * max(1.0, abs(asked)):
            return order.quantity, []
        quantity, before = allowed / schedule.per_unit(order.symbol), moments[0][order.symbol]
        if before + allowed != 0.0 and math.isfinite(quantity):  # what does not close must be whole lots
            lot = account.rules.get(order.symbol, SymbolRules()).lot
            quantity = math.copysign(down_to(abs(quantity), lot), quantity)
        detail = f"exposure {before + asked:+.3f} asked, {before + allowed:+.3f} allowed"
        return quantity, [_clamp(binding, order, quantity, detail)]

    def _range(self, symbol: str, held: dict[str, float], rule: str | None) -> tuple[float, float, str]:
        """Lowest and highest change of exposure that may be made beside `held`, and the rule that says so. 0 always
        may: a position that lies beyond a limit (the price moved) may stay, it may not grow."""
        before = held[symbol]
        limit = 0.0
        if rule is None:
            others = sum(abs(value) for other, value in held.items() if other != symbol)
            room = max(0.0, self.limits.max_gross_exposure - others)
            limit, rule = min((self.limits.max_exposure, "max_exposure"), (room, "max_gross_exposure"))
        return min(-limit, before) - before, max(limit, before) - before, rule

    def _only_shrink(self, account: AccountView) -> str | None:
        # Written so that a NaN counts as beyond the limit.
        if not account.drawdown < self.limits.max_drawdown:
            return "max_drawdown"
        if not account.equity > self._day_equity * (1.0 - self.limits.daily_loss):
            return "daily_loss"
        return None

    def _observe(self, now: int, equity: float) -> None:
        day = now // DAY_MS
        if day != self._day:
            self._day_equity = equity if self._day is None else self._last_equity
            self._day = day
        self._last_equity = equity


class _Schedule:
    """What the account holds, and what it will hold as its waiting orders fill, in exposures at the last closes."""

    def __init__(self, view: MarketView, account: AccountView) -> None:
        self._view = view
        self._equity = account.equity
        self._held = {symbol: self._exposure(symbol, account.positions.get(symbol, 0.0)) for symbol in view.symbols}
        self._waiting = list(account.pending)
        self._new: list[Order] = []

    def per_unit(self, symbol: str) -> float:
        """Exposure of one base unit; NaN where there is no price."""
        price = self._view.last_close(symbol)
        return price / self._equity if price > 0 else math.nan

    def add(self, order: Order) -> None:
        """Count an order that was let through. Those of its symbol that waited from before are superseded by it."""
        self._waiting = self._others_than(order.symbol)
        self._new.append(order)

    def exposures_from(self, order: Order) -> list[dict[str, float]]:
        """The exposures at each moment from that on at which `order` fills, without itself."""
        beside = [*self._others_than(order.symbol), *self._new]
        moments = sorted({order.delay, *(other.delay for other in beside if other.delay > order.delay)})
        result = []
        for moment in moments:
            held = dict(self._held)
            for other in beside:
                if other.delay <= moment:
                    held[other.symbol] += self._exposure(other.symbol, other.quantity)
            result.append(held)
        return result

    def _others_than(self, symbol: str) -> list[Order]:
        return [other for other in self._waiting if other.symbol != symbol]

    def _exposure(self, symbol: str, quantity: float) -> float:
        return 0.0 if quantity == 0.0 else quantity * self.per_unit(symbol)


def _clamp(rule: str, order: Order, allowed: float, detail: str) -> Clamp:
    return Clamp(rule, order.symbol, order.quantity, allowed, detail)
