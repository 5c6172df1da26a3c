"""The one step that every simulated account takes: N accounts x S symbols, bar by bar, compiled.

The single-account exchange is N = 1, simulated futures are N = paths; because all run this very code they cannot
disagree. What happens inside a bar, in this order:

1. *Open.* Active orders fill at the bar's open: first those that only reduce a position (they free margin), then the
   others, each group in order of submission. An increase beyond the leverage cap is cut to what fits after its costs.
2. *Funding inside the bar* (bars longer than the funding interval): on the last known close, positions as after 1.
3. *Stop and target.* A stop is hit when the bar touches it and fills at the worse of its price and the open. A target
   is hit when the bar trades through it (beyond, not just at it) and fills at the better of its price and the open.
   A bar that holds both takes the stop. The exit cancels the symbol's pending orders: what they were
   to change is gone.
4. *Close.* Positions are marked at the close, funding due exactly then is settled on that mark.
5. *Bankruptcy.* Equity at or below zero closes everything at the mark and ends the account. A loss beyond the cash
   stays visible as negative equity; there is no insurance fund here.

Every fill takes liquidity: it pays half the spread (in the price) and the taker fee. A bar that is absent for a symbol
fills nothing of it and leaves its mark; its orders wait. Accounts are linear: ``equity = cash + sum(quantity * mark)``.

No fastmath: the same input must give the same bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.compiled import compiled

FloatArray = NDArray[np.float64]

# Columns of the tape (paths, bars, S, TAPE_FIELDS). FUNDING_INSIDE: rates settled strictly inside the bar, summed.
OPEN, HIGH, LOW, CLOSE, HALF_SPREAD, FUNDING_INSIDE, FUNDING_CLOSE = range(7)
TAPE_FIELDS = 7

# Columns of the accounts (N, ACCOUNT_FIELDS). Money in quote currency; fees, spread and funding are sums paid so far.
# PENDING counts the orders that wait, ENDED is 1 after a bankruptcy, PEAK and LOWEST are of the equity at closes.
CASH, EQUITY, PEAK, LOWEST, FEES, SPREAD, FUNDING_PAID, PENDING, ENDED = range(9)
ACCOUNT_FIELDS = 9

# Columns of the positions (N, S, POSITION_FIELDS). NaN: no entry, stop, target or mark. The last three sum, over fills
# of orders, the quantity, its absolute value and quantity * price: what an execution shortfall is made of.
QUANTITY, ENTRY, STOP, TARGET, MARK, ORDERED, ORDERED_ABS, ORDERED_VALUE = range(8)
POSITION_FIELDS = 8

# Columns of the orders (N, M, ORDER_FIELDS). WAITING 0: the row is free. ACTIVE: first bar in which the order may fill.
# SIDE: sign of the position that the bracket is meant for, 0 without a bracket.
WAITING, ORDER_ID, SYMBOL, AMOUNT, ORDER_STOP, ORDER_TARGET, ACTIVE, REDUCE_ONLY, SIDE = range(9)
ORDER_FIELDS = 9

# Columns of the log (events, LOG_FIELDS), and its kinds of events: fills, a settlement, and why an order was dropped.
KIND, LOG_ACCOUNT, LOG_BAR, LOG_SYMBOL, LOG_ORDER, LOG_QUANTITY, LOG_PRICE, LOG_FEE, LOG_SPREAD = range(9)
LOG_FIELDS = 9
FILL_ORDER, FILL_STOP, FILL_TARGET, FILL_BANKRUPT, SETTLED = range(5)
DROP_LEVERAGE, DROP_REDUCE_ONLY, DROP_BRACKET_CLOSED, DROP_BRACKET_SIDE, DROP_BANKRUPT = range(5, 10)

DUST = 1e-12  # a remainder this small beside the quantities that made it is rounding, not a position


@dataclass
class State:
    """Everything that changes while N accounts live (see the column constants of this module)."""

    accounts: FloatArray  # (N, ACCOUNT_FIELDS)
    positions: FloatArray  # (N, S, POSITION_FIELDS)
    orders: FloatArray  # (N, M, ORDER_FIELDS)


def new_state(accounts: int, symbols: int, order_rows: int, cash: float) -> State:
    """`accounts` flat accounts that hold `cash` each, with room for `order_rows` waiting orders each."""
    state = State(
        np.zeros((accounts, ACCOUNT_FIELDS)),
        np.zeros((accounts, symbols, POSITION_FIELDS)),
        np.zeros((accounts, order_rows, ORDER_FIELDS)),
    )
    state.accounts[:, [CASH, EQUITY, PEAK, LOWEST]] = cash
    state.positions[:, :, [ENTRY, STOP, TARGET, MARK]] = np.nan
    return state


def log_rows(state: State) -> int:
    """How many log rows one bar of these accounts can need at most."""
    return len(state.accounts) * int(2 * state.orders.shape[1] + 4 * state.positions.shape[1])


@compiled
def _write(
    log: FloatArray, logged: int, kind: int, account: int, bar: int, symbol: int, order_id: float,
    quantity: float, price: float, fee: float, spread: float,
) -> int:  # fmt: skip
    """Append an event; a log without rows wants none."""
    if log.shape[0] == 0:
        return logged
    row = log[logged]
    row[KIND] = kind
    row[LOG_ACCOUNT] = account
    row[LOG_BAR] = bar
    row[LOG_SYMBOL] = symbol
    row[LOG_ORDER] = order_id
    row[LOG_QUANTITY] = quantity
    row[LOG_PRICE] = price
    row[LOG_FEE] = fee
    row[LOG_SPREAD] = spread
    return logged + 1


@compiled
def _fill(
    state: tuple[FloatArray, FloatArray], log: FloatArray, logged: int, kind: int, n: int, bar: int, s: int,
    order_id: float, quantity: float, reference: float, half_spread: float, fee_rate: float,
) -> int:  # fmt: skip
    """Trade `quantity` at `reference` worsened by the half spread, and keep the books."""
    account = state[0][n]
    position = state[1][n, s]
    held = position[QUANTITY]
    new = held + quantity
    if abs(new) <= DUST * max(abs(held), abs(quantity)):
        quantity = -held
        new = 0.0
    price = reference * (1.0 + half_spread) if quantity > 0.0 else reference * (1.0 - half_spread)
    fee = abs(quantity) * price * fee_rate
    spread = abs(quantity) * reference * half_spread
    account[CASH] -= quantity * price
    account[CASH] -= fee
    account[FEES] += fee
    account[SPREAD] += spread
    if new == 0.0:
        position[ENTRY] = np.nan
        position[STOP] = np.nan
        position[TARGET] = np.nan
    elif held * new <= 0.0:  # opened or turned round
        position[ENTRY] = price
        position[STOP] = np.nan
        position[TARGET] = np.nan
    elif abs(new) > abs(held):
        position[ENTRY] = (held * position[ENTRY] + quantity * price) / new
    position[QUANTITY] = new
    if kind == FILL_ORDER:
        position[ORDERED] += quantity
        position[ORDERED_ABS] += abs(quantity)
        position[ORDERED_VALUE] += quantity * price
    return _write(log, logged, kind, n, bar, s, order_id, quantity, price, fee, spread)


@compiled
def _room(
    state: tuple[FloatArray, FloatArray], bars: FloatArray, n: int, s: int, closing: float, side: float,
    fee_rate: float, multiplier: float, max_leverage: float,
) -> float:  # fmt: skip
    """Largest increase of symbol `s`, in base units, that keeps gross notional within the cap after its own costs.

    Values are those of this bar's opens. With equity E and gross notional G after `closing` units have been closed,
    x units at price P and unit cost c fit while G + x P <= cap (E - x P c), so x = (cap E - G) / (P (1 + cap c)).
    """
    equity = state[0][n, CASH]
    gross = 0.0
    for k in range(state[1].shape[1]):
        quantity = state[1][n, k, QUANTITY]
        if quantity != 0.0:
            price = bars[k, OPEN] if not math.isnan(bars[k, CLOSE]) else state[1][n, k, MARK]
            equity += quantity * price
            gross += abs(quantity) * price
    price = bars[s, OPEN]
    half_spread = bars[s, HALF_SPREAD] * multiplier
    cost = half_spread + fee_rate * (1.0 + side * half_spread)
    equity -= closing * price * cost
    gross -= closing * price
    return float((max_leverage * equity - gross) / (price * (1.0 + max_leverage * cost)))


@compiled
def _execute(
    state: tuple[FloatArray, FloatArray], order: FloatArray, bars: FloatArray, log: FloatArray, logged: int,
    n: int, bar: int, fee_rate: float, multiplier: float, max_leverage: float,
) -> int:  # fmt: skip
    """Fill, cut or drop one active order at the open of its symbol's bar. The order is over either way."""
    s = int(order[SYMBOL])
    position = state[1][n, s]
    order[WAITING] = 0.0
    state[0][n, PENDING] -= 1.0
    held = position[QUANTITY]
    quantity = order[AMOUNT]
    if order[REDUCE_ONLY] != 0.0:
        if held * quantity >= 0.0:
            return _write(log, logged, DROP_REDUCE_ONLY, n, bar, s, order[ORDER_ID], quantity, 0.0, 0.0, 0.0)
        excess = abs(quantity) - abs(held)
        if excess > 0.0:
            if excess > DUST * abs(quantity):
                cut = quantity + held
                logged = _write(log, logged, DROP_REDUCE_ONLY, n, bar, s, order[ORDER_ID], cut, 0.0, 0.0, 0.0)
            quantity = -held
    if order[SIDE] * (held + quantity) < -DUST * abs(quantity):
        return _write(log, logged, DROP_BRACKET_SIDE, n, bar, s, order[ORDER_ID], quantity, 0.0, 0.0, 0.0)
    side = 1.0 if quantity > 0.0 else -1.0
    closing = min(abs(quantity), abs(held)) if held * quantity < 0.0 else 0.0
    opening = abs(quantity) - closing
    if opening > DUST * abs(quantity):
        room = max(0.0, _room(state, bars, n, s, closing, side, fee_rate, multiplier, max_leverage))
        if opening > room * (1.0 + DUST):
            logged = _write(
                log, logged, DROP_LEVERAGE, n, bar, s, order[ORDER_ID], side * (opening - room), 0.0, 0.0, 0.0
            )
            quantity = side * (closing + room)
            if quantity == 0.0:
                return logged
    logged = _fill(
        state, log, logged, FILL_ORDER, n, bar, s, order[ORDER_ID], quantity, bars[s, OPEN],
        bars[s, HALF_SPREAD] * multiplier, fee_rate,
    )  # fmt: skip
    if position[QUANTITY] != 0.0:
        if not math.isnan(order[ORDER_STOP]):
            position[STOP] = order[ORDER_STOP]
        if not math.isnan(order[ORDER_TARGET]):
            position[TARGET] = order[ORDER_TARGET]
    return logged


@compiled
def _cancel(
    account: FloatArray, orders: FloatArray, log: FloatArray, logged: int, kind: int, n: int, bar: int, symbol: int
) -> int:
    """Drop the waiting orders of `symbol`, or all of them where it is -1."""
    for m in range(orders.shape[0]):
        order = orders[m]
        if order[WAITING] != 0.0 and (symbol < 0 or int(order[SYMBOL]) == symbol):
            order[WAITING] = 0.0
            account[PENDING] -= 1.0
            logged = _write(
                log, logged, kind, n, bar, int(order[SYMBOL]), order[ORDER_ID], order[AMOUNT], 0.0, 0.0, 0.0
            )
    return logged


@compiled
def _settle(
    account: FloatArray, position: FloatArray, rate: float, log: FloatArray, logged: int, n: int, bar: int, s: int
) -> int:
    """Pay (or receive) one funding rate on the mark."""
    if position[QUANTITY] == 0.0 or rate == 0.0:
        return logged
    paid = position[QUANTITY] * position[MARK] * rate
    account[CASH] -= paid
    account[FUNDING_PAID] += paid
    return _write(log, logged, SETTLED, n, bar, s, -1.0, position[QUANTITY], position[MARK], paid, 0.0)


@compiled
def _bracket(
    state: tuple[FloatArray, FloatArray], orders: FloatArray, bars: FloatArray, log: FloatArray, logged: int,
    n: int, bar: int, s: int, fee_rate: float, multiplier: float,
) -> int:  # fmt: skip
    """Take the stop or the target of one position if this bar reached it."""
    position = state[1][n, s]
    quantity, stop, target = position[QUANTITY], position[STOP], position[TARGET]
    first, high, low = bars[s, OPEN], bars[s, HIGH], bars[s, LOW]
    # Comparisons with NaN (no stop, no target) are false.
    if quantity > 0.0 and low <= stop:
        kind, price = FILL_STOP, min(stop, first)
    elif quantity > 0.0 and high > target:
        kind, price = FILL_TARGET, max(target, first)
    elif quantity < 0.0 and high >= stop:
        kind, price = FILL_STOP, max(stop, first)
    elif quantity < 0.0 and low < target:
        kind, price = FILL_TARGET, min(target, first)
    else:
        return logged
    half_spread = bars[s, HALF_SPREAD] * multiplier
    logged = _fill(state, log, logged, kind, n, bar, s, -1.0, -quantity, price, half_spread, fee_rate)
    return _cancel(state[0][n], orders[n], log, logged, DROP_BRACKET_CLOSED, n, bar, s)


@compiled
def _close_of_bar(
    state: tuple[FloatArray, FloatArray], orders: FloatArray, bars: FloatArray, log: FloatArray, logged: int,
    n: int, bar: int, fee_rate: float, multiplier: float,
) -> int:  # fmt: skip
    """Mark, settle what is due at the close, and end the account if nothing is left."""
    account, positions = state[0][n], state[1][n]
    symbols = positions.shape[0]
    for s in range(symbols):
        if not math.isnan(bars[s, CLOSE]):
            positions[s, MARK] = bars[s, CLOSE]
        logged = _settle(account, positions[s], bars[s, FUNDING_CLOSE], log, logged, n, bar, s)
    equity = account[CASH]
    for s in range(symbols):
        if positions[s, QUANTITY] != 0.0:
            equity += positions[s, QUANTITY] * positions[s, MARK]
    if equity <= 0.0 and account[ENDED] == 0.0:
        for s in range(symbols):
            if positions[s, QUANTITY] != 0.0:
                logged = _fill(
                    state, log, logged, FILL_BANKRUPT, n, bar, s, -1.0, -positions[s, QUANTITY], positions[s, MARK],
                    bars[s, HALF_SPREAD] * multiplier, fee_rate,
                )  # fmt: skip
        equity = account[CASH]
        account[ENDED] = 1.0
        logged = _cancel(account, orders[n], log, logged, DROP_BANKRUPT, n, bar, -1)
    account[EQUITY] = equity
    account[PEAK] = max(account[PEAK], equity)
    account[LOWEST] = min(account[LOWEST], equity)
    return logged


@compiled
def advance(
    tape: FloatArray, start: int, stop: int, first_bar: int, accounts: FloatArray, positions: FloatArray,
    orders: FloatArray, log: FloatArray, rows: int, record: FloatArray, fee_rate: float, multiplier: float,
    max_leverage: float,
) -> tuple[int, int]:  # fmt: skip
    """Take every account through the tape's bars ``start .. stop - 1``.

    Args:
        tape: (paths, bars, S, TAPE_FIELDS); one path serves all accounts, else account n lives on path n.
        first_bar: what the tape's bar 0 is called in `orders` and in the log.
        accounts, positions, orders: the parts of a `State`, changed in place.
        log: (events, LOG_FIELDS), filled from row 0; no rows at all: nothing is logged.
        rows: `log_rows` of the state.
        record: (N, bars, 1 + S) receives the equity and the signed notionals at each bar's close.
        fee_rate: taker fee as a fraction; multiplier: of the half spreads; max_leverage: gross notional / equity.

    Returns:
        The tape's bar at which it stopped (earlier than `stop` when the log could overflow in the next bar: empty it
        and call again) and the number of log rows written.
    """
    state = (accounts, positions)
    shared = tape.shape[0] == 1
    symbols = positions.shape[1]
    logged = 0
    for b in range(start, stop):
        if log.shape[0] > 0 and logged + rows > log.shape[0]:
            return b, logged
        bar = first_bar + b
        for n in range(accounts.shape[0]):
            bars = tape[0 if shared else n, b]
            if accounts[n, PENDING] > 0.0:
                for reducing_only in (True, False):
                    for m in range(orders.shape[1]):
                        order = orders[n, m]
                        s = int(order[SYMBOL])
                        if order[WAITING] == 0.0 or order[ACTIVE] > bar or math.isnan(bars[s, CLOSE]):
                            continue
                        held = positions[n, s, QUANTITY]
                        reduces = held * order[AMOUNT] < 0.0 and abs(order[AMOUNT]) <= abs(held)
                        if reducing_only and not reduces:
                            continue
                        logged = _execute(state, order, bars, log, logged, n, bar, fee_rate, multiplier, max_leverage)
            for s in range(symbols):
                if positions[n, s, QUANTITY] != 0.0:
                    logged = _settle(accounts[n], positions[n, s], bars[s, FUNDING_INSIDE], log, logged, n, bar, s)
                    if not math.isnan(bars[s, CLOSE]):
                        logged = _bracket(state, orders, bars, log, logged, n, bar, s, fee_rate, multiplier)
            logged = _close_of_bar(state, orders, bars, log, logged, n, bar, fee_rate, multiplier)
            record[n, b, 0] = accounts[n, EQUITY]
            for s in range(symbols):
                quantity = positions[n, s, QUANTITY]
                record[n, b, 1 + s] = quantity * positions[n, s, MARK] if quantity != 0.0 else 0.0
    return stop, logged
