"""A strategy of one's own: long while the close is above its mean, and out where the market has become restless.

cryptosentinel backtest --team own_strategy:CalmTrend
"""

from __future__ import annotations

import numpy as np

import cryptosentinel as cs

SLOW, FAST = 60, 12  # bars


class CalmTrend:
    """Shares the account equally among the coins."""

    name = "calm_trend"

    def decide(self, view: cs.MarketView, account: cs.AccountView) -> list[cs.Order]:
        """What to submit at this close."""
        orders: list[cs.Order] = []
        for symbol in view.symbols:
            close = view.bars(symbol, SLOW).close
            if len(close) < SLOW or np.isnan(close).any():
                continue
            moves = np.abs(np.diff(np.log(close)))
            calm = moves[-FAST:].mean() < 1.5 * moves.mean()
            exposure = 1.0 / len(view.symbols) if calm and close[-1] > close.mean() else 0.0
            orders += cs.orders_for_target(view, account, symbol, exposure)
        return orders
