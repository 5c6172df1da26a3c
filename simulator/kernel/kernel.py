"""The one step that every simulated account takes: N accounts x S symbols, bar by bar, compiled.

The single-account exchange is N = 1, simulated scenarios are N = paths, the vectorised environment is N = accounts.
All of them run this code, so they cannot disagree. Inside a bar, in this order:

1. *Open.* Cancelled and expired orders go. Positions whose time is up are closed. Wanted exposures are reached. Active
   orders act on the open: first those that only reduce a position (they free margin), then the others, each group in
   order of submission.
2. *Funding inside the bar* (bars longer than the funding interval): on the last known mark, positions as after 1.
3. *Worst path* (`simulator.kernel.worst_path`). All prices run from the open to the worst extreme for the position
   held, at the same pace. What is met first happens first: stops of positions, stop orders that reduce a position, or
   the liquidation of an isolated position or of the account.
4. *Best path.* Targets of positions that were held since the open and orders that only reduce those, then all other
   orders in order of submission. A position that is opened, enlarged or given a stop here meets its stop or its
   liquidation if the bar touches it, from the price on at which that happened. It never meets its target in the same
   bar, nor does an order that only reduces close it at a better price. The same holds for a position that was opened
   at the open by an order which reaches the venue later inside the bar.
5. *Close.* Positions are marked, funding due exactly then is settled on that mark, what is borrowed is paid for
   (`simulator.kernel.margin`), and an account below its maintenance margin is liquidated.

So a bar that holds both stop and target takes the stop. Where finer bars are given, they decide instead: the tape then
holds those. A bar that is absent for a symbol fills nothing of it and leaves its mark; its orders wait. What is held of
a symbol that is delisted is closed below its last mark (above it, where it is short) by the haircut. Accounts are
linear: ``equity = cash + sum(quantity * mark)``. No fastmath: the same input must give the same bytes.
"""

from __future__ import annotations

import math

import numpy as np

from simulator.arrays import FloatArray
from simulator.kernel import layout as at
from simulator.kernel.fills import drop, late_price, write
from simulator.kernel.jit import allocating, compiled
from simulator.kernel.layout import KernelState, Log, Tape, Terms
from simulator.kernel.margin import ROUNDING, borrowed_cash, cross_breach, isolated_breach, maintenance, pay_carry
from simulator.kernel.matching import at_open, finish, inside, trail
from simulator.kernel.targets import reach_targets
from simulator.kernel.worst_path import close_position, delist, end_account, liquidate, walk_worst_path


@compiled
def _settle(account: FloatArray, position: FloatArray, rate: float, log: Log, n: int, bar: int, s: int) -> float:
    """Pay (or receive) one funding rate on the mark; returns what was paid."""
    paid = position[at.QUANTITY] * position[at.MARK] * rate
    account[at.CASH] -= paid
    account[at.FUNDING_PAID] += paid
    write(log, at.PAID_FUNDING, n, bar, s, -1.0, position[at.QUANTITY], position[at.MARK], paid, 0.0, 0.0, 0.0, 0.0)
    return float(paid)


@compiled
def _walk_best_path(
    tape: Tape, terms: Terms, state: KernelState, log: Log, path: int, b: int, n: int, bar: int
) -> None:
    """Targets first, then resting orders that only reduce what is held since the open, then the others, then the
    trailing stops. A position that a resting order opens or changes goes through the worst path at once."""
    account, positions = state.accounts[n], state.positions[n]
    symbols = positions.shape[0]
    for s in range(symbols):
        quantity, target = positions[s, at.QUANTITY], positions[s, at.TARGET]
        if quantity == 0.0 or math.isnan(target) or math.isnan(tape.close[path, b, s]):
            continue
        if positions[s, at.INSIDE] == bar:  # a stop has turned it in this bar
            continue
        first = tape.open[path, b, s]
        if quantity > 0.0 and tape.high[path, b, s] > target:
            close_position(tape, terms, state, log, path, b, n, bar, s, at.FILL_TARGET, max(target, first))
        elif quantity < 0.0 and tape.low[path, b, s] < target:
            close_position(tape, terms, state, log, path, b, n, bar, s, at.FILL_TARGET, min(target, first))
    if account[at.WAITING] == 0.0:
        return
    for reducing_only in (True, False):
        for m in range(state.orders.shape[1]):
            order = state.orders[n, m]
            s = int(order[at.SYMBOL])
            if order[at.LIVE] == 0.0 or order[at.ARMED] == 0.0 or order[at.ACTIVE] > bar:
                continue
            if order[at.TYPE] == at.MARKET_ORDER or math.isnan(tape.close[path, b, s]):
                continue
            held = positions[s, at.QUANTITY]
            reduces = order[at.REDUCE_ONLY] != 0.0 and held * order[at.AMOUNT] < 0.0
            if (reduces and positions[s, at.INSIDE] != bar) != reducing_only:
                continue
            inside(tape, terms, state, log, path, b, n, m, bar)
            # The price may have gone on to the position's stop or liquidation. The pessimistic case is assumed.
            if positions[s, at.QUANTITY] != held and positions[s, at.QUANTITY] != 0.0:
                walk_worst_path(tape, terms, state, log, path, b, n, bar, s)
    for m in range(state.orders.shape[1]):
        order = state.orders[n, m]
        if order[at.LIVE] != 0.0 and order[at.TYPE] == at.TRAILING_ORDER and order[at.ARMED] != 0.0:
            s = int(order[at.SYMBOL])
            if not math.isnan(tape.close[path, b, s]):
                trail(order, tape.high[path, b, s], tape.low[path, b, s])


@compiled
def _open(tape: Tape, terms: Terms, state: KernelState, log: Log, path: int, b: int, n: int, bar: int) -> None:
    """What orders do at the open."""
    account, positions, orders = state.accounts[n], state.positions[n], state.orders[n]
    for m in range(orders.shape[0]):
        order = orders[m]
        if order[at.LIVE] != 0.0 and order[at.EXPIRES] <= bar:
            drop(log, int(order[at.CAUSE]), n, bar, order, order[at.AMOUNT])
            finish(account, order)
    for reducing_only in (True, False):
        for m in range(orders.shape[0]):
            order = orders[m]
            s = int(order[at.SYMBOL])
            if order[at.LIVE] == 0.0 or order[at.ACTIVE] > bar or math.isnan(tape.close[path, b, s]):
                continue
            held = positions[s, at.QUANTITY]
            reduces = held * order[at.AMOUNT] < 0.0 and abs(order[at.AMOUNT]) <= abs(held)
            # A limit that has been met in the first round must not count as resting in the second.
            if (reduces or not reducing_only) and order[at.MET] != bar:
                order[at.MET] = bar
                at_open(tape, terms, state, log, path, b, n, m, bar)
                late = order[at.ORDER_LATE] if order[at.ACTIVE] == bar else 0.0
                if late > 0.0 and positions[s, at.QUANTITY] != 0.0 and held * positions[s, at.QUANTITY] <= 0.0:
                    # Opened after the open: which of the bar's prices came after it, nobody knows.
                    side = 1.0 if positions[s, at.QUANTITY] > 0.0 else -1.0
                    first, high, low = tape.open[path, b, s], tape.high[path, b, s], tape.low[path, b, s]
                    positions[s, at.INSIDE], positions[s, at.CHANGED] = bar, bar
                    positions[s, at.INSIDE_PRICE] = late_price(first, high, low, side, late)


@allocating
def _uncovered(tape: Tape, terms: Terms, state: KernelState, log: Log, path: int, b: int, n: int, bar: int) -> float:
    """At the close: liquidate isolated positions below their maintenance margin, or the whole cross account. Returns
    the equity that is left."""
    account, positions = state.accounts[n], state.positions[n]
    symbols = positions.shape[0]
    marks = positions[:, at.MARK].copy()
    for s in range(symbols):
        if positions[s, at.QUANTITY] == 0.0 or terms.rules[s, at.ISOLATED] == 0.0:
            continue
        if isolated_breach(positions[s], marks[s], marks[s], terms.rules[s], terms.tiers) <= 1.0:
            liquidate(tape, terms, state, log, path, b, n, bar, s, marks[s])
    if cross_breach(account[at.CASH], positions, marks, marks, terms.rules, terms.tiers) <= 1.0:
        for s in range(symbols):
            if positions[s, at.QUANTITY] != 0.0 and terms.rules[s, at.ISOLATED] == 0.0:
                liquidate(tape, terms, state, log, path, b, n, bar, s, marks[s])
        end_account(account, positions, state.orders[n], log, n, bar)
    equity = account[at.CASH]
    for s in range(symbols):
        if positions[s, at.QUANTITY] != 0.0:
            equity += positions[s, at.QUANTITY] * positions[s, at.MARK]
    if equity <= 0.0 and account[at.ENDED] == 0.0:  # the costs of closing can take more than was left
        end_account(account, positions, state.orders[n], log, n, bar)
    return float(equity)


@compiled
def advance(
    tape: Tape, terms: Terms, state: KernelState, log: Log, start: int, stop: int, first_bar: int, rows: int,
    targets: FloatArray, equity: FloatArray, notional: FloatArray,
) -> int:  # fmt: skip
    """Take every account through the tape's bars ``start .. stop - 1``.

    Args:
        first_bar: what the tape's bar 0 is called in the orders and in the log.
        rows: `layout.log_rows` of the state; a log with rows is written from row 0 on.
        targets: (accounts or 1, stop - start, S) exposures to reach at each bar's open, NaN for no change; without bars
            there are none.
        equity: (N, bars) and notional: (N, bars, S) receive the equity and the signed values at each bar's close;
            arrays without bars receive nothing.

    Returns:
        The tape's bar at which it stopped: earlier than `stop` when the log could overflow in the next bar (read it
        and call again).
    """
    accounts, positions, rules, scalars = state.accounts, state.positions, terms.rules, terms.scalars
    shared = tape.open.shape[0] == 1
    symbols = positions.shape[1]
    log.used[0] = 0
    participation = scalars[at.PARTICIPATION] > 0.0
    low, high, close, mark_close = tape.low, tape.high, tape.close, tape.mark_close
    borrows, misses = scalars[at.BORROW] != 0.0, tape.missing.shape[1] > 0
    delists = False
    for s in range(symbols):
        delists |= start <= tape.delisted[s] < stop
    # Nothing but scalar reads here: a view of a row or a call costs more than a quiet bar.
    alone = accounts.shape[0] == 1
    b = start - 1
    while b + 1 < stop:
        b += 1
        if alone:
            b = skip_idle_bars(tape, terms, state, b, stop, first_bar + b, targets[:, b - start :], equity, notional)
            if b == stop:
                break
        if log.rows.shape[0] > 0 and log.used[0] + rows > log.rows.shape[0]:
            return b
        bar = first_bar + b
        for n in range(accounts.shape[0]):
            path, carries = 0 if shared else n, False
            if accounts[n, at.ENDED] == 0.0:
                wanted = False
                if targets.shape[1] > 0:
                    for s in range(symbols):
                        target = targets[n if targets.shape[0] > 1 else 0, b - start, s]
                        if not math.isnan(target):
                            positions[n, s, at.WANTED] = target
                            positions[n, s, at.LATE] = scalars[at.TARGET_LATE]
                for s in range(symbols):
                    if delists and tape.delisted[s] == b:
                        delist(terms, state, log, n, bar, s)
                    if participation:
                        positions[n, s, at.USED] = 0.0
                    wanted |= not math.isnan(positions[n, s, at.WANTED])
                    if positions[n, s, at.EXPIRY] <= bar and not math.isnan(close[path, b, s]):
                        kind = int(positions[n, s, at.EXIT])
                        close_position(tape, terms, state, log, path, b, n, bar, s, kind, tape.open[path, b, s])
                if wanted:
                    reach_targets(
                        tape.open, high, low, close, tape.volume, tape.half_spread, tape.sigma, rules, terms.tiers,
                        scalars, accounts, positions, log, path, b, n, bar,
                    )  # fmt: skip
                    if scalars[at.TARGET_LATE] != 0.0:
                        for s in range(symbols):
                            positions[n, s, at.LATE] = 0.0
                if accounts[n, at.WAITING] > 0.0:
                    _open(tape, terms, state, log, path, b, n, bar)
                waits = accounts[n, at.WAITING] > 0.0
                held, targeted, endangered, financed, derived = False, False, False, False, False
                excess = accounts[n, at.CASH]
                for s in range(symbols):
                    quantity = positions[n, s, at.QUANTITY]
                    if quantity == 0.0:
                        continue
                    held = True
                    if rules[s, at.SPOT] == 0.0:
                        derived = True
                        carries |= misses and tape.missing[path, b, s] != 0.0
                    elif quantity > 0.0:
                        financed = True
                    else:
                        carries |= borrows
                    targeted |= not math.isnan(positions[n, s, at.TARGET])
                    if tape.funding_inside[path, b, s] != 0.0 and rules[s, at.SPOT] == 0.0:
                        _settle(accounts[n], positions[n, s], tape.funding_inside[path, b, s], log, n, bar, s)
                    if math.isnan(close[path, b, s]):
                        worst = positions[n, s, at.MARK]
                    elif quantity > 0.0:
                        worst = tape.mark_low[path, b, s]
                        endangered |= low[path, b, s] <= positions[n, s, at.STOP]
                    else:
                        worst = tape.mark_high[path, b, s]
                        endangered |= high[path, b, s] >= positions[n, s, at.STOP]
                    excess += quantity * worst
                    if rules[s, at.ISOLATED] != 0.0:
                        endangered = True
                    elif rules[s, at.TIER_FIRST] != rules[s, at.TIER_STOP]:
                        excess -= maintenance(abs(quantity) * worst, rules[s], terms.tiers)
                if borrows and financed and (derived or accounts[n, at.CASH] < -ROUNDING * accounts[n, at.EQUITY]):
                    accounts[n, at.BORROWED] = borrowed_cash(accounts[n], positions[n], rules)
                    carries = True
                if carries:
                    for s in range(symbols):
                        positions[n, s, at.CARRIED] = positions[n, s, at.QUANTITY]
                if held and (waits or endangered or excess <= 0.0):
                    walk_worst_path(tape, terms, state, log, path, b, n, bar, -1)
                if targeted or waits:
                    _walk_best_path(tape, terms, state, log, path, b, n, bar)
            # The close.
            value, needed, held, financed, derived = accounts[n, at.CASH], 0.0, False, False, False
            for s in range(symbols):
                mark = mark_close[path, b, s]
                if math.isnan(mark):
                    mark = positions[n, s, at.MARK]
                else:
                    positions[n, s, at.MARK] = mark
                quantity = positions[n, s, at.QUANTITY]
                if quantity == 0.0:
                    continue
                held = True
                value += quantity * mark
                if rules[s, at.SPOT] == 0.0:
                    derived = True
                    if tape.funding_close[path, b, s] != 0.0:
                        value -= _settle(accounts[n], positions[n, s], tape.funding_close[path, b, s], log, n, bar, s)
                    carries |= misses and tape.missing[path, b, s] != 0.0
                elif quantity > 0.0:
                    financed = True
                else:
                    carries |= borrows
                if rules[s, at.TIER_FIRST] != rules[s, at.TIER_STOP]:
                    needed += maintenance(abs(quantity) * mark, rules[s], terms.tiers)
            if borrows and financed and (derived or accounts[n, at.CASH] < -ROUNDING * accounts[n, at.EQUITY]):
                carries = True
            if carries and accounts[n, at.ENDED] == 0.0:
                value -= pay_carry(tape, terms, state, log, path, b, n, bar)
            if value <= needed and (held or value <= 0.0) and accounts[n, at.ENDED] == 0.0:
                value = _uncovered(tape, terms, state, log, path, b, n, bar)
            accounts[n, at.EQUITY] = value
            accounts[n, at.PEAK] = max(accounts[n, at.PEAK], value)
            if equity.shape[1] > 0:
                equity[n, b] = value
            if notional.shape[1] > 0:
                for s in range(symbols):
                    quantity = positions[n, s, at.QUANTITY]
                    notional[n, b, s] = quantity * positions[n, s, at.MARK] if quantity != 0.0 else 0.0
    return stop


NO_TARGETS: FloatArray = np.empty((1, 0, 0))
NO_EQUITY: FloatArray = np.empty((1, 0))
NO_NOTIONAL: FloatArray = np.empty((1, 0, 0))


# A single account holds or waits in most bars. Such bars are taken here at three times the pace. The rules above stay
# the only ones: a bar in which any of them could act is left to them; the other bars' results are equal to the byte.


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
    cash, value, peak = account[at.CASH], account[at.EQUITY], account[at.PEAK]
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
        peak = max(peak, value)
        if equity.shape[1] > 0:
            equity[0, b] = value
        if notional.shape[1] > 0:
            for s in range(symbols):
                quantity = positions[s, at.QUANTITY]
                notional[0, b, s] = quantity * marks[b, s] if quantity != 0.0 else 0.0
        last = b + 1
    if last > start:
        account[at.EQUITY], account[at.PEAK] = value, peak
        for s in range(symbols):
            if participation:
                positions[s, at.USED] = 0.0
            for b in range(last - 1, start - 1, -1):  # the newest mark that there is
                if not math.isnan(marks[b, s]):
                    positions[s, at.MARK] = marks[b, s]
                    break
    return last
