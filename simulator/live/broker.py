"""The simulated broker of a live session: the simulator's own exchange, on the bars as they come.

Orders fill by the kernel's rules from the bar that is under way when they arrive, late by the time that has really
passed since the close that they were decided at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simulator.arrays import FloatArray
from simulator.backtest.run import BacktestResult, result_of
from simulator.errors import DataError
from simulator.exchange.costs import Costs
from simulator.exchange.exchange_records import AccountView, Fill, LedgerEntry, Rejection
from simulator.exchange.live_exchange import LiveExchange
from simulator.exchange.orders import OrderRequest
from simulator.exchange.venue import Venue
from simulator.live.bar_assembly import LiveBar
from simulator.live.inside_bars import InsideBar, inside_from_json, inside_market
from simulator.market.events import FundingEvent
from simulator.market.growing import GrowingMarket
from simulator.market.market import Market, MarketView
from simulator.market.timeframes import BAR_COLUMNS

_BARS_WITH_INSIDE = 2  # of which each has 48 bars inside at least


@dataclass(frozen=True)
class Happened:
    """What a bar brought: fills and payments, and requests that ended unfilled, in their order."""

    ledger: tuple[LedgerEntry, ...]
    rejections: tuple[Rejection, ...]


class SimulatedBroker:
    """One account from the close of the last bar of `history` on."""

    def __init__(
        self, history: Market, cash: float, costs: Costs, max_leverage: float, venue: Venue, inside: str = ""
    ) -> None:
        """`inside` is the timeframe of the bars that the trades of a bar make; empty: none are used.

        Raises `DataError` as `LiveExchange` does, and for a venue with finer bars: a session has those of its trades.
        """
        if venue.finer is not None:
            raise DataError("a live account has no finer bars but those of the trades; leave venue.finer out.")
        self._growing = GrowingMarket(history)
        self._inside = inside
        # The newest bars, as far back as the volatility behind the market impact looks.
        self._newest = deque([(int(history.open_time[-1]), dict[str, tuple[InsideBar, ...]]())], _BARS_WITH_INSIDE)
        if inside:
            venue = replace(venue, finer=self._finer())
        self._exchange = LiveExchange(self._growing.market, cash, costs, max_leverage, venue)
        self.start = self._exchange.index
        self.shortened = False  # whether bars and records of the session were forgotten
        self._flows = dict.fromkeys(history.symbols, 0.0)  # money that each symbol brought so far
        self._filled = dict.fromkeys(history.symbols, 0.0)  # sum of its fills

    @property
    def index(self) -> int:
        """The bar at whose close the account stands."""
        return self._exchange.index

    @property
    def close(self) -> int:
        """The time of that close, ms."""
        market = self._growing.market
        return int(market.open_time[-1]) + market.interval

    def view(self) -> MarketView:
        """The market at this close."""
        market = self._growing.market
        return market.view(len(market) - 1)

    @property
    def market(self) -> Market:
        """The bars that are known, as far as they are kept."""
        return self._growing.market

    def account(self) -> AccountView:
        """The account at this close."""
        return self._exchange.account()

    def submit(self, requests: Sequence[OrderRequest], late_ms: Sequence[int]) -> tuple[Rejection, ...]:
        """Submit each request at this close, late by its time; what is refused at once."""
        before = len(self._exchange.rejections)
        for request, late in zip(requests, late_ms, strict=True):
            self._exchange.submit(request, late)
        return tuple(self._exchange.rejections[before:])

    def extend(self, bar: LiveBar) -> Happened:
        """Take the next bar. Raises `DataError` for one that does not follow, or cannot be."""
        market = self._growing.market
        funding: dict[str, list[FundingEvent]] = {}
        for symbol, time, rate in bar.funding:
            funding.setdefault(symbol, []).append(FundingEvent(time, rate))
        grown = self._growing.append(bar.open_time, bar_columns(bar, market.symbols), funding)
        ledger, rejections = len(self._exchange.ledger), len(self._exchange.rejections)
        finer = None
        self._newest.append((bar.open_time, bar.inside))
        if self._inside:
            finer = self._finer()
        depth = np.array([bar.depth.get(symbol, np.nan) for symbol in market.symbols]) if bar.depth else None
        self._exchange.extend(grown, finer, depth)
        happened = Happened(tuple(self._exchange.ledger[ledger:]), tuple(self._exchange.rejections[rejections:]))
        for one in happened.ledger:
            if isinstance(one, Fill):
                self._flows[one.symbol] -= one.quantity * one.price + one.fee
                self._filled[one.symbol] += one.quantity
            else:
                self._flows[one.symbol] -= one.amount
        return happened

    def earned(self) -> dict[str, float]:
        """Net profit of each symbol so far; what is held is valued at the last close, at no cost."""
        mark = self._exchange.account().mark
        return {
            symbol: flow + (self._filled[symbol] * mark[symbol] if self._filled[symbol] else 0.0)
            for symbol, flow in self._flows.items()
        }

    def keep(self, bars: int) -> None:
        """Forget all bars but the last `bars`, and what filled so far: the caller has written it. Bars keep their
        numbers, and the account is what it was."""
        self._exchange.keep(self._growing.keep(bars))
        self.shortened = True

    def state(self) -> dict[str, Any]:
        """The account as it stands, for `go_on`; JSON can hold it."""
        return {
            "start": self.start,
            "exchange": self._exchange.state(),
            "flows": dict(self._flows),
            "filled": dict(self._filled),
            "newest": [
                [time, {symbol: [list(one) for one in bars] for symbol, bars in inside.items()}]
                for time, inside in self._newest
            ],
        }

    def go_on(self, state: Mapping[str, Any]) -> None:
        """Become the account of `state`; this one is fresh, and its history ends where that one stood. Raises
        `DataError` where it does not fit."""
        try:
            flows = {symbol: float(state["flows"][symbol]) for symbol in self._flows}
            filled = {symbol: float(state["filled"][symbol]) for symbol in self._filled}
            self._exchange.go_on(state["exchange"])
            self._newest = deque(maxlen=_BARS_WITH_INSIDE)
            for time, inside in state["newest"]:
                self._newest.append((int(time), {symbol: inside_from_json(bars) for symbol, bars in inside.items()}))
            self.start, self._flows, self._filled, self.shortened = int(state["start"]), flows, filled, True
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"the saved account is damaged: {error!r}.") from error

    def _finer(self) -> Market:
        market = self._growing.market
        return inside_market(market.symbols, self._newest, market.interval, self._inside)

    def finish(self) -> None:
        """End here: what waits is rejected."""
        self._exchange.finish()

    def result(self, decide_every: int) -> BacktestResult:
        """What came of it so far."""
        return result_of(self._exchange, self.start, decide_every)


def bar_columns(bar: LiveBar, symbols: Sequence[str]) -> dict[str, FloatArray]:
    """The bar columns, (S,) each, NaN where a symbol has no bar."""
    columns = {name: np.full(len(symbols), np.nan) for name in BAR_COLUMNS}
    for place, symbol in enumerate(symbols):
        if symbol in bar.candles:
            values = (*bar.candles[symbol], bar.half_spread[symbol])
            for name, value in zip(BAR_COLUMNS, values, strict=True):
                columns[name][place] = value
    return columns


def session_venue(venue: Venue, history: Market, bars: Sequence[LiveBar], inside: str) -> Venue:
    """`venue` with what the trades and the books of a session's bars say, for a backtest of `session_market`. `inside`
    is the timeframe of the bars inside them; empty: none are used."""
    if inside and bars:
        within = [(bar.open_time, bar.inside) for bar in bars]
        venue = replace(venue, finer=inside_market(history.symbols, within, history.interval, inside))
    if any(bar.depth for bar in bars):
        depth = np.full((len(history) + len(bars), len(history.symbols)), np.nan)
        for row, bar in enumerate(bars, len(history)):
            for symbol, least in bar.depth.items():
                depth[row, history.column(symbol)] = least
        venue = replace(venue, depth=depth)
    return venue


def session_market(history: Market, bars: Sequence[LiveBar]) -> Market:
    """`history` and the bars of a session as one market, built at once."""
    columns = [bar_columns(bar, history.symbols) for bar in bars]
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(history, name), *(one[name][None] for one in columns)]) for name in BAR_COLUMNS
    }
    funding = {symbol: tuple(history.funding.get(symbol, ())) for symbol in history.symbols}
    for bar in bars:
        for symbol, time, rate in bar.funding:
            funding[symbol] += (FundingEvent(time, rate),)
    times = np.array([bar.open_time for bar in bars], np.int64)
    return replace(
        history,
        open_time=np.concatenate([history.open_time, times]),
        **arrays,
        funding={symbol: events for symbol, events in funding.items() if events},
    )
