"""Observations of an environment: causal features of the market and the state of the account, a row of float32.

Everything is known at the close of the bar that the account stands at. The unit "volatility" is the root mean square of
the last MEASURED_BARS log returns; those *before* a bar measure the bar itself. Where fewer than LEAST returns (or
volumes) are known, or they do not vary, the field is 0. All fields are finite and lie within -LIMIT and LIMIT.

A row is, with W the window and S the symbols (`columns` names each place):

| place | field | unit, range |
| --- | --- | --- |
| W x S x 5, oldest bar first | `present` | 1 for a bar that exists; one that is absent is 0 throughout |
| | `return` | log return since the last present close, in volatilities |
| | `range` | log of high over low, in volatilities, from 0 |
| | `volume` | log of 1 + volume: deviation from the mean of the last MEASURED_BARS, in standard deviations |
| | `spread` | half spread times the costs' multiplier, in volatilities, from 0 |
| S x 2 | `volatility` | of the last MEASURED_BARS returns up to this bar, in percent, from 0 |
| | `funding` | newest settled rate, in tenths of a percent |
| S x 3 | `exposure` | signed value of the position over the equity |
| | `wanted` | exposure that was asked for last |
| | `unrealized` | what the position has gained since its entry, over the equity |
| 3 | `drawdown` | share of the episode's highest equity that is lost, from 0 |
| | `left` | share of the episode's bars that are still to come, 0 to 1 |
| | `idle` | bars since the last step that traded (or the start), as a share of the episode, 0 to 1 |
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import FloatArray
from simulator.kernel import layout as at
from simulator.kernel.jit import allocating, compiled
from simulator.kernel.layout import KernelState
from simulator.market.market import Market

MEASURED_BARS = 64  # returns and volumes that a bar is measured by
LEAST = 8
LIMIT = 10.0
_BAR_FIELDS = ("present", "return", "range", "volume", "spread")
_SYMBOL_FIELDS = ("volatility", "funding")
_POSITION_FIELDS = ("exposure", "wanted", "unrealized")
_ACCOUNT_FIELDS = ("drawdown", "left", "idle")
_FROM_ZERO = {"present", "range", "spread", "volatility", "drawdown", "left", "idle"}
_TO_ONE = {"present", "left", "idle"}

SmallArray = NDArray[np.float32]


@dataclass(frozen=True)
class Features:
    """The market's part of the observations, for every bar.

    Attributes:
        bars: ((window - 1 + T) * S * 5,): the rows of all bars after each other, headed by window - 1 empty ones, so
            that the window of bar t starts at element t * S * 5 and is contiguous.
        newest: (T, S * 2).
        window: bars in an observation.
    """

    bars: SmallArray
    newest: SmallArray
    window: int


def columns(symbols: tuple[str, ...], window: int) -> list[tuple[str, float, float]]:
    """Name, least and largest value of every place of a row, like ("return AAA -1", -10, 10); 0 is the newest bar."""
    names = [f"{field} {symbol} {age}" for age in range(1 - window, 1) for symbol in symbols for field in _BAR_FIELDS]
    for fields in (_SYMBOL_FIELDS, _POSITION_FIELDS):
        names += [f"{field} {symbol}" for symbol in symbols for field in fields]
    names += _ACCOUNT_FIELDS
    found = []
    for name in names:
        field = name.partition(" ")[0]
        found.append((name, 0.0 if field in _FROM_ZERO else -LIMIT, 1.0 if field in _TO_ONE else LIMIT))
    return found


def prepare(market: Market, window: int, spread_multiplier: float) -> Features:
    """The features of `market`: each row is made of its own and earlier bars alone."""
    symbols = len(market.symbols)
    bars = np.zeros((window - 1 + len(market), symbols, len(_BAR_FIELDS)), np.float32)
    newest = np.zeros((len(market), symbols, len(_SYMBOL_FIELDS)), np.float32)
    _measure(
        np.ascontiguousarray(market.high), np.ascontiguousarray(market.low), np.ascontiguousarray(market.close),
        np.ascontiguousarray(market.volume), np.ascontiguousarray(market.half_spread), spread_multiplier,
        bars[window - 1 :], newest,
    )  # fmt: skip
    closed = market.open_time + market.interval
    for column, symbol in enumerate(market.symbols):
        events = market.funding.get(symbol, ())
        rates = np.array([0.0, *(event.rate for event in events)])
        known = np.searchsorted(np.array([event.time for event in events], np.int64), closed, side="right")
        newest[:, column, 1] = np.clip(np.nan_to_num(rates[known] * 1e3), -LIMIT, LIMIT)
    return Features(bars.reshape(-1), newest.reshape(len(market), -1), window)


@compiled
def _bounded(value: float) -> float:
    """`value` within the limits; 0 for what is not a number."""
    return 0.0 if math.isnan(value) else min(max(value, -LIMIT), LIMIT)


@compiled
def _moments(ring: FloatArray, count: int) -> tuple[float, float]:
    """Mean and mean square of the known values; 0 and 0 where they are too few."""
    known = min(count, MEASURED_BARS)
    if known < LEAST:
        return 0.0, 0.0
    total, squares = 0.0, 0.0
    for k in range(known):
        total += ring[k]
        squares += ring[k] * ring[k]
    return total / known, squares / known


@compiled
def _spread_of(ring: FloatArray, count: int, mean: float) -> float:
    """Standard deviation of the known values around their mean."""
    known = min(count, MEASURED_BARS)
    total = 0.0
    for k in range(known):
        total += (ring[k] - mean) ** 2
    return math.sqrt(total / max(known, 1))


@allocating
def _measure(
    high: FloatArray, low: FloatArray, close: FloatArray, volume: FloatArray, half_spread: FloatArray,
    spread_multiplier: float, bars: SmallArray, newest: SmallArray,
) -> None:  # fmt: skip
    """Fill in bars (T, S, 5) and the volatility of newest (T, S, 2), symbol by symbol, forward in time."""
    returns, volumes = np.zeros(MEASURED_BARS), np.zeros(MEASURED_BARS)
    for s in range(close.shape[1]):
        moves, traded, last, volatility = 0, 0, np.nan, 0.0
        for t in range(close.shape[0]):
            price = close[t, s]
            if not math.isnan(price):
                row = bars[t, s]
                row[0] = 1.0
                move = math.log(price / last)
                if volatility > 1e-9:
                    row[1] = _bounded(move / volatility)
                    row[2] = max(0.0, _bounded(math.log(high[t, s] / low[t, s]) / volatility))
                    row[4] = _bounded(half_spread[t, s] * spread_multiplier / volatility)
                size = math.log1p(volume[t, s])
                mean, _ = _moments(volumes, traded)
                deviation = _spread_of(volumes, traded, mean)
                if traded >= LEAST and deviation > 1e-6:
                    row[3] = _bounded((size - mean) / deviation)
                if math.isfinite(move):
                    returns[moves % MEASURED_BARS] = move
                    moves += 1
                    _, square = _moments(returns, moves)
                    volatility = math.sqrt(square)
                if math.isfinite(size):
                    volumes[traded % MEASURED_BARS] = size
                    traded += 1
                last = price
            newest[t, s, 0] = _bounded(100.0 * volatility)


@compiled
def observe(
    bars: SmallArray, newest: SmallArray, index: int, state: KernelState, wanted: FloatArray, idle: FloatArray,
    left: float, out: SmallArray,
) -> None:  # fmt: skip
    """Write the row of every account at the close of bar `index` to out (N, places).

    `bars` and `newest` are those of `Features`; for `wanted` and `idle` see `simulator.env.step.EnvMemory`.
    """
    symbols = state.positions.shape[1]
    after = newest.shape[1]
    start = index * symbols * len(_BAR_FIELDS)
    width = out.shape[1] - after - symbols * len(_POSITION_FIELDS) - len(_ACCOUNT_FIELDS)
    shown = bars[start : start + width]
    for n in range(out.shape[0]):
        row = out[n]
        for k in range(width):
            row[k] = shown[k]
        for k in range(after):
            row[width + k] = newest[index, k]
        place = width + after
        equity, peak = state.accounts[n, at.EQUITY], state.accounts[n, at.PEAK]
        share = 1.0 / equity if equity > 0.0 else 0.0
        for s in range(symbols):
            quantity = state.positions[n, s, at.QUANTITY]
            exposure, gained = 0.0, 0.0
            if quantity != 0.0:
                mark = state.positions[n, s, at.MARK]
                exposure = _bounded(quantity * mark * share)
                gained = _bounded(quantity * (mark - state.positions[n, s, at.ENTRY]) * share)
            out[n, place] = exposure
            out[n, place + 1] = _bounded(wanted[n, s])
            out[n, place + 2] = gained
            place += 3
        out[n, place] = _bounded(1.0 - equity / peak)
        out[n, place + 1] = left
        out[n, place + 2] = min(1.0, idle[n])
