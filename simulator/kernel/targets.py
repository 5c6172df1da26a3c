"""Compiled: bringing an account to wanted exposures at a bar's open."""

from __future__ import annotations

import math

import numpy as np

from simulator.arrays import FloatArray
from simulator.kernel import layout as at
from simulator.kernel.fills import (
    available,
    fee_rate,
    fill,
    impact_of,
    late_price,
    on_lot,
    unit_cost,
    worse_on_tick,
    write,
)
from simulator.kernel.jit import inlined
from simulator.kernel.layout import Log
from simulator.kernel.margin import room


@inlined
def reach_targets(
    opens: FloatArray, highs: FloatArray, lows: FloatArray, closes: FloatArray, volumes: FloatArray,
    half_spread: FloatArray, sigmas: FloatArray, rules: FloatArray, tiers: FloatArray, scalars: FloatArray,
    accounts: FloatArray, positions: FloatArray, log: Log, path: int, b: int, n: int, bar: int,
) -> None:  # fmt: skip
    """Trade every wanted exposure at the open, sized there so that it holds after the costs.

    Reductions go first, sized for the equity that is left after all costs (`_equity_after_all`). The increases are
    solved together, so the order of the symbols does not matter: with E the equity after the reductions, w_s the
    exposures, B_s what is held and c_s the unit costs of the increasing symbols, the equity after is
    ``E' = (E + sum c_s B_s) / (1 + sum c_s w_s)`` and x_s = w_s E' - B_s is bought. What the leverage cap or the margin
    keeps back of an increase is recorded and not tried again.
    """
    symbols = positions.shape[1]
    equity, traded, waiting = 0.0, True, False
    for increases in range(2):
        if traded:
            equity = accounts[n, at.CASH]
            for s in range(symbols):
                quantity = positions[n, s, at.QUANTITY]
                if quantity != 0.0:
                    absent = math.isnan(closes[path, b, s])
                    equity += quantity * (positions[n, s, at.MARK] if absent else opens[path, b, s])
            traded = False
        if equity <= 0.0 or (increases and not waiting):
            return
        after, share = equity, 1.0
        if increases:
            after, share = _solve(
                opens, highs, lows, closes, volumes, half_spread, sigmas, rules, scalars, accounts, positions, path, b,
                n, equity,
            )  # fmt: skip
        else:
            after = _equity_after_all(
                opens, highs, lows, closes, volumes, half_spread, sigmas, rules, scalars, accounts, positions, path, b,
                n, equity,
            )  # fmt: skip
        for s in range(symbols):
            wanted = positions[n, s, at.WANTED]
            if math.isnan(wanted) or math.isnan(closes[path, b, s]):
                continue
            price = opens[path, b, s]
            held = positions[n, s, at.QUANTITY]
            # By the equity after the costs: else one could be an increase before the others trade and none after.
            grows = abs(wanted) * after > abs(held) * price and held * wanted >= 0.0
            turns = held * wanted < 0.0
            if increases == 0:
                waiting |= grows or turns
            if grows != (increases == 1):
                continue
            traded = True
            if grows:
                change = share * (wanted * after / price - held)
            elif held * wanted > 0.0:
                change = wanted * after / price - held
            else:
                change = -held  # a turn closes first; the other side is opened among the increases
            volume, sigma = volumes[path, b, s], sigmas[path, b, s]
            spread = half_spread[path, b, s] * scalars[at.SPREAD_MULTIPLIER]
            size, side = abs(change), 1.0 if change > 0.0 else -1.0
            late = positions[n, s, at.LATE]
            reference = late_price(price, highs[path, b, s], lows[path, b, s], side, late)
            take = min(size, available(volume, positions[n, s, at.USED], scalars[at.PARTICIPATION]))
            short_of_volume = take < size
            if grows:
                worse = spread + impact_of(take, volume, sigma, scalars[at.IMPACT])
                worse = _worse_than_open(price, reference, side, worse, rules[s, at.TICK])
                cost = unit_cost(fee_rate(accounts, rules, n, s, False), worse, side, scalars)
                fits = room(
                    accounts, positions, opens, closes, rules, tiers, path, b, n, s, 0.0, price, cost,
                    scalars[at.MAX_LEVERAGE],
                )  # fmt: skip
                take = min(take, fits)
                # A lot that is not full or a change too small for the venue is no matter of margin.
                asked = abs(wanted * after / price - held)
                kept_back = asked - max(take, 0.0)
                if not short_of_volume and kept_back > max(rules[s, at.LOT], 1e-9 * asked):
                    write(log, at.DROP_LEVERAGE, n, bar, s, -1.0, side * kept_back, wanted, 0.0, 0.0, 0.0, 0.0, 0.0)
            if take != abs(held) or grows:
                take = on_lot(take, rules[s, at.LOT])
            if not short_of_volume and not turns:
                positions[n, s, at.WANTED] = np.nan
            if take <= at.DUST * max(size, abs(held)):
                continue
            if grows and take * price < rules[s, at.MIN_NOTIONAL]:
                if not short_of_volume:
                    write(log, at.DROP_MIN_NOTIONAL, n, bar, s, -1.0, side * take, wanted, 0.0, 0.0, 0.0, 0.0, 0.0)
                continue
            fill(
                accounts, positions, rules, scalars, log, at.FILL_ORDER, n, bar, s, -1.0, side * take, reference,
                spread, impact_of(take, volume, sigma, scalars[at.IMPACT]), False,
            )  # fmt: skip


@inlined
def _worse_than_open(first: float, reference: float, side: float, worse: float, tick: float) -> float:
    """By what fraction of the open a taker's price is worse than it, where it trades at `reference` and `worse`."""
    worse = worse_on_tick(reference, side, worse, tick)
    return worse if reference == first else side * (reference / first * (1.0 + side * worse) - 1.0)


@inlined
def _equity_after_all(
    opens: FloatArray, highs: FloatArray, lows: FloatArray, closes: FloatArray, volumes: FloatArray,
    half_spread: FloatArray, sigmas: FloatArray, rules: FloatArray, scalars: FloatArray, accounts: FloatArray,
    positions: FloatArray, path: int, b: int, n: int, equity: float,
) -> float:  # fmt: skip
    """Equity once every wanted exposure is reached, if neither volume nor margin stands in the way.

    With B_s held and w_s wanted (amounts of money and shares of equity, without their signs), a reduction costs
    ``c_s (B_s - w_s E')``, an increase ``c_s (w_s E' - B_s)`` and a turn ``c_s B_s + c_s w_s E'``; ``E' = E - sum``.
    """
    after = equity
    for _ in range(3):  # what is an increase, and how much is traded, depends on the equity that is to be found
        above, below = equity, 1.0
        for s in range(positions.shape[1]):
            wanted, price = positions[n, s, at.WANTED], opens[path, b, s]
            if math.isnan(wanted) or math.isnan(closes[path, b, s]):
                continue
            held = positions[n, s, at.QUANTITY] * price
            turns = held * wanted < 0.0
            grows = abs(wanted) * after > abs(held) and not turns
            rate = fee_rate(accounts, rules, n, s, False)
            spread = half_spread[path, b, s] * scalars[at.SPREAD_MULTIPLIER]
            if not grows and held != 0.0:
                closed = abs(held) if turns else abs(held) - abs(wanted) * after
                side = -1.0 if held > 0.0 else 1.0
                worse = spread + impact_of(closed / price, volumes[path, b, s], sigmas[path, b, s], scalars[at.IMPACT])
                reference = late_price(price, highs[path, b, s], lows[path, b, s], side, positions[n, s, at.LATE])
                worse = _worse_than_open(price, reference, side, worse, rules[s, at.TICK])
                # The fee of what is bought back is paid in money, also where the fee of a purchase is taken in coins.
                free = scalars[at.FEE_ON_TOP] != 0.0
                cost = worse if free else worse + rate * (1.0 + side * worse)
                above -= cost * abs(held)
                below -= 0.0 if turns else cost * abs(wanted)
            if grows or turns:
                stays = 0.0 if turns else abs(held)
                added = abs(wanted) * after - stays
                side = 1.0 if wanted > 0.0 else -1.0
                worse = spread + impact_of(added / price, volumes[path, b, s], sigmas[path, b, s], scalars[at.IMPACT])
                reference = late_price(price, highs[path, b, s], lows[path, b, s], side, positions[n, s, at.LATE])
                worse = _worse_than_open(price, reference, side, worse, rules[s, at.TICK])
                cost = unit_cost(rate, worse, side, scalars)
                above += cost * stays
                below += cost * abs(wanted)
        if below <= 0.0:  # costs above all that is held: no equity would be left to share out
            return 0.0
        after = max(0.0, above) / below
    return after


@inlined
def _solve(
    opens: FloatArray, highs: FloatArray, lows: FloatArray, closes: FloatArray, volumes: FloatArray,
    half_spread: FloatArray, sigmas: FloatArray, rules: FloatArray, scalars: FloatArray, accounts: FloatArray,
    positions: FloatArray, path: int, b: int, n: int, equity: float,
) -> tuple[float, float]:  # fmt: skip
    """Equity after the increases, and the share of them that the leverage cap allows: all give way alike."""
    above, below, held_gross, growing, wanted_gross = equity, 1.0, 0.0, 0.0, 0.0
    for s in range(positions.shape[1]):
        absent = math.isnan(closes[path, b, s])
        price = positions[n, s, at.MARK] if absent else opens[path, b, s]
        held = 0.0 if positions[n, s, at.QUANTITY] == 0.0 else positions[n, s, at.QUANTITY] * price
        held_gross += abs(held)
        wanted = positions[n, s, at.WANTED]
        if absent or math.isnan(wanted) or abs(wanted) * equity <= abs(held) or held * wanted < 0.0:
            continue
        added = abs(wanted) * equity - abs(held)
        worse = half_spread[path, b, s] * scalars[at.SPREAD_MULTIPLIER]
        if scalars[at.IMPACT] != 0.0:
            worse += impact_of(added / price, volumes[path, b, s], sigmas[path, b, s], scalars[at.IMPACT])
        rate, side = fee_rate(accounts, rules, n, s, False), 1.0 if wanted > 0.0 else -1.0
        reference = late_price(price, highs[path, b, s], lows[path, b, s], side, positions[n, s, at.LATE])
        worse = _worse_than_open(price, reference, side, worse, rules[s, at.TICK])
        cost = unit_cost(rate, worse, side, scalars)
        above += cost * abs(held)
        below += cost * abs(wanted)
        growing += abs(held)
        wanted_gross += abs(wanted)
    after = above / below
    added_gross = wanted_gross * after - growing
    spare = scalars[at.MAX_LEVERAGE] * after - held_gross
    return after, min(1.0, max(0.0, spare) / added_gross) if added_gross > spare * (1.0 + 1e-9) else 1.0
