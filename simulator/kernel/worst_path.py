"""Compiled: the worst path through a bar, on which stops and liquidations are met.

All prices run from the open to the worst extreme for the position held, at the same pace; what is met first happens
first. A position that an order opened, turned or changed inside the bar runs from the price of that fill to the worst
extreme: the moment is not known, so it is assumed to lie before the worst price. So a stop on the wrong side of the
entry closes the position at once and at the entry's price, never at a better one.
"""

from __future__ import annotations

import math

import numpy as np

from simulator.arrays import FloatArray
from simulator.kernel import layout as at
from simulator.kernel.fills import available, drop, fill, forget_target, impact_of, on_lot, write
from simulator.kernel.jit import allocating, compiled
from simulator.kernel.layout import KernelState, Log, Tape, Terms
from simulator.kernel.margin import cross_breach, isolated_breach, price_on_path
from simulator.kernel.matching import cancel, finish, inside


@compiled
def close_position(
    tape: Tape, terms: Terms, state: KernelState, log: Log, path: int, b: int, n: int, bar: int, s: int, kind: int,
    reference: float,
) -> None:  # fmt: skip
    """Close a position as far as the volume allows; the rest is closed at the next opens."""
    account, position, rules, scalars = state.accounts[n], state.positions[n, s], terms.rules[s], terms.scalars
    held = position[at.QUANTITY]
    volume = tape.volume[path, b, s]
    take = min(abs(held), available(volume, position[at.USED], scalars[at.PARTICIPATION]))
    if take < abs(held):
        take = on_lot(take, rules[at.LOT])
    if take > 0.0:
        fill(
            state.accounts, state.positions, terms.rules, scalars, log, kind, n, bar, s, -1.0,
            -take if held > 0.0 else take, reference,
            tape.half_spread[path, b, s] * scalars[at.SPREAD_MULTIPLIER],
            impact_of(take, volume, tape.sigma[path, b, s], scalars[at.IMPACT]), False,
        )  # fmt: skip
    forget_target(position, log, at.DROP_BRACKET_CLOSED, n, bar, s)
    if position[at.QUANTITY] != 0.0:
        position[at.EXPIRY] = bar + 1.0
        position[at.EXIT] = kind
    if account[at.WAITING] > 0.0:
        cancel(account, state.orders[n], log, at.DROP_BRACKET_CLOSED, n, bar, s)


@compiled
def liquidate(
    tape: Tape,
    terms: Terms,
    state: KernelState,
    log: Log,
    path: int,
    b: int,
    n: int,
    bar: int,
    s: int,
    reference: float,
) -> None:
    """The venue closes a position whole, whatever the volume. What an isolated position loses beyond its margin the
    venue's insurance pays; a cross account's loss beyond its cash stays visible as negative equity."""
    account, position = state.accounts[n], state.positions[n, s]
    isolated = terms.rules[s, at.ISOLATED] != 0.0
    before = account[at.CASH] + position[at.QUANTITY] * position[at.ENTRY] - position[at.MARGIN]
    fill(
        state.accounts, state.positions, terms.rules, terms.scalars, log, at.FILL_LIQUIDATION, n, bar, s, -1.0,
        -position[at.QUANTITY], reference, tape.half_spread[path, b, s] * terms.scalars[at.SPREAD_MULTIPLIER], 0.0,
        False,
    )  # fmt: skip
    forget_target(position, log, at.DROP_LIQUIDATED, n, bar, s)
    if isolated and account[at.CASH] < before:
        paid = before - account[at.CASH]
        account[at.CASH] += paid
        account[at.INSURED] += paid
        write(log, at.PAID_INSURANCE, n, bar, s, -1.0, 0.0, 0.0, -paid, 0.0, 0.0, 0.0, 0.0)
    cancel(account, state.orders[n], log, at.DROP_LIQUIDATED, n, bar, s)


@compiled
def delist(terms: Terms, state: KernelState, log: Log, n: int, bar: int, s: int) -> None:
    """The venue has ended the trade in a symbol: a position is closed at its last mark, worse by the haircut, and what
    waits is dropped. Its volume, spread and impact are those of no bar; the haircut stands for all."""
    account, position = state.accounts[n], state.positions[n, s]
    quantity = position[at.QUANTITY]
    if quantity != 0.0:
        side = 1.0 if quantity < 0.0 else -1.0
        fill(
            state.accounts, state.positions, terms.rules, terms.scalars, log, at.FILL_DELISTED, n, bar, s, -1.0,
            -quantity, position[at.MARK] * (1.0 + side * terms.scalars[at.HAIRCUT]), 0.0, 0.0, False,
        )  # fmt: skip
    forget_target(position, log, at.DROP_DELISTED, n, bar, s)
    for m in range(state.orders.shape[1]):
        order = state.orders[n, m]
        if order[at.LIVE] != 0.0 and int(order[at.SYMBOL]) == s:
            drop(log, at.DROP_DELISTED, n, bar, order, order[at.AMOUNT])
            finish(account, order)


@compiled
def end_account(account: FloatArray, positions: FloatArray, orders: FloatArray, log: Log, n: int, bar: int) -> None:
    """A cross liquidation ends the account, unless isolated positions live on."""
    cancel(account, orders, log, at.DROP_LIQUIDATED, n, bar, -1)
    held = False
    for s in range(positions.shape[0]):
        forget_target(positions[s], log, at.DROP_LIQUIDATED, n, bar, s)
        held |= positions[s, at.QUANTITY] != 0.0
    if not held:
        account[at.ENDED] = 1.0


@compiled
def _extremes(
    tape: Tape, positions: FloatArray, path: int, b: int, bar: int, s: int, fresh: int
) -> tuple[float, float]:  # fmt: skip
    """First and last trade price of the worst path through a present bar, for the position held."""
    worst = tape.low[path, b, s] if positions[s, at.QUANTITY] > 0.0 else tape.high[path, b, s]
    inside_bar = s == fresh or positions[s, at.INSIDE] == bar
    return positions[s, at.INSIDE_PRICE] if inside_bar else tape.open[path, b, s], worst


@compiled
def _mark_extremes(
    tape: Tape, positions: FloatArray, path: int, b: int, bar: int, s: int, fresh: int
) -> tuple[float, float]:  # fmt: skip
    """The same of the mark; both are the last mark where the bar is absent."""
    if math.isnan(tape.close[path, b, s]):
        return positions[s, at.MARK], positions[s, at.MARK]
    low, high = tape.mark_low[path, b, s], tape.mark_high[path, b, s]
    first, _ = _extremes(tape, positions, path, b, bar, s, fresh)
    return min(max(first, low), high), low if positions[s, at.QUANTITY] > 0.0 else high


@compiled
def _share_of(level: float, side: float, first: float, worst: float) -> float:
    """Share of the worst path at which the price meets `level`, which lies against `side`; 2 where it does not."""
    if side * (worst - level) > 0.0:
        return 2.0
    if side * (first - level) <= 0.0:
        return 0.0
    return (first - level) / (first - worst)


@compiled
def walk_worst_path(
    tape: Tape, terms: Terms, state: KernelState, log: Log, path: int, b: int, n: int, bar: int, fresh: int
) -> None:
    """Take the account along the worst path. `fresh` is the symbol of a position that was opened inside the bar: only
    its stop can be new then. -1 for the path from the open."""
    account, positions = state.accounts[n], state.positions[n]
    symbols, rows = positions.shape[0], state.orders.shape[1]
    for _ in range(3 * symbols + rows):
        breach = _first_breach(tape, terms, state, path, b, n, bar, fresh)
        # What is met first, no later than the breach. Equal shares: stops do not touch one another.
        best, stopped, triggered = 2.0, -1, -1
        for s in range(symbols):
            quantity, stop = positions[s, at.QUANTITY], positions[s, at.STOP]
            if quantity == 0.0 or math.isnan(stop) or math.isnan(tape.close[path, b, s]):
                continue
            # A stop that the volume filled in part is closed at the next opens.
            if positions[s, at.EXIT] == at.FILL_STOP or (fresh >= 0 and s != fresh):
                continue
            first, worst = _extremes(tape, positions, path, b, bar, s, fresh)
            share = _share_of(stop, 1.0 if quantity > 0.0 else -1.0, first, worst)
            if share < best:
                best, stopped = share, s
        for m in range(rows if fresh < 0 and account[at.WAITING] > 0.0 else 0):
            order = state.orders[n, m]
            s = int(order[at.SYMBOL])
            protects = order[at.TYPE] == at.STOP_ORDER or order[at.TYPE] == at.TRAILING_ORDER
            if order[at.LIVE] == 0.0 or order[at.ARMED] == 0.0 or order[at.ACTIVE] > bar or not protects:
                continue
            if positions[s, at.QUANTITY] * order[at.AMOUNT] >= 0.0 or math.isnan(tape.close[path, b, s]):
                continue
            first, worst = _extremes(tape, positions, path, b, bar, s, fresh)
            share = _share_of(order[at.TRIGGER], -1.0 if order[at.AMOUNT] > 0.0 else 1.0, first, worst)
            if share < best:
                best, triggered = share, m
        if best <= breach and triggered >= 0:
            inside(tape, terms, state, log, path, b, n, triggered, bar)
        elif best <= breach and stopped >= 0:
            first, worst = _extremes(tape, positions, path, b, bar, stopped, fresh)
            stop = positions[stopped, at.STOP]
            reference = min(stop, first) if positions[stopped, at.QUANTITY] > 0.0 else max(stop, first)
            close_position(tape, terms, state, log, path, b, n, bar, stopped, at.FILL_STOP, reference)
        elif breach <= 1.0:
            _liquidate_at(tape, terms, state, log, path, b, n, bar, breach, fresh)
        else:
            return


@allocating
def _first_breach(
    tape: Tape, terms: Terms, state: KernelState, path: int, b: int, n: int, bar: int, fresh: int
) -> float:  # fmt: skip
    """Share of the worst path at which the account or an isolated position is liquidated first; 2 for none."""
    positions = state.positions[n]
    symbols = positions.shape[0]
    firsts, worsts = np.empty(symbols), np.empty(symbols)
    earliest = 2.0
    for s in range(symbols):
        firsts[s], worsts[s] = _mark_extremes(tape, positions, path, b, bar, s, fresh)
        if positions[s, at.QUANTITY] != 0.0 and terms.rules[s, at.ISOLATED] != 0.0:
            earliest = min(earliest, isolated_breach(positions[s], firsts[s], worsts[s], terms.rules[s], terms.tiers))
    cash = state.accounts[n, at.CASH]
    return min(earliest, cross_breach(cash, positions, firsts, worsts, terms.rules, terms.tiers))


@allocating
def _liquidate_at(
    tape: Tape,
    terms: Terms,
    state: KernelState,
    log: Log,
    path: int,
    b: int,
    n: int,
    bar: int,
    share: float,
    fresh: int,
) -> None:
    """Liquidate what is below its margin after `share` of the worst path: isolated positions one by one, the cross
    ones together."""
    account, positions = state.accounts[n], state.positions[n]
    symbols = positions.shape[0]
    firsts, worsts = np.empty(symbols), np.empty(symbols)
    for s in range(symbols):
        firsts[s], worsts[s] = _mark_extremes(tape, positions, path, b, bar, s, fresh)
    whole = cross_breach(account[at.CASH], positions, firsts, worsts, terms.rules, terms.tiers) <= share
    for s in range(symbols):
        if positions[s, at.QUANTITY] == 0.0:
            continue
        if terms.rules[s, at.ISOLATED] != 0.0:
            goes = isolated_breach(positions[s], firsts[s], worsts[s], terms.rules[s], terms.tiers) <= share
        else:
            goes = whole
        if goes:
            reference = positions[s, at.MARK]
            if not math.isnan(tape.close[path, b, s]):
                first, worst = _extremes(tape, positions, path, b, bar, s, fresh)
                reference = price_on_path(first, worst, share)
            liquidate(tape, terms, state, log, path, b, n, bar, s, reference)
    if whole:
        end_account(account, positions, state.orders[n], log, n, bar)
