"""A venue apart from its costs: rules of the symbols, isolated margin, finer bars, mark prices; and what holding a
symbol costs: its kind, the funding that its data lacks, and where its history ends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from simulator.arrays import IntArray
from simulator.errors import DataError
from simulator.exchange.rules import SymbolRules
from simulator.kernel.layout import NEVER
from simulator.market.events import FundingEvent
from simulator.market.instruments import MarketKind
from simulator.market.market import Market
from simulator.market.timeframes import DAY_MS, HOUR_MS


@dataclass(frozen=True)
class Venue:
    """Where an account trades.

    Attributes:
        rules: of symbols, see `simulator.exchange.rules`; a symbol without any may be traded in any quantity at any
        price.
        isolated: leverage of the symbols that are margined apart. The others share the account's equity (cross).
        finer: the same symbols in finer bars. Where they exist they decide what happened first inside a bar.
        mark: mark-price bars of the same symbols and timeframe as the bars that fills are decided on. Accounts are
            valued and liquidated on them; None: on the trade price.
    """

    rules: Mapping[str, SymbolRules] = field(default_factory=dict)
    isolated: Mapping[str, float] = field(default_factory=dict)
    finer: Market | None = None
    mark: Market | None = None

    def __post_init__(self) -> None:
        for symbol, leverage in self.isolated.items():
            if not (math.isfinite(leverage) and leverage > 0.0):
                raise DataError(f"{symbol}: the isolated leverage is {leverage}; give a positive number.")
            if symbol in self.rules and self.rules[symbol].kind == "spot":
                raise DataError(f"{symbol} is a spot symbol; only perpetuals can be margined apart.")


SETTLEMENT_MS = 8 * HOUR_MS  # how often most venues settle funding, at 00:00, 08:00 and 16:00 UTC
# Without a bar for so long, to the end of the data, a symbol is delisted. No outage of a large venue was as long.
DELISTED_AFTER_MS = 2 * DAY_MS


@dataclass(frozen=True)
class SymbolCarry:
    """How a symbol was carried in some bars.

    Attributes:
        kind: None where nothing states it; then it is charged as spot.
        unfunded_bars: present bars of a perpetual whose settlement is not in the data.
        delisted: bar at whose open what is held of it is closed; None where its bars continue.
    """

    symbol: str
    kind: MarketKind | None
    unfunded_bars: int
    delisted: int | None


def kind_of(symbol: str, market: Market, venue: Venue) -> MarketKind | None:
    """The kind of a symbol; None where nothing states it.

    The venue's rules go first, then the data, and then what only a perpetual has: a margin of its own, margin tiers,
    funding.
    """
    rules = venue.rules.get(symbol)
    stated = (rules.kind if rules else None) or market.kinds.get(symbol)
    if stated is not None:
        return stated
    derived = symbol in venue.isolated or (rules is not None and bool(rules.tiers)) or bool(market.funding.get(symbol))
    return "perpetual" if derived else None


def missing_settlements(events: Sequence[FundingEvent], begin: int, end: int) -> tuple[IntArray, int]:
    """Times after `begin` and up to `end` (ms) at which a settlement should stand and none does, and their distance.

    They lie on a grid of eight hours, or of the usual distance of the `events` where that is longer. A settlement up to
    half a step from its place on the grid counts as the one of that place. Where none can stand, as within an hour, the
    distance is that of eight hours.
    """
    if begin // HOUR_MS == end // HOUR_MS:  # every grid is one of whole hours; a live account asks this of each minute
        return np.zeros(0, np.int64), SETTLEMENT_MS
    times = np.array([event.time for event in events], dtype=np.int64)
    usual = int(np.median(np.diff(times))) if len(times) > 1 else 0
    step = max(SETTLEMENT_MS, -(-usual // HOUR_MS) * HOUR_MS)
    grid = np.arange(begin // step + 1, end // step + 1, dtype=np.int64) * step
    near = np.searchsorted(times, grid - step // 2, side="right")
    there = near < len(times)
    there[there] = times[near[there]] <= grid[there] + step // 2
    return grid[~there], step


def delisted_bars(market: Market) -> IntArray:
    """(S,): the bar of the market at whose open what is held is closed; `NEVER` for a symbol whose bars continue to the
    end of the data, or to less than `DELISTED_AFTER_MS` before it."""
    bars: IntArray = np.full(len(market.symbols), NEVER, np.int64)
    wait = max(1, -(-DELISTED_AFTER_MS // market.interval))
    for column in np.flatnonzero(~market.present[-1]):
        known = np.flatnonzero(market.present[:, column])
        if len(known) and known[-1] + wait < len(market):
            bars[column] = known[-1] + wait
    return bars


def carry_of(market: Market, venue: Venue, first: int, stop: int) -> list[SymbolCarry]:
    """How each symbol was carried in the bars ``first .. stop - 1``."""
    begin, end = (int(market.open_time[0]) + bar * market.interval for bar in (first, stop))
    delisted = delisted_bars(market)
    found = []
    for column, symbol in enumerate(market.symbols):
        kind, unfunded = kind_of(symbol, market, venue), 0
        if kind == "perpetual":
            times, step = missing_settlements(market.funding.get(symbol, ()), begin, end)
            closes = market.open_time[first:stop][market.present[first:stop, column]] + market.interval
            unfunded = int(np.isin(-(-closes // step) * step, times).sum())
        ended = int(delisted[column]) if first <= delisted[column] < stop else None
        found.append(SymbolCarry(symbol, kind, unfunded, ended))
    return found
