"""The exchange of an account in a market that grows: the same rules and records, bar by bar as they come."""

from __future__ import annotations

import sys

import numpy as np

from simulator.errors import DataError
from simulator.exchange.carry import delisted_bars
from simulator.exchange.costs import Costs
from simulator.exchange.exchange import Exchange
from simulator.exchange.tape import market_tape
from simulator.exchange.venue import Venue
from simulator.kernel.layout import NEVER
from simulator.market.market import Market

_ROWS = 1_024  # of the curves, doubled whenever they are full
_OPEN_END = sys.maxsize


class LiveExchange(Exchange):
    """One account from the close of the last bar of `market` on. `extend` takes each further bar; `finish` ends it.

    Everything else is the exchange of a backtest: on a market that had all the bars from the start, the same requests
    at the same closes give the same fills. Funding that comes after its bar is not settled; the terms' rate for
    settlements that are missing stands for it. A symbol without a bar for two days counts as delisted at once, which a
    backtest knows only of one that never comes back.
    """

    def __init__(
        self,
        market: Market,
        cash: float = 10_000.0,
        costs: Costs | None = None,
        max_leverage: float = 1.0,
        venue: Venue | None = None,
    ) -> None:
        """Raises `DataError` as `Exchange` does, for symbols whose kind is not stated, and for a venue with mark prices
        or finer bars, which would have to grow too."""
        if venue is not None and (venue.mark is not None or venue.finer is not None):
            raise DataError("a live account has no mark prices and no finer bars: leave both out.")
        unknown = [symbol for symbol in market.symbols if symbol not in market.kinds]
        if unknown:
            raise DataError(f"nothing states whether {', '.join(unknown)} are spot or perpetual.")
        super().__init__(market, len(market) - 1, cash, costs, max_leverage, len(market) - 1, venue)
        self.stop = _OPEN_END
        self._make_room(_ROWS * self._per_bar)

    def extend(self, market: Market) -> None:
        """Take the next bar, the last one of `market`. Raises `DataError` unless it follows."""
        last = len(market) - 1
        if self.index + 1 != last or self.stop != _OPEN_END:
            raise DataError(f"the account stands at bar {self.index}, the market's last bar is {last}.")
        self.market = market
        self._tape, _ = market_tape(market, last, len(market), self.costs, self.venue)
        self._tape_first = last
        if not market.present[-1].all():
            self._delisted = delisted_bars(market)
        elif (self._delisted != NEVER).any():
            self._delisted = np.full(len(market.symbols), NEVER, np.int64)
        if (self.index + 1 - self._first) * self._per_bar == self._equity.shape[1]:
            self._make_room(2 * self._equity.shape[1])
        self.step()

    def finish(self) -> None:
        """End here: what waits is rejected."""
        if self.stop == _OPEN_END:
            self.stop = self.index
            self._end_of_window()

    def _make_room(self, rows: int) -> None:
        used = self._equity.shape[1]
        equity, notional = np.empty((1, rows)), np.empty((1, rows, len(self.market.symbols)))
        equity[:, :used], notional[:, :used] = self._equity, self._notional
        self._equity, self._notional = equity, notional
