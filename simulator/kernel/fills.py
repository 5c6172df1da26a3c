"""Compiled: a single fill, and its limits: volume, lots, price impact.

The square-root law of impact: trading a share x of a bar's volume moves the price by ``Y sigma sqrt(x)``, sigma the
volatility of a bar, Y near 1 (Almgren, Thum, Hauptmann and Li 2005; Toth et al. 2011).
"""

from __future__ import annotations

import math

import numpy as np

from simulator.arrays import FloatArray
from simulator.kernel import layout as at
from simulator.kernel.jit import compiled, inlined
from simulator.kernel.layout import Log


@compiled
def write(
    log: Log, kind: int, n: int, bar: int, s: int, order_id: float, quantity: float, price: float, fee: float,
    spread: float, impact: float, maker: float, coins: float,
) -> None:  # fmt: skip
    """Append an event; a log without rows wants none."""
    if log.rows.shape[0] == 0:
        return
    row = log.rows[log.used[0]]
    log.used[0] += 1
    row[at.KIND] = kind
    row[at.LOG_ACCOUNT] = n
    row[at.LOG_BAR] = bar
    row[at.LOG_SYMBOL] = s
    row[at.LOG_ORDER] = order_id
    row[at.LOG_QUANTITY] = quantity
    row[at.LOG_PRICE] = price
    row[at.LOG_FEE] = fee
    row[at.LOG_SPREAD] = spread
    row[at.LOG_IMPACT] = impact
    row[at.LOG_MAKER] = maker
    row[at.LOG_COINS] = coins


@compiled
def drop(log: Log, kind: int, n: int, bar: int, order: FloatArray, quantity: float) -> None:
    """Record that `quantity` of an order is not executed."""
    write(log, kind, n, bar, int(order[at.SYMBOL]), order[at.ORDER_ID], quantity, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


@compiled
def forget_target(position: FloatArray, log: Log, kind: int, n: int, bar: int, s: int) -> None:
    """Give up the exposure that was still to be reached and record it."""
    if not math.isnan(position[at.WANTED]):
        write(log, kind, n, bar, s, -1.0, 0.0, position[at.WANTED], 0.0, 0.0, 0.0, 0.0, 0.0)
        position[at.WANTED] = np.nan


@compiled
def _whole(lots: float) -> float:
    """`lots` rounded down; from 1e15 on a float holds no part of one, and an integer would not hold them all."""
    return lots if lots >= 1e15 else float(math.floor(lots + 1e-6))


@inlined
def on_lot(quantity: float, lot: float) -> float:
    """`quantity` (from 0 up) rounded down to whole lots; what lies within a millionth below a lot is that lot."""
    return quantity if lot == 0.0 else _whole(quantity / lot) * lot


@inlined
def available(volume: float, used: float, participation: float) -> float:
    """What one account may still trade in this bar, in base units."""
    return np.inf if participation <= 0.0 else max(0.0, participation * volume - used)


@inlined
def impact_of(quantity: float, volume: float, sigma: float, coefficient: float) -> float:
    """Fraction by which trading `quantity` worsens the price."""
    if coefficient == 0.0 or volume <= 0.0:
        return 0.0
    return coefficient * sigma * math.sqrt(quantity / volume)


@inlined
def taker_price(reference: float, side: float, worse: float, tick: float) -> float:
    """`reference` worsened by the fraction `worse`, and rounded to the tick against the trader, never for them.

    A price below one tick is left as it is: the tick is that of another time.
    """
    exact = reference * (1.0 + side * worse)
    if tick == 0.0 or exact <= tick:
        return exact
    ticks = exact / tick
    # What lies within a millionth of a tick is on it, and is left as it is where that tick would be the better price.
    if side > 0.0:
        return max(tick * math.ceil(ticks - 1e-6), exact)
    return min(tick * math.floor(ticks + 1e-6), exact)


@inlined
def worse_on_tick(reference: float, side: float, worse: float, tick: float) -> float:
    """`worse` with the rounding of `taker_price`."""
    return worse if tick == 0.0 else side * (taker_price(reference, side, worse, tick) / reference - 1.0)


@inlined
def late_price(first: float, high: float, low: float, side: float, late: float) -> float:
    """The price at which an order of `side` meets a bar that opens at `first`, see `layout.ORDER_LATE`."""
    return first if late == 0.0 else first + late * ((high if side > 0.0 else low) - first)


@inlined
def fee_rate(accounts: FloatArray, rules: FloatArray, n: int, s: int, maker: bool) -> float:
    """The symbol's own rate, or the account's."""
    own = rules[s, at.MAKER] if maker else rules[s, at.TAKER]
    if not math.isnan(own):
        return float(own)
    return float(accounts[n, at.MAKER_FEE] if maker else accounts[n, at.TAKER_FEE])


@inlined
def unit_cost(rate: float, worse: float, side: float, scalars: FloatArray) -> float:
    """What a unit of notional costs a taker in cash, `worse` being spread and impact; the fee may be meant to come on
    top, or be taken from the coins that are bought."""
    if scalars[at.FEE_ON_TOP] != 0.0 or (scalars[at.FEE_IN_BASE] != 0.0 and side > 0.0):
        return worse
    return worse + rate * (1.0 + side * worse)


@inlined
def fill(
    accounts: FloatArray, positions: FloatArray, rules: FloatArray, scalars: FloatArray, log: Log, kind: int, n: int,
    bar: int, s: int, order_id: float, quantity: float, reference: float, half_spread: float, impact: float,
    maker: bool,
) -> None:  # fmt: skip
    """Trade `quantity` and keep the books. A taker's price is `reference` worsened by half spread and impact, and
    rounded to the tick; the rounding counts as spread."""
    held = positions[n, s, at.QUANTITY]
    new = held + quantity
    if abs(new) <= at.DUST * max(abs(held), abs(quantity)):
        quantity = -held
        new = 0.0
    if maker:
        half_spread = 0.0
        impact = 0.0
    size = abs(quantity)
    side = 1.0 if quantity > 0.0 else -1.0
    price = reference
    rounding = 0.0
    if not maker:
        exact = reference * (1.0 + side * (half_spread + impact))
        price = taker_price(reference, side, half_spread + impact, rules[s, at.TICK])
        rounding = side * (price - exact)
    rate = fee_rate(accounts, rules, n, s, maker)
    fee = size * price * rate
    cash = accounts[n, at.CASH] - quantity * price
    in_coins = scalars[at.FEE_IN_BASE] != 0.0 and quantity > 0.0 and held >= 0.0
    if in_coins:
        new -= size * rate  # the coins bought are lessened
    else:
        cash -= fee
    if kind == at.FILL_LIQUIDATION:
        penalty = size * price * rules[s, at.LIQUIDATION_FEE]
        cash -= penalty
        accounts[n, at.LIQUIDATION_PAID] += penalty
    else:
        positions[n, s, at.USED] += size
    accounts[n, at.CASH] = cash
    spread_cost = size * reference * half_spread + size * rounding
    impact_cost = size * reference * impact
    accounts[n, at.FEES] += fee
    accounts[n, at.SPREAD] += spread_cost
    accounts[n, at.IMPACT_PAID] += impact_cost
    isolated = rules[s, at.ISOLATED] != 0.0
    leverage = rules[s, at.LEVERAGE]
    if new == 0.0 or held * new <= 0.0:  # closed, opened or turned round
        positions[n, s, at.ENTRY] = np.nan if new == 0.0 else price
        positions[n, s, at.STOP] = np.nan
        positions[n, s, at.TARGET] = np.nan
        positions[n, s, at.EXPIRY] = np.inf
        positions[n, s, at.EXIT] = at.FILL_TIME
        positions[n, s, at.MARGIN] = abs(new) * price / leverage if isolated else 0.0
        positions[n, s, at.INSIDE] = bar if kind == at.FILL_INSIDE else -1.0
    elif abs(new) > abs(held):
        positions[n, s, at.ENTRY] = (held * positions[n, s, at.ENTRY] + (new - held) * price) / new
        if isolated:
            positions[n, s, at.MARGIN] += abs(new - held) * price / leverage
    elif isolated:
        positions[n, s, at.MARGIN] *= new / held
    positions[n, s, at.QUANTITY] = new
    if kind == at.FILL_INSIDE:
        # The order of the fills in a bar is not known, so a later one does not make the price of an earlier one better.
        worse = reference
        if positions[n, s, at.CHANGED] == bar and held * new > 0.0:
            before = positions[n, s, at.INSIDE_PRICE]
            worse = min(before, reference) if new > 0.0 else max(before, reference)
        positions[n, s, at.CHANGED] = bar
        positions[n, s, at.INSIDE_PRICE] = worse
    if kind == at.FILL_ORDER or kind == at.FILL_INSIDE:
        positions[n, s, at.ORDERED] += quantity
        positions[n, s, at.ORDERED_ABS] += size
        positions[n, s, at.ORDERED_VALUE] += quantity * price
    if log.rows.shape[0] > 0:
        write(
            log, kind, n, bar, s, order_id, quantity, price, fee, spread_cost, impact_cost,
            1.0 if maker else 0.0, size * rate if in_coins else 0.0,
        )  # fmt: skip
        if kind == at.FILL_LIQUIDATION:
            penalty = size * price * rules[s, at.LIQUIDATION_FEE]
            write(log, at.PAID_LIQUIDATION, n, bar, s, -1.0, 0.0, 0.0, penalty, 0.0, 0.0, 0.0, 0.0)
