"""The simulated broker of a live session: the simulator's own exchange, on the bars as they come.

Orders fill by the kernel's rules from the bar that is under way when they arrive, late by the time that has really
passed since the close that they were decided at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simulator.arrays import FloatArray
from simulator.backtest.run import BacktestResult, result_of
from simulator.errors import DataError
from simulator.exchange.costs import Costs
from simulator.exchange.exchange import LiveExchange
from simulator.exchange.exchange_records import AccountView, Fill, LedgerEntry, Rejection
from simulator.exchange.orders import OrderRequest
from simulator.exchange.venue import Venue
from simulator.live.bar_assembly import LiveBar
from simulator.market.events import FundingEvent
from simulator.market.growing import with_bar
from simulator.market.market import Market, MarketView
from simulator.market.timeframes import BAR_COLUMNS


@dataclass(frozen=True)
class Happened:
    """What a bar brought: fills and payments, and requests that ended unfilled, in their order."""

    ledger: tuple[LedgerEntry, ...]
    rejections: tuple[Rejection, ...]


class SimulatedBroker:
    """One account from the close of the last bar of `history` on."""

    def __init__(self, history: Market, cash: float, costs: Costs, max_leverage: float, venue: Venue) -> None:
        """Raises `DataError` as `LiveExchange` does."""
        self.market = history  # the bars that are known
        self._exchange = LiveExchange(history, cash, costs, max_leverage, venue)
        self.start = self._exchange.index
        self._flows = dict.fromkeys(history.symbols, 0.0)  # money that each symbol brought so far
        self._filled = dict.fromkeys(history.symbols, 0.0)  # sum of its fills

    @property
    def index(self) -> int:
        """The bar at whose close the account stands."""
        return self._exchange.index

    @property
    def close(self) -> int:
        """The time of that close, ms."""
        return int(self.market.open_time[-1]) + self.market.interval

    def view(self) -> MarketView:
        """The market at this close."""
        return self.market.view(len(self.market) - 1)

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
        symbols = self.market.symbols
        self.market = with_bar(self.market, bar.open_time, bar_columns(bar, symbols), bar_funding(bar, symbols))
        ledger, rejections = len(self._exchange.ledger), len(self._exchange.rejections)
        self._exchange.extend(self.market)
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


def bar_funding(bar: LiveBar, symbols: Sequence[str]) -> dict[str, list[FundingEvent]]:
    """The settlements inside the bar, by symbol. Raises `DataError` for another symbol's."""
    funding: dict[str, list[FundingEvent]] = {}
    for symbol, time, rate in bar.funding:
        if symbol not in symbols:
            raise DataError(f"a bar of the session settles {symbol:.40}, which it does not trade: restore a backup")
        funding.setdefault(symbol, []).append(FundingEvent(time, rate))
    return funding


def session_market(history: Market, bars: Sequence[LiveBar]) -> Market:
    """`history` and the bars of a session as one market, built at once."""
    columns = [bar_columns(bar, history.symbols) for bar in bars]
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(history, name), *(one[name][None] for one in columns)]) for name in BAR_COLUMNS
    }
    funding = {symbol: tuple(history.funding.get(symbol, ())) for symbol in history.symbols}
    for bar in bars:
        for symbol, events in bar_funding(bar, history.symbols).items():
            funding[symbol] += tuple(events)
    times = np.array([bar.open_time for bar in bars], np.int64)
    return replace(
        history,
        open_time=np.concatenate([history.open_time, times]),
        **arrays,
        funding={symbol: settled for symbol, settled in funding.items() if settled},
    )
