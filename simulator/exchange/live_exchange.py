"""The exchange of an account in a market that grows: the same rules and records, bar by bar as they come."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from simulator.arrays import FloatArray
from simulator.errors import DataError
from simulator.exchange.carry import delisted_bars
from simulator.exchange.costs import Costs
from simulator.exchange.exchange import Exchange
from simulator.exchange.snapshot import array_to_json
from simulator.exchange.tape import market_tape
from simulator.exchange.venue import Venue
from simulator.kernel import layout as at
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

    Bars are counted from the first one of the market that it began with, also after `keep`.
    """

    def __init__(
        self,
        market: Market,
        cash: float = 10_000.0,
        costs: Costs | None = None,
        max_leverage: float = 1.0,
        venue: Venue | None = None,
    ) -> None:
        """Of `venue.finer` only the grid counts: `extend` gives the finer bars themselves, if any.

        Raises `DataError` as `Exchange` does, for symbols whose kind is not stated, and for a venue with mark prices or
        depth, which would have to grow too.
        """
        if venue is not None and (venue.mark is not None or venue.depth is not None):
            raise DataError("a live account has no mark prices; leave venue.mark out.")
        unknown = [symbol for symbol in market.symbols if symbol not in market.kinds]
        if unknown:
            raise DataError(f"nothing states whether {', '.join(unknown)} are spot or perpetual.")
        super().__init__(market, len(market) - 1, cash, costs, max_leverage, len(market) - 1, venue)
        self.stop = _OPEN_END
        self._dropped = 0  # bars before the first one of `market`
        self._make_room(_ROWS * self._per_bar)

    def extend(self, market: Market, finer: Market | None = None, depth: FloatArray | None = None) -> None:
        """Take the next bar, the last one of `market`. Raises `DataError` unless it follows.

        Args:
            finer: bars inside it, and inside those before as far back as the volatility behind the market impact looks
                (48 of them), where some are known.
            depth: (S,) the bar's `Venue.depth`; None: not known.
        """
        last = self._dropped + len(market) - 1
        if self.index + 1 != last or self.stop != _OPEN_END:
            raise DataError(f"the account stands at bar {self.index}, the market's last bar is {last}.")
        self.market = market
        venue = self.venue
        if venue.finer is not None:
            venue = replace(venue, finer=finer or venue.finer)
            self._whole = self._without_finer(market, finer or venue.finer, len(market) - 1, len(market))
        elif finer is not None:
            raise DataError("this account was begun without finer bars and takes none.")
        if depth is not None:
            whole_depth = np.full((len(market), len(depth)), np.nan)
            whole_depth[-1] = depth
            venue = replace(venue, depth=whole_depth)
        self._tape, _ = market_tape(market, len(market) - 1, len(market), self.costs, venue)
        self._tape_first = last
        if not market.present[-1].all():
            # A symbol without any bar in a market that was shortened was delisted before.
            here = delisted_bars(market)
            here = np.where(here == NEVER, NEVER, here + self._dropped)
            self._delisted = np.where(market.present.any(axis=0), here, self._delisted)
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

    def keep(self, market: Market) -> None:
        """Go on with `market`, whose last bar is the present one and which begins later. The records and curves so far
        are forgotten. Raises `DataError` where `market` ends elsewhere."""
        if int(market.open_time[-1]) != self._origin + self.index * market.interval:
            raise DataError(f"the account stands at bar {self.index}, and the market ends elsewhere.")
        self.market, self._dropped = market, self.index + 1 - len(market)
        self.ledger, self.rejections = [], []
        self._names = {key: self._names[key] for key in self._waiting}
        table = self._state.orders[0]
        grouped = set(table[table[:, at.LIVE] != 0.0, at.GROUP].tolist())
        self._groups = {name: number for name, number in self._groups.items() if number in grouped}
        self._first = self._tape_first = self.index + 1
        self._equity, self._notional = np.empty((1, 0)), np.empty((1, 0, len(market.symbols)))
        self._make_room(_ROWS * self._per_bar)

    def state(self) -> dict[str, Any]:
        """The account without its records and curves, for `go_on`; JSON can hold it."""
        saved = self.save()
        kept = ("state", "index", "waiting", "groups", "targets", "seen", "identity")
        names = [[key, self._names[key]] for key in self._waiting]
        delisted = [None if bar == NEVER else int(bar) for bar in self._delisted]
        more = {"names": names, "origin": self._origin, "traded": self._traded}
        return {**{name: saved[name] for name in kept}, **more, "delisted": delisted}

    def go_on(self, state: Mapping[str, Any]) -> None:
        """Become the account that `state` describes; this one is fresh, and its market ends where that one stands.

        Raises `DataError` where the market or the terms of trading are others, or `state` is damaged.
        """
        try:
            count, empty = len(self.market), array_to_json(np.empty((1, 0)))
            self._origin = int(state["origin"])
            self._dropped = int(state["index"]) + 1 - count
            self.index, self._first = count - 1, count
            flat = array_to_json(np.empty((1, 0, len(self.market.symbols))))
            self._restore({**state, "equity": empty, "notional": flat, "ledger": [], "rejections": []}, count - 1)
            self.index = int(state["index"])
            self._traded = float(state["traded"])
            self._delisted = np.array([NEVER if bar is None else int(bar) for bar in state["delisted"]], np.int64)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise DataError(f"the saved account is damaged: {error!r}.") from error
        self.keep(self.market)

    def _make_room(self, rows: int) -> None:
        used = self._equity.shape[1]
        equity, notional = np.empty((1, rows)), np.empty((1, rows, len(self.market.symbols)))
        equity[:, :used], notional[:, :used] = self._equity, self._notional
        self._equity, self._notional = equity, notional
