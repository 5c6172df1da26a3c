"""Strategies as a user writes them, for sessions."""

from __future__ import annotations

import time
from collections.abc import Sequence

from simulator.backtest.run import orders_for_target
from simulator.exchange.exchange_records import AccountView
from simulator.exchange.orders import Order
from simulator.market.market import MarketView


class Alternating:
    """Is in the market at every other decision, by as much as it learned; it counts for itself."""

    name = "alternating"

    def fit(self, view: MarketView) -> None:
        self.share = 0.3 + 0.001 * (view.index % 7)
        self.seen = 0

    def decide(self, view: MarketView, account: AccountView) -> Sequence[Order]:
        self.seen += 1
        target = self.share if self.seen % 2 else 0.0
        return [one for symbol in view.symbols for one in orders_for_target(view, account, symbol, target)]


class Hanging(Alternating):
    """Takes half a second for its third decision."""

    def decide(self, view: MarketView, account: AccountView) -> Sequence[Order]:
        if self.seen == 2:
            time.sleep(0.5)
        return super().decide(view, account)


class Failing(Alternating):
    def decide(self, view: MarketView, account: AccountView) -> Sequence[Order]:
        return [Order(view.symbols[0], 1 / (self.seen - self.seen))]


class Wordy(Alternating):
    def decide(self, view: MarketView, account: AccountView) -> Sequence[Order]:
        return "buy"  # type: ignore[return-value]  # what a newcomer writes
