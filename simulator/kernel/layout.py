"""The arrays that the kernel works on: markets, rules, accounts, positions, orders and the log, by column.

Quantities are signed base units (+ is long or bought), money is in quote currency, fees and spreads are fractions. NaN
means "none" for prices and levels.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simulator.arrays import FloatArray, IntArray


class Tape(NamedTuple):
    """Bars, each array (paths, bars, S); one path serves all accounts, else account n lives on path n.

    Attributes:
        mark_low, mark_high, mark_close: of the mark price, on which accounts are valued and liquidated; where the data
            has none, the very arrays of the trade price.
        sigma: volatility of a bar's log return as known before the bar, for the market impact.
        funding_inside: rates settled strictly inside the bar, summed. funding_close: settled at its close.
        missing: rates of settlements that the data lacks, summed at the bar's close; both sides pay them. Without bars
            none is missing.
        delisted: (S,) the bar at whose open the venue closes what is held of a symbol, which is absent from then on;
            `NEVER` where it stays listed.
    """

    open: FloatArray
    high: FloatArray
    low: FloatArray
    close: FloatArray
    volume: FloatArray
    half_spread: FloatArray
    mark_low: FloatArray
    mark_high: FloatArray
    mark_close: FloatArray
    sigma: FloatArray
    funding_inside: FloatArray
    funding_close: FloatArray
    missing: FloatArray
    delisted: IntArray


class Terms(NamedTuple):
    """What trading is subject to: rules (S, RULE_FIELDS), tiers (all symbols' rows, TIER_FIELDS), and
    scalars (SCALARS,)."""

    rules: FloatArray
    tiers: FloatArray
    scalars: FloatArray


class KernelState(NamedTuple):
    """Everything that changes while N accounts live: accounts (N, ACCOUNT_FIELDS), positions (N, S, POSITION_FIELDS),
    and orders (N, M, ORDER_FIELDS) in order of submission."""

    accounts: FloatArray
    positions: FloatArray
    orders: FloatArray


class Log(NamedTuple):
    """Events (rows, LOG_FIELDS) and how many rows are used (1,). Without rows nothing is written."""

    rows: FloatArray
    used: IntArray


NEVER = np.iinfo(np.int64).max  # the bar of what does not happen

# Columns of the rules. TIER_FIRST .. TIER_STOP are rows of the tiers. MAKER and TAKER are NaN for the account's own.
SPOT, LOT, MIN_NOTIONAL, MAKER, TAKER, LIQUIDATION_FEE, ISOLATED, LEVERAGE, TIER_FIRST, TIER_STOP, TICK = range(11)
RULE_FIELDS = 11

# Columns of the tiers, see simulator.exchange.rules.MarginTier and maintenance_amounts.
FLOOR, RATE, AMOUNT_OFF, TIER_LEVERAGE = range(4)
TIER_FIELDS = 4

# The scalars. PARTICIPATION is the share of a bar's volume that one account may trade, 0 for any. BORROW is per bar.
# TARGET_LATE is the ORDER_LATE of targets, HAIRCUT what a position loses of its last mark when it is delisted.
SPREAD_MULTIPLIER, IMPACT, PARTICIPATION, MAX_LEVERAGE, BORROW, FEE_IN_BASE, FEE_ON_TOP, TARGET_LATE, HAIRCUT = range(9)
SCALARS = 9

# Columns of the accounts. The sums are of what was paid so far. WAITING counts live orders, ENDED is 1 after a
# liquidation of the account, PEAK is of the equity at closes. BORROWED is the cash that was borrowed after
# the bar's open.
CASH, EQUITY, PEAK, MAKER_FEE, TAKER_FEE, WAITING, ENDED = range(7)
FEES, SPREAD, IMPACT_PAID, FUNDING_PAID, BORROW_PAID, LIQUIDATION_PAID, INSURED = range(7, 14)
BORROWED = 14
ACCOUNT_FIELDS = 15

# Columns of the positions. WANTED: target exposure that is still to be reached. EXPIRY: bar at whose open the position
# is closed, EXIT the kind of that fill. MARGIN: set aside for an isolated position. USED: quantity traded in this bar.
# ORDERED and the two after it sum, over fills of orders, the quantity, its absolute value and quantity * price.
# CARRIED: quantity after the bar's open, kept until its carry is paid at the close. INSIDE: the bar inside which the
# position was opened or turned, -1 for one that was opened at an open by an order that was there. LATE: as ORDER_LATE,
# of the target that came with this bar. CHANGED: the bar inside which an order last changed the position. INSIDE_PRICE:
# the market's price then, costs left out; of several changes inside a bar the worst for the position.
QUANTITY, ENTRY, STOP, TARGET, MARK, EXPIRY, EXIT, MARGIN, USED, WANTED = range(10)
ORDERED, ORDERED_ABS, ORDERED_VALUE = range(10, 13)
CARRIED, INSIDE, LATE, CHANGED, INSIDE_PRICE = range(13, 18)
POSITION_FIELDS = 18

# Columns of the orders. LIVE 0: the row is free. ACTIVE: first bar in which it may act; EXPIRES: first bar in which it
# may not, for the reason CAUSE. ARMED: has met an open (limits rest, trails have a start). SIDE: sign of the position
# that the bracket is meant for, 0 without one. HOLD: bars after which the position is closed, 0 never. MET: the
# bar whose open it met last. ORDER_LATE: how far the price may have run against the order when it reaches the venue
# inside its ACTIVE bar, as a share of the way from the open to the extreme; 0 for an order that is there at the open.
LIVE, ORDER_ID, SYMBOL, TYPE, AMOUNT, LIMIT, TRIGGER, TRAIL, ACTIVE, EXPIRES, CAUSE, IN_FORCE, REDUCE_ONLY = range(13)
GROUP, ORDER_STOP, ORDER_TARGET, SIDE, HOLD, ARMED, MET = range(13, 20)
ORDER_LATE = 20
ORDER_FIELDS = 21

# TYPE of an order.
MARKET_ORDER, LIMIT_ORDER, STOP_ORDER, STOP_LIMIT_ORDER, TAKE_PROFIT_ORDER, TRAILING_ORDER = range(6)
# IN_FORCE of a limit.
GTC, IOC, FOK, POST_ONLY = range(4)

# Columns of the log and its kinds: fills, money that moved without a trade, and why an order was dropped.
KIND, LOG_ACCOUNT, LOG_BAR, LOG_SYMBOL, LOG_ORDER, LOG_QUANTITY, LOG_PRICE, LOG_FEE, LOG_SPREAD, LOG_IMPACT = range(10)
LOG_MAKER, LOG_COINS = 10, 11  # LOG_COINS: what a fee in coins took from those bought
LOG_FIELDS = 12
# FILL_INSIDE: an order's fill after the open.
FILL_ORDER, FILL_INSIDE, FILL_STOP, FILL_TARGET, FILL_TIME, FILL_LIQUIDATION = range(6)
PAID_FUNDING, PAID_BORROW, PAID_INSURANCE, PAID_LIQUIDATION = range(6, 10)
(
    DROP_LEVERAGE, DROP_REDUCE_ONLY, DROP_BRACKET_CLOSED, DROP_BRACKET_SIDE, DROP_LIQUIDATED, DROP_CANCELLED,
    DROP_EXPIRED, DROP_IOC, DROP_FOK, DROP_POST_ONLY, DROP_OCO, DROP_MIN_NOTIONAL,
) = range(10, 22)  # fmt: skip

# A saved account names these kinds, so those that came later stand behind.
FILL_DELISTED, PAID_MISSING_FUNDING, DROP_DELISTED = range(22, 25)
FILL_KINDS = (*range(FILL_ORDER, FILL_LIQUIDATION + 1), FILL_DELISTED)

DUST = 1e-12  # a remainder this small beside the quantities that made it is rounding, not a position


def new_state(accounts: int, symbols: int, order_rows: int, cash: float) -> KernelState:
    """`accounts` flat accounts that hold `cash` each, with room for `order_rows` live orders each."""
    state = KernelState(
        np.zeros((accounts, ACCOUNT_FIELDS)),
        np.zeros((accounts, symbols, POSITION_FIELDS)),
        np.zeros((accounts, order_rows, ORDER_FIELDS)),
    )
    state.accounts[:, [CASH, EQUITY, PEAK]] = cash
    state.positions[:, :, [ENTRY, STOP, TARGET, MARK, WANTED]] = np.nan
    state.positions[:, :, EXPIRY] = np.inf
    state.positions[:, :, [INSIDE, CHANGED]] = -1.0
    return state


def new_log(rows: int) -> Log:
    """An empty log with room for `rows` events; 0 for none."""
    return Log(np.empty((rows, LOG_FIELDS)), np.zeros(1, np.int64))


def log_rows(state: KernelState) -> int:
    """How many log rows one bar of these accounts can need at most. In a group each fill lessens all the others."""
    accounts, orders, symbols = len(state.accounts), state.orders.shape[1], state.positions.shape[1]
    groups = state.orders[:, :, GROUP]
    grouped = int((groups > 0.0).sum(axis=1).max(initial=0)) if groups.any() else 0  # seldom, and slow to count
    return accounts * (8 * orders + 20 * symbols + 2 * grouped * grouped)
