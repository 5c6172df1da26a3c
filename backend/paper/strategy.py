"""A strategy in a session: it decides at each due close, as in a backtest, with no guard between it and its orders.

What a strategy remembers is in its own attributes, which no journal can hold. So a resumed session lets a new one
decide again at each recorded decision, with the market and the account of then: it ends where the former one stood, or
is refused because it decides something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from backend.builders.strategies import NamedStrategy
from backend.config.plugins import describe_failure
from backend.paper.thinking import BUSY, Thinker
from cryptosentinel.episode import TradingSession
from simulator.backtest.run import fit
from simulator.errors import UserError
from simulator.exchange.exchange_records import AccountView, record_to_json
from simulator.exchange.orders import OrderRequest
from simulator.market.market import MarketView


class StrategyPlayer:
    """One run of the strategy `subject`."""

    def __init__(self, subject: NamedStrategy) -> None:
        self.name = subject.name
        self._strategy = subject.make()
        self._fitted = False

    def decide(self, view: MarketView, account: AccountView) -> list[OrderRequest]:
        """Its requests at this close, after its `fit` at the first one. Raises `UserError` where it fails or gives
        anything but requests."""
        try:
            if not self._fitted:
                fit(self._strategy, view)
                self._fitted = True
            requests = list(self._strategy.decide(view, account))
        except UserError:
            raise
        except Exception as error:  # whatever a user's own code raises
            raise UserError(f"{self.name} failed: {describe_failure(error)}; fix it first") from error
        for one in requests:
            if not isinstance(one, OrderRequest):
                raise UserError(
                    f"{self.name}: decide gave {one!r:.60} among its orders: give a list of Order or Target"
                )
        return requests

    def again(self, view: MarketView, account: AccountView, recorded: Mapping[str, Any]) -> list[OrderRequest]:
        """Its requests at a recorded decision: none where they were not waited for."""
        if recorded.get("cut_off") == BUSY:  # it was not asked at all
            return []
        requests = self.decide(view, account)
        return [] if recorded.get("cut_off") else requests

    def check_again(self, view: MarketView, account: AccountView, recorded: Mapping[str, Any]) -> None:
        """Decide again. Raises `UserError` where that is not what was recorded."""
        requests = [record_to_json(one) for one in self.again(view, account, recorded)]
        if requests != [request for request, _ in recorded["requests"]]:
            raise UserError(
                f"{self.name} decides something else than it did at bar {recorded['bar']} of this session: put its "
                "former code back, take chance and outside data out of it, or begin another session"
            )


def trade(player: StrategyPlayer, session: TradingSession, thinker: Thinker) -> None:
    """Let `player` trade `session` to its end."""
    session.watched_by(_no_orders)
    while not session.done:
        view, account = session.view(), session.account()
        requests: Sequence[OrderRequest] = ()
        if not account.liquidated:
            requests = thinker.ask(partial(player.decide, view, account)) or ()
        session.apply(requests, [session.late_ms(0)] * len(requests))


def _no_orders(_view: MarketView, _account: AccountView) -> Sequence[OrderRequest]:
    return ()
