"""Hard limits in plain code. Every order is reviewed here after the models, and no model can get around it.

The guard reduces or drops orders and logs each clamp with its rule. Its own orders only close positions, or continue
with
what it held back. It fails closed: if a number that it needs is missing, the order is dropped. If its own code fails,
nothing that was asked passes, all positions are closed, and a clamp without a symbol, `guard_error`, is the alarm.

**What is promised.** Take the closes and the equity at a review. Any part of the open orders may fill from then on,
in whatever order and however late, the positions valued at these closes over this equity are within the limits of size
(one symbol, gross) - or, where they lay beyond one already, because prices or the equity have moved, no
further out than what was open before could bring them. An order at a price worse than the close (a stop, a limit
through the market) is valued at its own price. So a limit is exceeded by the prices' and the equity's own move since
the order was let through and by nothing else. Liquidations by the venue are not the guard's.

**Room comes from fills.** A reduction makes room only once it has filled (`cryptosentinel.guard.pending`). What would
fit if the plain market orders that are under way had filled is not lost: like a desk that works the one leg and follows
with the other, the guard holds that part back and sends it at the following closes as far as the fills have made room
(`watch`), until the next decision about the symbol. So a rotation from one coin into another takes a bar more than its
reductions take, and never carries both. A plain clamp would lose the rotation to the next decision; sending both legs
at once is right only if both fill, which is what thin volume, gaps and latency take away.

Closing a position is free: only unusable data and the number of orders of a decision can stop it.

**Losses.** Past `daily_loss` or `max_drawdown`, looked at on every bar, all positions are closed with orders at the
market that continue until the account is flat, and nothing opens until the pause is over. A loss is limited to
what it is at the close where it is seen, and what the prices do until the closing orders have filled.

**Turnover.** What was traded in the last 24 hours, what the open orders can trade, and closing it all again, is at most
`max_daily_turnover` times the equity; closing what is held is never stopped by it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from cryptosentinel.guard.limits import (
    MOST_ORDERS,
    STALE_BARS,
    Clamp,
    GuardLimits,
    GuardState,
    HeldBack,
    state_from_json,
)
from cryptosentinel.guard.pending import OrderSchedule, Reach, closing_orders, is_certain
from simulator.exchange.exchange_records import AccountView
from simulator.exchange.orders import Cancel, Order, OrderRequest
from simulator.exchange.rules import SymbolRules, down_to
from simulator.market.market import MarketView
from simulator.market.timeframes import format_time

_ROUNDING = 1e-12  # of exposures
_NOTHING_MORE = 1e-9  # of an order: a smaller rest is not worth another


class _Sized(NamedTuple):
    """How much of an order (exposure, from 0 up), the rule that says so, whether it must be told to reduce only."""

    size: float
    rule: str
    reduces: bool


class Guard:
    """Reviews the orders of one account. Keeps what its limits over time need, see `GuardState`."""

    def __init__(self, limits: GuardLimits) -> None:
        self.limits = limits
        self._state = GuardState()

    def state(self) -> dict[str, Any]:
        """What it remembers, as JSON: a guard that `restore`s it continues as this one."""
        return self._state.to_json()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` gave. Raises `UserError` for a damaged one and keeps what it remembers then."""
        self._state = state_from_json(state)

    def review(
        self,
        view: MarketView,
        account: AccountView,
        orders: Sequence[OrderRequest],
        sent: Sequence[Order] = (),
        decided: Collection[str] = (),
    ) -> tuple[list[Order], list[Clamp]]:
        """The orders that may be sent, and what was changed about the others. `sent` passed at this bar before;
        `decided` are the symbols that the orders are a decision about, named or not.

        Only an `Order` can pass; a market order of 0 withdraws. While the account is to be flat, what passes are the
        orders that close it. Never raises.
        """
        try:
            self._state, passed, clamps = self._review(view, account, orders, sent, decided)
        except Exception as error:  # noqa: BLE001  # whatever went wrong, nothing passes that was not looked at
            why = f"the review failed: {error!r}"[:200]
            refused = [_clamp("guard_error", request, 0.0, why) for request in orders]
            try:  # without the orders, one of which may be the reason
                self._state, passed, clamps = self._review(view, account, [], sent, decided)
            except Exception as deeper:  # noqa: BLE001  # it is the guard itself
                closing, alarm = _closed(account, deeper)
                done = {order.symbol for order in sent if order.reduce_only}
                passed = [one for one in closing if isinstance(one, Order) and one.symbol not in done]
                clamps = [alarm]
            return passed, [*refused, *clamps]
        return passed, clamps

    def watch(self, view: MarketView, account: AccountView) -> tuple[list[OrderRequest], list[Clamp]]:
        """What to send at a close at which nothing is decided: what closes the account once a loss limit is reached or
        the guard fails, and what was held back as far as there is room now. Call it at every bar. Never raises."""
        try:
            self._state, passed, clamps = self._watch(view, account)
            return [*self.withdrawals(account), *passed], clamps
        except Exception as error:  # noqa: BLE001  # nobody knows whether a loss limit is passed
            closing, alarm = _closed(account, error)
            return closing, [alarm]

    def follow_ups(self, view: MarketView, account: AccountView, passed: Sequence[Order]) -> list[Order]:
        """What it would send of what it holds back at the close after the last of `passed`, the orders that it let
        through at this close, has filled. The delay counts from this close.

        For the value of a decision on scenarios, in which nobody looks at the bars between two decisions.
        """
        found, filled = [], 1 + max((order.delay for order in passed), default=0)
        for one in self._state.held_back:
            symbol = one.order.symbol
            under_way = math.fsum(order.quantity for order in passed if order.symbol == symbol)
            rest = one.goal - account.positions.get(symbol, 0.0) - under_way
            if rest * one.order.quantity > 0.0:
                bars = max(filled, -((view.now - one.begin) // view.interval))
                found.append(replace(one.order, quantity=rest, delay=bars))
        return found

    def withdrawals(self, account: AccountView) -> list[Cancel]:
        """What to withdraw beside the orders of a review of this `account`: while positions may only shrink, all that
        waits and could open or enlarge one."""
        if self._only_shrink(self._state, account) is None:
            return []
        return [Cancel(order.id) for order in account.pending if not order.reduce_only]

    def _observed(self, view: MarketView, account: AccountView) -> tuple[GuardState, bool, list[Clamp]]:
        """The state at this close, whether the equity can be used at all, and that the account is to be flat from now
        on, if so."""
        state, before = self._state, self._state
        if not math.isfinite(account.equity) or account.equity <= 0:
            return state, False, []
        state = state.observed(self.limits, view.now, account)
        clamps = []
        if state.flat_rule != before.flat_rule and state.flat_rule:
            lost = account.drawdown if state.flat_rule == "max_drawdown" else 0.0
            if state.flat_rule == "daily_loss" and state.day_equity is not None:
                lost = 1.0 - account.equity / state.day_equity
            until = (
                "to the end of the run" if state.flat_until is None else f"until {format_time(state.flat_until)} UTC"
            )
            what = "since the peak" if state.flat_rule == "max_drawdown" else "since the day began"
            clamps = [Clamp(state.flat_rule, "", 0.0, 0.0, f"{100 * lost:.1f} % lost {what}: flat {until}")]
        return state, True, clamps

    def _review(
        self,
        view: MarketView,
        account: AccountView,
        orders: Sequence[OrderRequest],
        sent: Sequence[Order],
        decided: Collection[str],
    ) -> tuple[GuardState, list[Order], list[Clamp]]:
        state, usable, clamps = self._observed(view, account)
        if not usable:
            return state, [], [_clamp("no_equity", request, 0.0, f"equity is {account.equity}") for request in orders]
        schedule = OrderSchedule(view, account)
        for order in sent:
            schedule.add(order)
        if state.flat_rule:
            clamps += [_clamp(state.flat_rule, request, 0.0, "the account is kept flat") for request in orders]
            return self._close_all(state, view, account, schedule, sent, clamps)
        ended = {one.symbol for one in orders if isinstance(one, Order) and one.kind == "market"} | set(decided)
        state, dropped = self._without(state, [*ended], view.now)
        clamps += dropped
        frozen = self._only_shrink(state, account)
        desk = _Desk(self, state, view, account, schedule)
        for number, request in enumerate(orders):
            if not isinstance(request, Order):
                why = f"a {type(request).__name__} cannot be measured; send an Order, of 0 to withdraw"
                clamps.append(_clamp("not_an_order", request, 0.0, why))
            elif number >= MOST_ORDERS:
                clamps.append(_clamp("max_orders", request, 0.0, f"at most {MOST_ORDERS} orders a decision"))
            else:
                clamps += desk.take(request, frozen)
        held_back = tuple(one for one in state.held_back if one.order.symbol not in desk.held_back)
        return replace(state, held_back=(*held_back, *desk.held_back.values())), desk.passed, clamps

    def _watch(self, view: MarketView, account: AccountView) -> tuple[GuardState, list[Order], list[Clamp]]:
        state, usable, clamps = self._observed(view, account)
        if not usable:
            return state, [], clamps
        schedule = OrderSchedule(view, account)
        if state.flat_rule:
            return self._close_all(state, view, account, schedule, (), clamps)
        frozen = self._only_shrink(state, account)
        desk = _Desk(self, state, view, account, schedule)
        kept = []
        for one in state.held_back:
            rest = one.goal - account.positions.get(one.order.symbol, 0.0)
            if rest * one.order.quantity <= 0.0:
                continue  # it is done, or something else has moved the position past it
            if view.now >= one.begin:
                clamps += desk.follow(one, rest, frozen)
            kept.append(one)
        return replace(state, held_back=tuple(kept)), desk.passed, clamps

    def _without(self, state: GuardState, symbols: Collection[str], now: int) -> tuple[GuardState, list[Clamp]]:
        """Without what was held back for `symbols` by an earlier decision."""
        gone = [one for one in state.held_back if one.order.symbol in symbols and one.since < now]
        why = "what was held back until reductions fill ends with the next decision"
        kept = tuple(one for one in state.held_back if one not in gone)
        return replace(state, held_back=kept), [Clamp("held_back", one.order.symbol, 0.0, 0.0, why) for one in gone]

    def _close_all(
        self, state: GuardState, view: MarketView, account: AccountView, schedule: OrderSchedule,
        sent: Sequence[Order], clamps: list[Clamp],
    ) -> tuple[GuardState, list[Order], list[Clamp]]:  # fmt: skip
        """Market orders that close what is held, but for what is being closed already."""
        rule, why = state.flat_rule, "closed: the account is kept flat"
        done = {order.symbol for order in sent}
        desk = _Desk(self, state, view, account, schedule)
        passed: list[Order] = []
        for symbol, held in account.positions.items():
            if held == 0.0 or not math.isfinite(held) or symbol in done:
                continue
            order = Order(symbol, -held, reduce_only=True)
            under_way = [one.quantity for one in account.pending if one.symbol == symbol and one.kind == "market"
                         and one.reduce_only and one.quantity * held < 0.0]  # fmt: skip
            allowed, _ = desk.sized(order, rule)
            if abs(allowed.quantity) > abs(math.fsum(under_way)) * (1.0 + _NOTHING_MORE):
                schedule.add(allowed)
                passed.append(allowed)
                clamps = [*clamps, Clamp(rule, symbol, 0.0, allowed.quantity, why)]
        return replace(state, held_back=()), passed, clamps

    def _only_shrink(self, state: GuardState, account: AccountView) -> str | None:
        if state.flat_rule:
            return state.flat_rule
        # Written so that a NaN counts as beyond the limit.
        if not account.drawdown < self.limits.max_drawdown:
            return "max_drawdown"
        return "daily_loss" if state.beyond_daily_loss(self.limits, account.equity) else None


class _Desk:
    """Sizes the orders of one review, one after the other, and remembers what passed and what is held back."""

    def __init__(
        self, guard: Guard, state: GuardState, view: MarketView, account: AccountView, schedule: OrderSchedule
    ) -> None:
        self.limits = guard.limits
        self.passed: list[Order] = []
        self.held_back: dict[str, HeldBack] = {}
        self._view = view
        self._account = account
        self._schedule = schedule
        self._turnover = state.turnover(account)

    def take(self, order: Order, frozen: str | None) -> list[Clamp]:
        """Let through what is left of an order; what was changed about it."""
        allowed, clamps = self.sized(order, frozen)
        return self._hold_back(order, allowed, clamps, frozen)

    def follow(self, held: HeldBack, rest: float, frozen: str | None) -> list[Clamp]:
        """Send what there is room for now of the `rest` of an order that was held back."""
        order = replace(held.order, quantity=rest, delay=0)
        if abs(rest) < (lot := self._account.rules.get(order.symbol, SymbolRules()).lot):
            return []
        order = replace(order, quantity=math.copysign(down_to(abs(rest), lot), rest))
        allowed, _ = self.sized(order, frozen)
        if allowed.quantity == 0.0 or self._schedule.is_refused(allowed):
            return []
        queued = abs(self._schedule.queued(order.symbol))
        if abs(allowed.quantity) <= queued + max(0.5 * lot, _NOTHING_MORE * abs(rest)):
            return []  # what is on its way already is as much
        self._schedule.add(allowed)
        self.passed.append(allowed)
        why = f"{allowed.quantity:+.6g} of {rest:+.6g} held back has room now"
        return [Clamp("held_back", order.symbol, 0.0, allowed.quantity - math.copysign(queued, rest), why)]

    def _hold_back(self, order: Order, allowed: Order, clamps: list[Clamp], frozen: str | None) -> list[Clamp]:
        """Let `allowed` through, and keep what fits once the market orders that are under way have filled."""
        symbol, rest = order.symbol, 0.0
        if clamps and frozen is None and is_certain(order) and clamps[0].rule in _BY_SIZE:
            later, _ = self.sized(order, frozen, filled=True)
            rest = later.quantity - allowed.quantity
            if rest * order.quantity <= 0.0 or abs(rest) <= _NOTHING_MORE * abs(order.quantity):
                rest = 0.0
        goal = self._schedule.goal(order) + allowed.quantity + rest
        if allowed.quantity != 0.0 or self._schedule.withdraws(order):
            self._schedule.add(allowed)
            self.passed.append(allowed)
        before = self.held_back.pop(symbol, None) if is_certain(order) else None
        if rest == 0.0:
            if before is not None and before.order.quantity * order.quantity > 0.0:
                self.held_back[symbol] = replace(before, goal=before.goal + allowed.quantity)
            return clamps
        if before is not None and before.order.quantity * order.quantity < 0.0:
            clamps = [
                *clamps,
                Clamp("held_back", symbol, 0.0, 0.0, "an order to the other side ends what was held back"),
            ]
        begin = self._view.now + order.delay * self._view.interval
        if before is not None and before.order.quantity * order.quantity > 0.0:
            goal, begin = before.goal + allowed.quantity + rest, max(before.begin, begin)
        self.held_back[symbol] = HeldBack(replace(order, id=""), goal, self._view.now, begin)
        more = f"; {rest:+.6g} more held back until reductions fill"
        return [replace(clamps[0], detail=clamps[0].detail + more), *clamps[1:]]

    def sized(self, order: Order, frozen: str | None, filled: bool = False) -> tuple[Order, list[Clamp]]:
        """What is left of `order`, with quantity 0 where nothing is, and what was changed about it; with `filled` as if
        the plain market orders that are under way had filled."""
        schedule = self._schedule
        nothing = replace(order, quantity=0.0)
        wrong = self._objection(order)
        if wrong is not None:
            return nothing, [_clamp(wrong[0], order, 0.0, wrong[1])]
        unit = schedule.unit(order)
        asked = order.quantity * unit
        reaches = schedule.reaches(order, filled)
        if not all(map(math.isfinite, (asked, *(bound for reach in reaches.values() for bound in reach)))):
            why = f"quantity {order.quantity}, exposures {[reach.held for reach in reaches.values()]}"
            return nothing, [_clamp("not_a_number", order, 0.0, why)]
        rule = frozen
        if rule is None and not self._view.bars(order.symbol, STALE_BARS).present.any():
            rule = "stale_data"
        sign, size, binding, reduces = math.copysign(1.0, asked), abs(asked), "", order.reduce_only
        if order.reduce_only and size > (most := schedule.reducible(order)):
            # The exchange lets it reduce what is there when it trades; it must be there at some moment.
            size, binding = most, rule or "reduce_only"
        found = self._most(order, sign * size, reaches, rule, filled)
        reduces |= found.reduces
        if found.size < size:
            size, binding = max(found.size, 0.0), found.rule
        allowed = sign * size
        if abs(allowed - asked) <= 1e-12 * max(1.0, abs(asked)):
            if reduces == order.reduce_only:
                return order, []
            why = "told to reduce only: another order may close the position before it"
            return replace(order, reduce_only=True), [_clamp("reduce_only", order, order.quantity, why)]
        quantity, before = allowed / unit, reaches[order.symbol].held
        if before + allowed != 0.0 and math.isfinite(quantity):  # what does not close must be whole lots
            lot = self._account.rules.get(order.symbol, SymbolRules()).lot
            quantity = math.copysign(down_to(abs(quantity), lot), quantity)
            if abs(allowed) <= _ROUNDING:  # what rounding leaves of a limit is no room
                quantity = 0.0
        detail = f"exposure {before + asked:+.3f} of the equity asked, {before + allowed:+.3f} allowed"
        return replace(order, quantity=quantity, reduce_only=reduces), [_clamp(binding, order, quantity, detail)]

    def _objection(self, order: Order) -> tuple[str, str] | None:
        """Why `order` cannot be measured at all, whatever its size."""
        if order.symbol not in self._view.symbols:
            return "unknown_symbol", f"there are {', '.join(self._view.symbols)}"
        for name in ("limit", "trigger", "trail", "stop", "target"):
            price = getattr(order, name)
            if price is not None and not (math.isfinite(price) and price > 0.0):
                return "not_a_number", f"{name} {price}"
        return None

    def _most(self, order: Order, change: float, reaches: dict[str, Reach], rule: str | None, filled: bool) -> _Sized:
        """How much of a `change` of exposure may be made beside what is open, and the rule that says so."""
        sign, size = math.copysign(1.0, change), abs(change)
        found = self._fitting(order, sign, reaches, rule, filled)
        closing = max(-sign * reaches[order.symbol].held, 0.0)
        if is_certain(order) and not order.reduce_only and found.size < min(closing, size) - _ROUNDING:
            # Beside orders that only reduce, what is meant to close could find the position closed and turn it.
            only = self._fitting(replace(order, reduce_only=True), sign, reaches, rule, filled)
            if min(only.size, closing) > found.size:
                found = _Sized(min(only.size, closing), found.rule, True)
        return found

    def _fitting(self, order: Order, sign: float, reaches: dict[str, Reach], rule: str | None, filled: bool) -> _Sized:
        """How large an order on the side of `sign` may be. What lies beyond a limit (the price moved) may stay and
        shrink, it may not grow."""
        own, level = self._schedule.base_of(order, filled)
        before = reaches[order.symbol]
        if not filled:  # what may be refused is no claim on room beyond a limit
            sure = {side: self._schedule.surely(order, side) for side in (1.0, -1.0)}
        else:
            sure = {side: before.far(side) for side in (1.0, -1.0)}
        # A bracket, or an order that rests, makes the position one that may be closed, and so no hedge.
        for side in (sign, -sign):
            limit, name = self._limit(order.symbol, side, reaches, rule)
            if own.far(side) > max(limit, sure[side]) + _ROUNDING:
                return _Sized(0.0, name, order.reduce_only)
        limit, name = self._limit(order.symbol, sign, reaches, rule)
        limit = max(limit, sure[sign])
        size = math.inf if level.end <= limit + _ROUNDING else max(limit - level.start, 0.0) + level.free
        return _Sized(size, name, order.reduce_only)

    def _limit(self, symbol: str, sign: float, reaches: dict[str, Reach], rule: str | None) -> tuple[float, str]:
        """How far `symbol` may reach on the side of `sign` beside the others, and the rule that says so."""
        if rule is not None:
            return 0.0, rule
        limits, own = self.limits, reaches[symbol]
        gross, path = 0.0, 0.0
        for name, reach in reaches.items():
            path += reach.path
            gross += 0.0 if name == symbol else reach.largest
        spare = max(0.0, limits.max_daily_turnover - self._turnover - path) / 2.0
        return min(
            (limits.max_exposure, "max_exposure"),
            (max(0.0, limits.max_gross_exposure - gross), "max_gross_exposure"),
            (max(own.far(sign), sign * own.held, 0.0) + spare, "max_daily_turnover"),
        )


# What more room would cure.
_BY_SIZE = ("max_exposure", "max_gross_exposure")


def _closed(account: AccountView, error: Exception) -> tuple[list[OrderRequest], Clamp]:
    """What closes the account after an error of the guard's own code, and the alarm."""
    why = f"the guard failed and closes all positions: {error!r}"[:200]
    return closing_orders(account), Clamp("guard_error", "", 0.0, 0.0, why)


def _clamp(rule: str, request: OrderRequest, allowed: float, detail: str) -> Clamp:
    asked = getattr(request, "quantity", None)
    return Clamp(rule, str(getattr(request, "symbol", "")), asked if isinstance(asked, float) else 0.0, allowed, detail)
