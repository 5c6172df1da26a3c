"""Compiled: what it costs to hold a position over a bar, beside the funding that the data states.

* Coins of a spot market that are held short are borrowed and pay ``quantity * mark * rate``.
* Cash is borrowed where spot coins cost more than the account's own: what is left in quote currency is the cash, with
  the value of the perpetuals in place of what they cost and without the margin that is set aside for isolated ones.
  Below zero it is a loan. Its interest is booked to the long coins, by their value.
* A perpetual whose settlement the data lacks pays the stated rate, long or short.

A bar is paid for by the larger of what stood after its open and at its close. So what is closed inside the bar, or
opened in it, pays for the whole bar. Only what is both opened and closed inside one bar pays nothing.
"""

from __future__ import annotations

from simulator.arrays import FloatArray
from simulator.kernel import layout as at
from simulator.kernel.fills import write
from simulator.kernel.jit import compiled
from simulator.kernel.layout import KernelState, Log, Tape, Terms

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
