"""Hard limits in plain code. Every order is reviewed here after the models, and no model can get around it.

The guard reduces or drops orders and logs each clamp with its rule. Its own orders only close positions. It fails
closed: if a number that it needs is missing, or its own code fails, the order is dropped. Orders that close a position
are not limited in size; only unusable data and the number of orders can stop them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from cryptosentinel.guard.pending import Holding, OrderSchedule, is_certain
from cryptosentinel.guard.state import GuardState, state_from_json
from simulator.errors import DataError
from simulator.exchange.exchange_records import AccountView
from simulator.exchange.orders import Cancel, Order, OrderRequest
from simulator.exchange.rules import SymbolRules, down_to
from simulator.market.market import MarketView
from simulator.market.timeframes import HOUR_MS

_ROUNDING = 1e-12  # of exposures


@dataclass(frozen=True)
class GuardLimits:
    """Infinity is no limit.

    Attributes:
        max_exposure, max_gross_exposure, max_net_exposure: of one symbol, summed as absolute values (which is the
            leverage) and summed with their signs; fractions of the equity.
        max_orders, max_order_rate: orders of one review, and of the last `rate_hours`. Of the rate as many are kept
            back as there are positions to close; it must leave room for one order that opens and one that closes.
        max_drawdown, daily_loss: past these positions may only shrink.
        shutdown_drawdown: past this all is closed, and nothing opens any more, whatever the equity does.
        max_stale_bars: without a bar for so long a symbol's position may only shrink.
        price_band: limit, trigger, trail, stop and target may be this far from the last close, as a fraction of it.
        max_order_notional, max_symbol_notional: of one order and of one symbol's position, in quote currency.
    """

    max_exposure: float
    max_gross_exposure: float
    max_orders: int
    max_drawdown: float
    daily_loss: float
    max_stale_bars: int
    max_net_exposure: float
    max_order_rate: float
    rate_hours: float
    shutdown_drawdown: float
    price_band: float
    max_order_notional: float
    max_symbol_notional: float

    def __post_init__(self) -> None:
        for one in fields(self):
            if not getattr(self, one.name) > 0.0:
                raise DataError(f"the guard's {one.name} is {getattr(self, one.name)}; give a positive number.")
        if self.max_order_rate < 2.0:
            raise DataError("the guard's max_order_rate is below 2: a position could not be opened and closed again.")


@dataclass(frozen=True)
class Clamp:
    """One intervention: the rule, what was asked and what was let through, in signed base units."""

    rule: str
    symbol: str
    asked: float
    allowed: float
    detail: str


class Guard:
    """Reviews the orders of one account. Keeps what its limits over time need, see `GuardState`."""

    def __init__(self, limits: GuardLimits) -> None:
        self.limits = limits
        self._state = GuardState()

    def state(self) -> dict[str, Any]:
        """What it remembers, as JSON: a guard that `restore`s it goes on as this one."""
        return self._state.to_json()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave. Raises `UserError` for a damaged one and keeps what it remembers then."""
        self._state = state_from_json(state)

    def review(
        self, view: MarketView, account: AccountView, orders: Sequence[OrderRequest], sent: Sequence[Order] = ()
    ) -> tuple[list[Order], list[Clamp]]:
        """The orders that may be sent, and what was changed about the others. `sent` passed at this bar before.

        Only an `Order` can pass; a market order of 0 withdraws. Never raises.
        """
        try:
            self._state, passed, clamps = self._review(view, account, orders, sent)
        except Exception as error:  # noqa: BLE001  # whatever went wrong, nothing passes that was not looked at
            why = f"the review failed: {error!r}"[:200]
            return [], [_clamp("guard_error", request, 0.0, why) for request in orders]
        return passed, clamps

    def withdrawals(self, account: AccountView) -> list[Cancel]:
        """What to withdraw beside the orders of a review of this `account`: while positions may only shrink, all that
        waits and could open or enlarge one."""
        if self._only_shrink(self._state, account) is None:
            return []
        return [Cancel(order.id) for order in account.pending if not order.reduce_only]

    def _review(
        self, view: MarketView, account: AccountView, orders: Sequence[OrderRequest], sent: Sequence[Order]
    ) -> tuple[GuardState, list[Order], list[Clamp]]:
        state = self._state
        if account.drawdown >= self.limits.shutdown_drawdown:
            state = replace(state, shut=True)
        if not math.isfinite(account.equity) or account.equity <= 0:
            return state, [], [_clamp("no_equity", request, 0.0, f"equity is {account.equity}") for request in orders]
        state = state.observed(view.now, account.equity)
        frozen = self._only_shrink(state, account)
        schedule = OrderSchedule(view, account)
        for order in sent:
            schedule.add(order)
        passed: list[Order] = []
        clamps: list[Clamp] = []
        since = view.now - round(self.limits.rate_hours * HOUR_MS)
        used = state.sent_after(since)
        if state.shut:
            why = "the account was shut down and only closes"
            clamps += [_clamp("shutdown", request, 0.0, why) for request in orders]
            passed, closings = self._closings(account, sent, self.limits.max_order_rate - used)
            clamps += closings
            orders = ()
        for number, request in enumerate(orders):
            if not isinstance(request, Order):
                why = f"a {type(request).__name__} cannot be measured; send an Order, of 0 to withdraw"
                clamps.append(_clamp("not_an_order", request, 0.0, why))
                continue
            order = request
            if number >= self.limits.max_orders:
                clamps.append(_clamp("max_orders", order, 0.0, f"at most {self.limits.max_orders} orders a decision"))
                continue
            allowed, new_clamps = self._review_one(view, account, order, schedule, frozen)
            if allowed.quantity != 0.0 or (schedule.withdraws(order) and not new_clamps):
                wide, closes = schedule.open_after(allowed)
                if used + len(passed) + 1 + (0 if closes else wide) > self.limits.max_order_rate:
                    why = f"{used + len(passed)} orders in {self.limits.rate_hours:g} hours, {wide} symbols to close"
                    new_clamps = [_clamp("max_order_rate", order, 0.0, why)]
                else:
                    passed.append(allowed)
                    schedule.add(allowed)
            clamps += new_clamps
        return state.with_sent(view.now, len(passed), since), passed, clamps

    def _review_one(
        self, view: MarketView, account: AccountView, order: Order, schedule: OrderSchedule, frozen: str | None
    ) -> tuple[Order, list[Clamp]]:
        """What is left of `order`, with quantity 0 where nothing is, and what was changed about it."""
        nothing = replace(order, quantity=0.0)
        wrong = self._objection(view, order, schedule)
        if wrong is not None:
            return nothing, [_clamp(wrong[0], order, 0.0, wrong[1])]
        unit = schedule.unit(order)
        asked = order.quantity * unit
        course = schedule.course(order)
        if not all(map(math.isfinite, (asked, *(holding.base for held, _ in course for holding in held.values())))):
            why = f"quantity {order.quantity}, exposures {[holding.base for holding in course[0][0].values()]}"
            return nothing, [_clamp("not_a_number", order, 0.0, why)]
        rule = frozen
        if rule is None and not view.bars(order.symbol, self.limits.max_stale_bars).present.any():
            rule = "stale_data"
        if rule is None and order.reduce_only:
            rule = "reduce_only"
        sign, size, binding = math.copysign(1.0, asked), abs(asked), ""
        only_reduces = order.reduce_only
        if order.reduce_only and not is_certain(order):
            # The exchange lets it reduce what is there when it trades; it must be there at some moment.
            most = max(_reducible(held[order.symbol], sign) for held, _ in course)
            size, binding = min((size, ""), (most, rule or ""))
            account_rule = None if rule == "reduce_only" else rule
            for (held, _), holding in zip(course, schedule.course_with(order), strict=True):
                # Once it has filled, a market order that was to reduce the position may turn it.
                limit, limit_rule = self._limit(order, sign, held, account.equity, account_rule)
                if holding.largest > max(limit, held[order.symbol].largest) + _ROUNDING:
                    size, binding = 0.0, limit_rule
        else:
            # The order must fit when it fills and beside everything that fills after it.
            for held, in_group in course:
                most, limit_rule, reducing = self._most(order, sign * size, held, in_group, account.equity, rule)
                only_reduces |= reducing
                if most < size:
                    size, binding = most, limit_rule
        allowed = sign * size
        if abs(allowed - asked) <= 1e-12 * max(1.0, abs(asked)):
            if only_reduces == order.reduce_only:
                return order, []
            why = "told to reduce only: another order may close the position before it"
            return replace(order, reduce_only=True), [_clamp("reduce_only", order, order.quantity, why)]
        quantity, before = allowed / unit, course[0][0][order.symbol].base
        if before + allowed != 0.0 and math.isfinite(quantity):  # what does not close must be whole lots
            lot = account.rules.get(order.symbol, SymbolRules()).lot
            quantity = math.copysign(down_to(abs(quantity), lot), quantity)
        detail = f"exposure {before + asked:+.3f} asked, {before + allowed:+.3f} allowed"
        return replace(order, quantity=quantity, reduce_only=only_reduces), [_clamp(binding, order, quantity, detail)]

    def _objection(self, view: MarketView, order: Order, schedule: OrderSchedule) -> tuple[str, str] | None:
        """Why `order` cannot be measured at all, whatever its size."""
        if order.symbol not in view.symbols:
            return "unknown_symbol", f"there are {', '.join(view.symbols)}"
        close, band = schedule.close_of(order.symbol), self.limits.price_band
        for name in ("limit", "trigger", "trail", "stop", "target"):
            price = getattr(order, name)
            if price is None:
                continue
            if not (math.isfinite(price) and price > 0.0):
                return "not_a_number", f"{name} {price}"
            away = price if name == "trail" else abs(price / close - 1.0)
            if not away <= band and band < math.inf:
                return (
                    "price_band",
                    f"{name} {price:.6g} is {100 * away:.3g} % from {close:.6g}, {100 * band:g} % may be",
                )
        return None

    def _most(
        self, order: Order, change: float, held: dict[str, Holding], in_group: float, equity: float, rule: str | None
    ) -> tuple[float, str, bool]:
        """How much of a `change` of exposure, and more of its sign, may be made beside `held`, the rule that says so,
        and whether the order must be told to reduce only. A position that lies beyond a limit (the price moved) may
        stay and shrink, it may not grow."""
        own, sign = held[order.symbol], math.copysign(1.0, change)
        waiting, reducing = own.side(sign), False
        limit, name = self._limit(order, sign, held, equity, rule)
        closing = 0.0
        if is_certain(order):
            closing, reached = max(-sign * own.base, 0.0), own.reached(sign)
            most = max(limit - waiting, reached, 0.0) - reached
            # Beside orders that only reduce, what is meant to close could find the position closed and turn it.
            reducing = most < min(closing, abs(change)) - _ROUNDING
            most = max(most, closing)
        else:
            most = max(in_group, limit - max(sign * own.base, 0.0) - (waiting - in_group), 0.0)
        cap = max(self.limits.max_order_notional / equity, closing)
        return (most, name, reducing) if most <= cap else (cap, "max_order_notional", reducing)

    def _limit(
        self, order: Order, sign: float, held: dict[str, Holding], equity: float, rule: str | None
    ) -> tuple[float, str]:
        """How far the order's symbol may lie on the side of `sign` beside the others, and the rule that says so."""
        if rule is not None:
            return 0.0, rule
        others = [holding for symbol, holding in held.items() if symbol != order.symbol]
        net = self.limits.max_net_exposure - sum(sign * one.base + one.side(sign) for one in others)
        # What rests counts from flat (see `Holding.largest`), but for the net exposure from the position.
        net += 0.0 if is_certain(order) else max(-sign * held[order.symbol].base, 0.0)
        return min(
            (self.limits.max_exposure, "max_exposure"),
            (max(0.0, self.limits.max_gross_exposure - sum(one.largest for one in others)), "max_gross_exposure"),
            (max(0.0, net), "max_net_exposure"),
            (self.limits.max_symbol_notional / equity, "max_symbol_notional"),
        )

    def _closings(self, account: AccountView, sent: Sequence[Order], room: float) -> tuple[list[Order], list[Clamp]]:
        """At most `room` market orders that close what is held, but for what is being closed already."""
        under_way = {(order.symbol, order.quantity) for order in account.pending if order.kind == "market"}
        done = {order.symbol for order in sent}
        orders = [
            Order(symbol, -held, reduce_only=True)
            for symbol, held in account.positions.items()
            if held != 0.0 and math.isfinite(held) and symbol not in done and (symbol, -held) not in under_way
        ]
        orders = orders[: max(0, int(min(room, len(orders))))]
        why = f"closed: the drawdown reached {100 * self.limits.shutdown_drawdown:g} %"
        return orders, [Clamp("shutdown", order.symbol, 0.0, order.quantity, why) for order in orders]

    def _only_shrink(self, state: GuardState, account: AccountView) -> str | None:
        if state.shut:
            return "shutdown"
        # Written so that a NaN counts as beyond the limit.
        if not account.drawdown < self.limits.max_drawdown:
            return "max_drawdown"
        if state.day_equity is not None and not account.equity > state.day_equity * (1.0 - self.limits.daily_loss):
            return "daily_loss"
        return None


def _reducible(holding: Holding, sign: float) -> float:
    """How much of what is or may come to be held an order on the side of `sign` can close."""
    return max(-sign * holding.base, 0.0) + holding.side(-sign)


def _clamp(rule: str, request: OrderRequest, allowed: float, detail: str) -> Clamp:
    asked = getattr(request, "quantity", None)
    return Clamp(rule, str(getattr(request, "symbol", "")), asked if isinstance(asked, float) else 0.0, allowed, detail)
