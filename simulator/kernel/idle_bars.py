"""Compiled: a shortcut through the bars in which a single account has nothing to do but to be marked.

A single account holds or waits in most bars. Such bars are taken here at three times the pace of
`simulator.kernel.kernel`. The kernel's rules stay the only ones: a bar in which any of them could act is left to the
kernel, and the results of the other bars are equal to the kernel's byte for byte.
"""

from __future__ import annotations

import math

from simulator.arrays import FloatArray
from simulator.kernel import layout as at
from simulator.kernel.carry import ROUNDING
from simulator.kernel.jit import compiled
from simulator.kernel.layout import KernelState, Tape, Terms


@compiled
def skip_idle_bars(
    tape: Tape, terms: Terms, state: KernelState, start: int, stop: int, bar: int, targets: FloatArray,
    equity: FloatArray, notional: FloatArray,
) -> int:  # fmt: skip
    """Advance the only account from the tape's bar `start`; returns the bar at which the kernel is needed, or `stop`.

    `bar` is what `start` is called, `targets` (1, stop - start, S) begin there; equity and notional are as of
    `kernel.advance`.
    """
    account, positions, rules = state.accounts[0], state.positions[0], terms.rules
    symbols = positions.shape[0]
    if account[at.WAITING] > 0.0:
        return start
    expiry, financed, derived = math.inf, False, False
    for s in range(symbols):
        expiry = min(expiry, positions[s, at.EXPIRY])
        quantity = positions[s, at.QUANTITY]
        margined = rules[s, at.ISOLATED] != 0.0 or rules[s, at.TIER_FIRST] != rules[s, at.TIER_STOP]
        spot = rules[s, at.SPOT] != 0.0
        borrowed = spot and quantity < 0.0
        financed |= spot and quantity > 0.0
        derived |= not spot and quantity != 0.0
        if not math.isnan(positions[s, at.WANTED]) or (quantity != 0.0 and (margined or borrowed)):
            return start
    if financed and (derived or account[at.CASH] < -ROUNDING * account[at.EQUITY]):
        return start
    highs, lows, closes = tape.high[0], tape.low[0], tape.close[0]
    mark_highs, mark_lows, marks = tape.mark_high[0], tape.mark_low[0], tape.mark_close[0]
    inside, at_close = tape.funding_inside[0], tape.funding_close[0]
    cash, value, peak, lowest = account[at.CASH], account[at.EQUITY], account[at.PEAK], account[at.LOWEST]
    participation = terms.scalars[at.PARTICIPATION] > 0.0
    misses = tape.missing.shape[1] > 0
    last = start
    for b in range(start, stop):
        if expiry <= bar + (b - start):
            break
        quiet, now, excess = True, cash, cash
        for s in range(symbols):
            if targets.shape[1] > 0 and not math.isnan(targets[0, b - start, s]):
                quiet = False
            quantity = positions[s, at.QUANTITY]
            if quantity == 0.0:
                continue
            stopped, target = positions[s, at.STOP], positions[s, at.TARGET]
            if quantity > 0.0:
                touched = lows[b, s] <= stopped or highs[b, s] > target
                excess += quantity * mark_lows[b, s]
            else:
                touched = highs[b, s] >= stopped or lows[b, s] < target
                excess += quantity * mark_highs[b, s]
            settles = inside[b, s] != 0.0 or at_close[b, s] != 0.0 or (misses and tape.missing[0, b, s] != 0.0)
            now += quantity * marks[b, s]
            if touched or settles or math.isnan(closes[b, s]) or math.isnan(marks[b, s]):
                quiet = False
        if not (quiet and now > 0.0 and excess > 0.0):
            break
        value = now
        peak, lowest = max(peak, value), min(lowest, value)
        if equity.shape[1] > 0:
            equity[0, b] = value
        if notional.shape[1] > 0:
            for s in range(symbols):
                quantity = positions[s, at.QUANTITY]
                notional[0, b, s] = quantity * marks[b, s] if quantity != 0.0 else 0.0
        last = b + 1
    if last > start:
        account[at.EQUITY], account[at.PEAK], account[at.LOWEST] = value, peak, lowest
        for s in range(symbols):
            if participation:
                positions[s, at.USED] = 0.0
            for b in range(last - 1, start - 1, -1):  # the newest mark that there is
                if not math.isnan(marks[b, s]):
                    positions[s, at.MARK] = marks[b, s]
                    break
    return last
