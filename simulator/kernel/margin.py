"""Compiled: initial and maintenance margin, where on the way through a bar an account is liquidated, and the carry.

Cross positions share the account's equity. An isolated one stands on the margin that was set aside for it; what the
account's other positions can use is ``cash + sum over cross of q p + sum over isolated of (q entry - margin)``.

Inside a bar every price is taken to run from its open to its worst extreme for the position, all at the same pace: the
pessimistic joint path. `cross_breach` finds how far along it the equity meets the maintenance margin.
"""

from __future__ import annotations

import math

import numpy as np

from simulator.arrays import FloatArray
from simulator.kernel import layout as at
from simulator.kernel.fills import write
from simulator.kernel.jit import compiled, inlined
from simulator.kernel.layout import KernelState, Log, Tape, Terms


@compiled
def maintenance(notional: float, rules: FloatArray, tiers: FloatArray) -> float:
    """Equity that a position of `notional` must be covered by; 0 without tiers."""
    first, stop = int(rules[at.TIER_FIRST]), int(rules[at.TIER_STOP])
    row = first
    while row + 1 < stop and notional >= tiers[row + 1, at.FLOOR]:
        row += 1
    return 0.0 if first == stop else float(notional * tiers[row, at.RATE] - tiers[row, at.AMOUNT_OFF])


@compiled
def leverage_of(notional: float, rules: FloatArray, tiers: FloatArray, most: float) -> float:
    """Most leverage of a position of `notional`: the account's (cross) or the symbol's (isolated), within its tier."""
    if rules[at.ISOLATED] != 0.0:
        most = rules[at.LEVERAGE]
    first, stop = int(rules[at.TIER_FIRST]), int(rules[at.TIER_STOP])
    row = first
    while row + 1 < stop and notional >= tiers[row + 1, at.FLOOR]:
        row += 1
    return most if first == stop else min(most, float(tiers[row, at.TIER_LEVERAGE]))


@inlined
def room(
    accounts: FloatArray, positions: FloatArray, opens: FloatArray, closes: FloatArray, rules: FloatArray,
    tiers: FloatArray, path: int, b: int, n: int, s: int, closing: float, price: float, cost: float, most: float,
) -> float:  # fmt: skip
    """Largest increase of symbol `s`, in base units, whose initial margin the account can set aside after its costs.

    `closing` units of `s` are closed first; `cost` is what a unit costs as a fraction of `price`. With free equity E,
    the others' initial margin M and what stays of `s` worth B, x units fit at leverage L while
    ``E - M - x price cost >= (B + x price) / L``. Margin tiers lower L as the position grows, so each is tried. A
    rebate frees no margin. An isolated position keeps its leverage, so it cannot grow into a tier that forbids it.
    """
    free = accounts[n, at.CASH]
    margin = 0.0
    for k in range(positions.shape[1]):
        quantity = positions[n, k, at.QUANTITY]
        if quantity == 0.0:
            continue
        here = positions[n, k, at.MARK] if math.isnan(closes[path, b, k]) else opens[path, b, k]
        if k == s:
            here = price
        if rules[k, at.ISOLATED] != 0.0:
            free += quantity * positions[n, k, at.ENTRY] - positions[n, k, at.MARGIN]
            if k == s and closing > 0.0:  # closing frees its share of the margin and realises its profit
                share = closing / abs(quantity)
                free += share * (positions[n, k, at.MARGIN] + quantity * (here - positions[n, k, at.ENTRY]))
        else:
            free += quantity * here
            if k != s:
                notional = abs(quantity) * here
                if rules[k, at.TIER_FIRST] == rules[k, at.TIER_STOP]:
                    margin += notional / most
                else:
                    margin += notional / leverage_of(notional, rules[k], tiers, most)
    free -= margin + closing * price * cost
    stays = max(0.0, abs(positions[n, s, at.QUANTITY]) - closing) * price
    isolated = rules[s, at.ISOLATED] != 0.0
    if cost < 0.0:
        cost = 0.0
    if isolated:
        most = rules[s, at.LEVERAGE]
    first, stop = int(rules[s, at.TIER_FIRST]), int(rules[s, at.TIER_STOP])
    best = 0.0
    for row in range(first, max(stop, first + 1)):
        leverage, floor, ceiling = most, 0.0, np.inf
        if row < stop:
            leverage, floor = min(most, tiers[row, at.TIER_LEVERAGE]), tiers[row, at.FLOOR]
            ceiling = tiers[row + 1, at.FLOOR] if row + 1 < stop else np.inf
            if isolated and leverage < most:
                ceiling = 0.0
        needed = 0.0 if isolated else stays / leverage
        units = min((free - needed) / (price * (cost + 1.0 / leverage)), (ceiling - stays) / price)
        if units > best and stays + units * price >= floor:
            best = units
    return best


@compiled
def price_on_path(first: float, worst: float, share: float) -> float:
    """The price after `share` of the path from `first` to the worst extreme."""
    return first + share * (worst - first)


@compiled
def cross_excess(
    cash: float, positions: FloatArray, firsts: FloatArray, worsts: FloatArray, rules: FloatArray, tiers: FloatArray,
    share: float,
) -> float:  # fmt: skip
    """Equity of the cross positions above their maintenance margin, after `share` of the worst path."""
    excess = cash
    for k in range(positions.shape[0]):
        quantity = positions[k, at.QUANTITY]
        if quantity == 0.0:
            continue
        if rules[k, at.ISOLATED] != 0.0:
            excess += quantity * positions[k, at.ENTRY] - positions[k, at.MARGIN]
            continue
        price = price_on_path(firsts[k], worsts[k], share)
        excess += quantity * price - maintenance(abs(quantity) * price, rules[k], tiers)
    return excess


@compiled
def cross_breach(
    cash: float, positions: FloatArray, firsts: FloatArray, worsts: FloatArray, rules: FloatArray, tiers: FloatArray
) -> float:
    """Share of the worst path at which the cross account is liquidated; 2 where it survives the bar."""
    any_cross = False
    for k in range(positions.shape[0]):
        if positions[k, at.QUANTITY] != 0.0 and rules[k, at.ISOLATED] == 0.0:
            any_cross = True
    if not any_cross or cross_excess(cash, positions, firsts, worsts, rules, tiers, 1.0) > 0.0:
        return 2.0
    if cross_excess(cash, positions, firsts, worsts, rules, tiers, 0.0) <= 0.0:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        if cross_excess(cash, positions, firsts, worsts, rules, tiers, middle) > 0.0:
            low = middle
        else:
            high = middle
    return high


@compiled
def isolated_breach(position: FloatArray, first: float, worst: float, rules: FloatArray, tiers: FloatArray) -> float:
    """Share of the worst path at which an isolated position is liquidated; 2 where it survives the bar."""
    quantity, entry, margin = position[at.QUANTITY], position[at.ENTRY], position[at.MARGIN]
    low, high = 0.0, 1.0
    for step in range(62):
        middle = 1.0 if step == 0 else (0.0 if step == 1 else 0.5 * (low + high))
        price = price_on_path(first, worst, middle)
        safe = margin + quantity * (price - entry) > maintenance(abs(quantity) * price, rules, tiers)
        if step == 0 and safe:
            return 2.0
        if step == 1 and not safe:
            return 0.0
        if step > 1:
            if safe:
                low = middle
            else:
                high = middle
    return high


# What it costs to hold a position over a bar, beside the funding that the data states:
#
# * Coins of a spot market that are held short are borrowed and pay ``quantity * mark * rate``.
# * Cash is borrowed where spot coins cost more than the account's own: what is left in quote currency is the cash, with
#   the value of the perpetuals in place of what they cost and without the margin that is set aside for isolated ones.
#   Below zero it is a loan. Its interest is booked to the long coins, by their value.
# * A perpetual whose settlement the data lacks pays the stated rate, long or short.
#
# A bar is paid for by the larger of what stood after its open and at its close. So what is closed inside the bar, or
# opened in it, pays for the whole bar. Only what is both opened and closed inside one bar pays nothing.

ROUNDING = 1e-9  # of the equity: a smaller loan is the rounding of an all-in purchase


@compiled
def borrowed_cash(account: FloatArray, positions: FloatArray, rules: FloatArray) -> float:
    """Cash that the account has borrowed, 0 where it has some of its own."""
    own = account[at.CASH]
    for s in range(positions.shape[0]):
        quantity = positions[s, at.QUANTITY]
        if quantity == 0.0 or rules[s, at.SPOT] != 0.0:
            continue
        if rules[s, at.ISOLATED] != 0.0:
            own += quantity * positions[s, at.ENTRY] - positions[s, at.MARGIN]
        else:
            own += quantity * positions[s, at.MARK]
    return -own if own < -ROUNDING * account[at.EQUITY] else 0.0


@compiled
def pay_carry(tape: Tape, terms: Terms, state: KernelState, log: Log, path: int, b: int, n: int, bar: int) -> float:
    """Pay for the bar, at its close; returns what was paid."""
    account, positions, rules = state.accounts[n], state.positions[n], terms.rules
    rate, misses = terms.scalars[at.BORROW], tape.missing.shape[1] > 0
    owed, financed, paid = max(account[at.BORROWED], borrowed_cash(account, positions, rules)), 0.0, 0.0
    account[at.BORROWED] = 0.0
    for s in range(positions.shape[0]):
        if rules[s, at.SPOT] != 0.0:
            financed += max(0.0, positions[s, at.QUANTITY], positions[s, at.CARRIED]) * _mark(positions, s)
    for s in range(positions.shape[0]):
        held, before, mark = positions[s, at.QUANTITY], positions[s, at.CARRIED], _mark(positions, s)
        positions[s, at.CARRIED] = 0.0
        if held == 0.0 and before == 0.0:
            continue
        if rules[s, at.SPOT] == 0.0:
            missing = tape.missing[path, b, s] if misses else 0.0
            if missing != 0.0:
                due = max(abs(held), abs(before)) * mark * missing
                paid += due
                account[at.FUNDING_PAID] += due
                write(log, at.PAID_MISSING_FUNDING, n, bar, s, -1.0, held, mark, due, 0.0, 0.0, 0.0, 0.0)
            continue
        lent = max(0.0, -held, -before) * mark
        if owed > 0.0 and financed > 0.0:
            lent += owed * max(0.0, held, before) * mark / financed
        if lent > 0.0 and rate > 0.0:
            due = lent * rate
            paid += due
            account[at.BORROW_PAID] += due
            write(log, at.PAID_BORROW, n, bar, s, -1.0, held, mark, due, 0.0, 0.0, 0.0, 0.0)
    account[at.CASH] -= paid
    return float(paid)


@compiled
def _mark(positions: FloatArray, s: int) -> float:
    """The last mark; 0 where nothing was held, since a symbol without a bar yet has none."""
    nothing = positions[s, at.QUANTITY] == 0.0 and positions[s, at.CARRIED] == 0.0
    return 0.0 if nothing else float(positions[s, at.MARK])
