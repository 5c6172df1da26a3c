"""What the team held after a decision, beside what the market did: the figures from which `metrics.py` tells whether it
reads its states or copies the drift.

The recorded path is known for every state of a training; what is scored may be the mean of simulated futures.
"""

from __future__ import annotations

from backend.training.queries import Query
from backend.training.rollouts import Rollout
from simulator.backtest.scenarios import recorded_path


def ordered_exposure(rollout: Rollout) -> float:
    """The exposure to the query's coin if all orders of the decision fill, at the last close: signed, of the equity."""
    query = rollout.query
    account = query.account()
    change = sum(order.quantity for order in rollout.decision.orders if order.symbol == query.symbol)
    return query.exposure + change * query.view().last_close(query.symbol) / account.equity


def market_move(query: Query, horizon: int) -> float:
    """The coin's move from the state's close to the horizon's end on the recorded path, in the query's volatilities."""
    end = recorded_path(query.market, query.bar, horizon).close[0, -1, 0]
    return float((end / query.view().last_close(query.symbol) - 1.0) / query.volatility)
