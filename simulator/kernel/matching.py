"""Compiled: the execution of orders at a bar's open and inside the bar.

A market order trades at the open. A limit trades only when the bar goes *through* it, at the limit or at the better
open; one that already crosses the spread at its first open takes liquidity there, within its limit. A stop trades at
the worse of its trigger and the open, a take-profit at the better, once the bar goes through it.

An order that reaches the venue inside its first bar meets it at a price that has run against the order since the open
(`fills.late_price`). What rests then trades in that bar only where the bar's close is through its level: whether an
earlier price was there before or after the order, nobody knows.
"""

from __future__ import annotations

import math

from simulator.arrays import FloatArray
from simulator.kernel import layout as at
from simulator.kernel.fills import (
    available,
    drop,
    fee_rate,
    fill,
    impact_of,
    late_price,
    on_lot,
    unit_cost,
    worse_on_tick,
)
from simulator.kernel.jit import compiled
from simulator.kernel.layout import KernelState, Log, Tape, Terms
from simulator.kernel.margin import room


@compiled
def finish(account: FloatArray, order: FloatArray) -> None:
    """The order is over; its row is free."""
    order[at.LIVE] = 0.0
    account[at.WAITING] -= 1.0


@compiled
def cancel(account: FloatArray, orders: FloatArray, log: Log, kind: int, n: int, bar: int, symbol: int) -> None:
    """Drop all orders (symbol -1), or those of `symbol` that were to change a position: market and reduce-only ones."""
    for m in range(orders.shape[0]):
        order = orders[m]
        if order[at.LIVE] == 0.0:
            continue
        bound = int(order[at.SYMBOL]) == symbol and (order[at.TYPE] == at.MARKET_ORDER or order[at.REDUCE_ONLY] != 0.0)
        if symbol < 0 or bound:
            drop(log, kind, n, bar, order, order[at.AMOUNT])
            finish(account, order)


@compiled
def _one_cancels_others(
    account: FloatArray, orders: FloatArray, m: int, traded: float, log: Log, n: int, bar: int
) -> None:
    """What one order of a group has traded the others need not trade any more; once it is done they are cancelled."""
    if traded == 0.0:
        return
    group, done = orders[m, at.GROUP], orders[m, at.LIVE] == 0.0
    for k in range(orders.shape[0]):
        other = orders[k]
        if k == m or other[at.LIVE] == 0.0 or other[at.GROUP] != group:
            continue
        rest = 0.0 if done else max(0.0, abs(other[at.AMOUNT]) - traded)
        lost = abs(other[at.AMOUNT]) - rest
        sign = 1.0 if other[at.AMOUNT] > 0.0 else -1.0
        drop(log, at.DROP_OCO, n, bar, other, sign * lost)
        if rest <= at.DUST * lost:
            finish(account, other)
        else:
            other[at.AMOUNT] = sign * rest


@compiled
def execute(
    tape: Tape, terms: Terms, state: KernelState, log: Log, path: int, b: int, n: int, m: int, bar: int,
    reference: float, maker: bool, kind: int,
) -> None:  # fmt: skip
    """Trade what can be traded of one order at `reference`.

    What the volume does not allow waits, if the order may wait; what the margin or a reduce-only position does not
    allow is dropped.
    """
    order = state.orders[n, m]
    s = int(order[at.SYMBOL])
    account, position, rules, scalars = state.accounts[n], state.positions[n, s], terms.rules[s], terms.scalars
    held, wanted = position[at.QUANTITY], order[at.AMOUNT]
    asked = abs(wanted)
    in_force = order[at.IN_FORCE]
    if order[at.REDUCE_ONLY] != 0.0:
        if held * wanted >= 0.0:
            drop(log, at.DROP_REDUCE_ONLY, n, bar, order, wanted)
            finish(account, order)
            return
        if asked > abs(held):
            if asked - abs(held) > at.DUST * asked:
                drop(log, at.DROP_REDUCE_ONLY, n, bar, order, wanted + held)
            wanted = -held
    meant = held + wanted
    if order[at.SIDE] * meant < -at.DUST * asked:
        drop(log, at.DROP_BRACKET_SIDE, n, bar, order, order[at.AMOUNT])
        finish(account, order)
        return
    side = 1.0 if wanted > 0.0 else -1.0
    size = abs(wanted)
    closing = min(size, abs(held)) if held * wanted < 0.0 else 0.0
    volume = tape.volume[path, b, s]
    half_spread = 0.0 if maker else tape.half_spread[path, b, s] * scalars[at.SPREAD_MULTIPLIER]
    strength = 0.0 if maker else scalars[at.IMPACT]
    sigma = tape.sigma[path, b, s]

    most = min(size, available(volume, position[at.USED], scalars[at.PARTICIPATION]))
    if order[at.TYPE] == at.LIMIT_ORDER and not maker:  # the price with all its costs may not pass the limit
        slack = side * (order[at.LIMIT] / reference - 1.0) - half_spread
        if slack < 0.0:
            most = 0.0
        elif strength * sigma > 0.0 and most > 0.0:
            most = min(most, volume * (slack / (strength * sigma)) ** 2)
    if most < size and most != abs(held):
        most = on_lot(most, rules[at.LOT])
    if in_force == at.FOK and most < size * (1.0 - at.DUST):
        drop(log, at.DROP_FOK, n, bar, order, wanted)
        finish(account, order)
        return
    take = most
    if take > closing + at.DUST * size:
        rate = fee_rate(state.accounts, terms.rules, n, s, maker)
        worse = half_spread + impact_of(take, volume, sigma, strength)
        if not maker:
            worse = worse_on_tick(reference, side, worse, rules[at.TICK])
        cost = unit_cost(rate, worse, side, scalars)
        fits = room(
            state.accounts, state.positions, tape.open, tape.close, terms.rules, terms.tiers, path, b, n, s, closing,
            reference, cost, scalars[at.MAX_LEVERAGE],
        )  # fmt: skip
        if fits <= at.DUST * size:  # rounding left over where there is no room; it must not become a position
            fits = 0.0
        if take - closing > fits * (1.0 + at.DUST):
            take = closing + on_lot(fits, rules[at.LOT])
            if in_force == at.FOK:
                take = 0.0
            # No order waits for margin: what did not fit is dropped, and what the volume kept back with it.
            drop(log, at.DROP_LEVERAGE, n, bar, order, side * (size - take))
            size = take
    if take > 0.0:
        fill(
            state.accounts, state.positions, terms.rules, scalars, log, kind, n, bar, s, order[at.ORDER_ID],
            side * take, reference, half_spread, impact_of(take, volume, sigma, strength), maker,
        )  # fmt: skip
        # A turn that the volume or the margin allowed in part has left the old side, which keeps its bracket.
        if position[at.QUANTITY] * order[at.SIDE] > 0.0:
            if not math.isnan(order[at.ORDER_STOP]):
                position[at.STOP] = order[at.ORDER_STOP]
            if not math.isnan(order[at.ORDER_TARGET]):
                position[at.TARGET] = order[at.ORDER_TARGET]
        # What a stop or a target is closing stays on its way out.
        leaving = position[at.EXIT] == at.FILL_STOP or position[at.EXIT] == at.FILL_TARGET
        if order[at.HOLD] > 0.0 and position[at.QUANTITY] * meant > 0.0 and not leaving:
            position[at.EXPIRY] = bar + order[at.HOLD]
    rest = size - take
    if rest <= at.DUST * asked:
        finish(account, order)
    elif in_force == at.IOC:
        drop(log, at.DROP_IOC, n, bar, order, side * rest)
        finish(account, order)
    else:
        order[at.AMOUNT] = side * rest
    if order[at.GROUP] > 0.0:
        _one_cancels_others(account, state.orders[n], m, take, log, n, bar)


@compiled
def at_open(
    tape: Tape, terms: Terms, state: KernelState, log: Log, path: int, b: int, n: int, m: int, bar: int
) -> None:
    """What one active order does at the open of its symbol's bar."""
    order = state.orders[n, m]
    s = int(order[at.SYMBOL])
    side = 1.0 if order[at.AMOUNT] > 0.0 else -1.0
    late = order[at.ORDER_LATE] if order[at.ACTIVE] == bar else 0.0
    first = late_price(tape.open[path, b, s], tape.high[path, b, s], tape.low[path, b, s], side, late)
    kind = order[at.TYPE]
    fresh = order[at.ARMED] == 0.0
    order[at.ARMED] = 1.0
    if kind == at.MARKET_ORDER:
        execute(tape, terms, state, log, path, b, n, m, bar, first, False, at.FILL_ORDER)
        return
    if kind == at.TRAILING_ORDER and fresh:
        order[at.TRIGGER] = first * (1.0 + side * order[at.TRAIL])
    if kind == at.STOP_ORDER or kind == at.TRAILING_ORDER:
        if side * (first - order[at.TRIGGER]) >= 0.0:
            order[at.TYPE] = at.MARKET_ORDER
            execute(tape, terms, state, log, path, b, n, m, bar, first, False, at.FILL_ORDER)
        return
    if kind == at.TAKE_PROFIT_ORDER:
        if side * (order[at.TRIGGER] - first) > 0.0:
            order[at.TYPE] = at.MARKET_ORDER
            execute(tape, terms, state, log, path, b, n, m, bar, first, False, at.FILL_ORDER)
        return
    if kind == at.STOP_LIMIT_ORDER:
        if side * (first - order[at.TRIGGER]) < 0.0:
            return
        order[at.TYPE] = at.LIMIT_ORDER
        fresh = True
    if fresh:
        ask = first * (1.0 + side * tape.half_spread[path, b, s] * terms.scalars[at.SPREAD_MULTIPLIER])
        if side * (order[at.LIMIT] - ask) >= 0.0:
            if order[at.IN_FORCE] == at.POST_ONLY:
                drop(log, at.DROP_POST_ONLY, n, bar, order, order[at.AMOUNT])
                finish(state.accounts[n], order)
            else:
                execute(tape, terms, state, log, path, b, n, m, bar, first, False, at.FILL_ORDER)
        elif order[at.IN_FORCE] == at.IOC or order[at.IN_FORCE] == at.FOK:
            drop(log, at.DROP_IOC if order[at.IN_FORCE] == at.IOC else at.DROP_FOK, n, bar, order, order[at.AMOUNT])
            finish(state.accounts[n], order)
    elif side * (order[at.LIMIT] - first) > 0.0:
        execute(tape, terms, state, log, path, b, n, m, bar, first, True, at.FILL_ORDER)


@compiled
def inside(tape: Tape, terms: Terms, state: KernelState, log: Log, path: int, b: int, n: int, m: int, bar: int) -> None:
    """What one active order does between the open and the close of its symbol's bar.

    One that only reduces a position which was opened inside this bar closes it no better than at the market's price of
    then: it takes no profit in this bar, and its stop fires at the worse of the two prices.
    """
    order = state.orders[n, m]
    s = int(order[at.SYMBOL])
    side = 1.0 if order[at.AMOUNT] > 0.0 else -1.0
    # How far the bar goes against and for a resting order of this side.
    up = tape.high[path, b, s] if side > 0.0 else tape.low[path, b, s]
    down = tape.low[path, b, s] if side > 0.0 else tape.high[path, b, s]
    if order[at.ORDER_LATE] > 0.0 and order[at.ACTIVE] == bar:
        down = tape.close[path, b, s]
    kind, trigger = order[at.TYPE], order[at.TRIGGER]
    position = state.positions[n, s]
    if order[at.REDUCE_ONLY] != 0.0 and position[at.INSIDE] == bar and position[at.QUANTITY] * side < 0.0:
        if kind == at.LIMIT_ORDER or kind == at.TAKE_PROFIT_ORDER:
            return
        trigger = side * max(side * trigger, side * position[at.INSIDE_PRICE])
    if kind == at.LIMIT_ORDER:
        if side * (order[at.LIMIT] - down) > 0.0:
            inner = min(order[at.LIMIT], up) if side > 0.0 else max(order[at.LIMIT], up)
            execute(tape, terms, state, log, path, b, n, m, bar, inner, True, at.FILL_INSIDE)
    elif kind == at.STOP_ORDER or kind == at.TRAILING_ORDER:
        if side * (up - order[at.TRIGGER]) >= 0.0:
            order[at.TYPE] = at.MARKET_ORDER
            execute(tape, terms, state, log, path, b, n, m, bar, trigger, False, at.FILL_INSIDE)
    elif kind == at.TAKE_PROFIT_ORDER:
        if side * (order[at.TRIGGER] - down) > 0.0:
            order[at.TYPE] = at.MARKET_ORDER
            execute(tape, terms, state, log, path, b, n, m, bar, order[at.TRIGGER], False, at.FILL_INSIDE)
    elif kind == at.STOP_LIMIT_ORDER and side * (up - order[at.TRIGGER]) >= 0.0:
        order[at.TYPE] = at.LIMIT_ORDER
        ask = trigger * (1.0 + side * tape.half_spread[path, b, s] * terms.scalars[at.SPREAD_MULTIPLIER])
        if order[at.IN_FORCE] == at.POST_ONLY and side * (order[at.LIMIT] - ask) >= 0.0:
            drop(log, at.DROP_POST_ONLY, n, bar, order, order[at.AMOUNT])
            finish(state.accounts[n], order)
        elif side * (order[at.LIMIT] - ask) >= 0.0:
            execute(tape, terms, state, log, path, b, n, m, bar, trigger, False, at.FILL_INSIDE)
        elif order[at.IN_FORCE] == at.IOC or order[at.IN_FORCE] == at.FOK:
            drop(log, at.DROP_IOC if order[at.IN_FORCE] == at.IOC else at.DROP_FOK, n, bar, order, order[at.AMOUNT])
            finish(state.accounts[n], order)


@compiled
def trail(order: FloatArray, high: float, low: float) -> None:
    """Move a trailing trigger after a bar; it only ever moves towards the price."""
    if order[at.AMOUNT] < 0.0:
        order[at.TRIGGER] = max(order[at.TRIGGER], high * (1.0 - order[at.TRAIL]))
    else:
        order[at.TRIGGER] = min(order[at.TRIGGER], low * (1.0 + order[at.TRAIL]))
