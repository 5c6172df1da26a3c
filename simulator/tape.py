"""Turns markets, futures and orders into the arrays that `simulator.kernel` works on."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from simulator import kernel
from simulator.errors import DataError
from simulator.market import Market
from simulator.orders import Order
from simulator.paths import FuturePaths

FloatArray = NDArray[np.float64]


def market_tape(market: Market, first: int, stop: int) -> FloatArray:
    """Bars ``first .. stop - 1`` as a tape (1, bars, S, TAPE_FIELDS).

    A settlement belongs to the bar that holds its time, the bar's close included and its open not: an order filled at
    the open of the next bar does not take part in it. Raises `DataError` for a bar without a usable half spread.
    """
    rows = slice(first, stop)
    tape = np.zeros((1, stop - first, len(market.symbols), kernel.TAPE_FIELDS))
    tape[0, :, :, kernel.OPEN] = market.open[rows]
    tape[0, :, :, kernel.HIGH] = market.high[rows]
    tape[0, :, :, kernel.LOW] = market.low[rows]
    tape[0, :, :, kernel.CLOSE] = market.close[rows]
    tape[0, :, :, kernel.HALF_SPREAD] = market.half_spread[rows]
    _check_spread(tape, market.source)
    if stop <= first:
        return tape
    interval = market.interval
    begin = int(market.open_time[first])
    end = begin + (stop - first) * interval
    for column, symbol in enumerate(market.symbols):
        events = market.funding.get(symbol, ())
        at = bisect_right(events, begin, key=lambda event: event.time)
        for event in events[at : bisect_right(events, end, key=lambda event: event.time)]:
            bar, rest = divmod(event.time - begin, interval)
            if rest == 0:
                tape[0, bar - 1, column, kernel.FUNDING_CLOSE] += event.rate
            else:
                tape[0, bar, column, kernel.FUNDING_INSIDE] += event.rate
    return tape


def paths_tape(paths: FuturePaths) -> FloatArray:
    """Futures as a tape (paths, bars, S, TAPE_FIELDS). Raises `DataError` for a bar without a usable half spread."""
    tape = np.zeros((*paths.shape, kernel.TAPE_FIELDS))
    tape[..., kernel.OPEN] = paths.open
    tape[..., kernel.HIGH] = paths.high
    tape[..., kernel.LOW] = paths.low
    tape[..., kernel.CLOSE] = paths.close
    tape[..., kernel.HALF_SPREAD] = paths.half_spread
    tape[..., kernel.FUNDING_CLOSE] = paths.funding_rate
    _check_spread(tape, "futures")
    return tape


def last_closes(market: Market, index: int) -> FloatArray:
    """(S,): close of the newest present bar up to `index`; NaN before a symbol's first bar."""
    closes: FloatArray = market.close[index].copy()
    for column in np.flatnonzero(np.isnan(closes)):
        known = np.flatnonzero(market.present[: index + 1, column])
        if len(known):
            closes[column] = market.close[known[-1], column]
    return closes


def order_table(accounts: int, rows: int, orders: Iterable[tuple[int, int, Order, int, int]]) -> FloatArray:
    """(accounts, rows, ORDER_FIELDS): the same waiting orders for each account.

    `orders` yields id, column of the symbol, order, first active bar, and the sign of the position that its bracket
    is meant for (0 without one), in order of submission.
    """
    table = np.zeros((accounts, rows, kernel.ORDER_FIELDS))
    for row, (key, column, order, active, side) in enumerate(orders):
        table[:, row] = (
            1.0,
            key,
            column,
            order.quantity,
            np.nan if order.stop is None else order.stop,
            np.nan if order.target is None else order.target,
            active,
            order.reduce_only,
            side,
        )
    return table


def _check_spread(tape: FloatArray, source: str) -> None:
    """Absent bars need no spread; a present one without a spread would trade for free."""
    spread = tape[..., kernel.HALF_SPREAD]
    usable = (spread >= 0.0) & (spread < 1.0)
    present = ~np.isnan(tape[..., kernel.CLOSE])
    if not usable[present].all():
        raise DataError(
            f"{source}: a present bar has no usable half_spread; it must be a fraction from 0 to below 1. "
            "Load the data with half_spread_bps, or repair the column."
        )
    spread[~present] = 0.0
