"""What the tables of orders share: a case, its market, short names for orders, and the comparison.

Unless a case says otherwise there is one symbol in hourly bars, cash 1,000, volume 1e6, no fee, no spread, nothing to
pay for what is borrowed or for funding that is not stated, leverage 1. Candles are (open, high, low, close) or None for
a bar that the exchange never produced. Requests are keyed by the bar at whose close they are decided. Fills are (bar,
quantity, price, reason), with True behind where they are a maker's, rejections (bar, reason).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from simulator.exchange.costs import Costs
from simulator.exchange.exchange import Exchange
from simulator.exchange.orders import Order, OrderRequest
from simulator.exchange.rules import MarginTier, SymbolRules
from simulator.exchange.venue import Venue
from simulator.market.events import FundingEvent
from simulator.market.market import Market

Candle = tuple[float, float, float, float]

HOUR = 3_600_000
INTERVALS = {"30m": HOUR // 2, "1h": HOUR, "1d": 24 * HOUR}
STILL: Candle = (100, 100, 100, 100)
WIDE: Candle = (100, 110, 100, 105)
WIDE_SIGMA = math.log(1.1) / 1.665  # of a bar whose past is too short to tell
FREE: dict[str, Any] = {"taker_fee": 0.0, "maker_fee": 0.0, "borrow_rate": 0.0, "missing_funding_rate": 0.0}
ONE_TIER = (MarginTier(0.0, 0.01, 10.0),)


def bars(
    candles: Sequence[Candle | None], timeframe: str, volumes: list[float], half_spread: float, **more: Any
) -> Market:
    table = np.array([candle or (math.nan,) * 4 for candle in candles], dtype=np.float64)
    first, high, low, close = (table[:, [k]].copy() for k in range(4))
    return Market(
        symbols=("A",),
        timeframe=timeframe,
        open_time=np.arange(len(table), dtype=np.int64) * INTERVALS[timeframe],
        open=first,
        high=high,
        low=low,
        close=close,
        volume=np.array(volumes)[:, None],
        half_spread=np.where(np.isnan(close), np.nan, half_spread),
        **more,
    )


def rules(**fields: Any) -> Venue:
    return Venue({"A": SymbolRules(**fields)})


def limit(quantity: float, price: float, **more: Any) -> Order:
    return Order("A", quantity, kind="limit", limit=price, **more)


def stop(quantity: float, trigger: float, **more: Any) -> Order:
    return Order("A", quantity, kind="stop", trigger=trigger, **more)


def take_profit(quantity: float, trigger: float, **more: Any) -> Order:
    return Order("A", quantity, kind="take_profit", trigger=trigger, **more)


def stop_limit(quantity: float, trigger: float, price: float, **more: Any) -> Order:
    return Order("A", quantity, kind="stop_limit", trigger=trigger, limit=price, **more)


def market(quantity: float, **more: Any) -> Order:
    return Order("A", quantity, **more)


@dataclass(frozen=True)
class Case:
    name: str
    candles: Sequence[Candle | None]
    requests: dict[int, list[OrderRequest]]
    fills: list[tuple[int, float, float, str] | tuple[int, float, float, str, bool]]
    rejections: list[tuple[int, str]] = field(default_factory=list)
    equity: float | None = None  # at the last close
    paid: dict[str, float] = field(default_factory=dict)  # the costs that the case is about
    costs: dict[str, Any] = field(default_factory=dict)
    half_spread: float = 0.0
    volumes: list[float] = field(default_factory=list)
    venue: Venue = field(default_factory=Venue)
    leverage: float = 1.0
    timeframe: str = "1h"
    funding: dict[float, float] = field(default_factory=dict)  # hours after the first open: rate


def check(case: Case) -> None:
    """Play the case and compare what the exchange recorded."""
    funding = {"A": tuple(FundingEvent(int(hours * HOUR), rate) for hours, rate in sorted(case.funding.items()))}
    volumes = case.volumes or [1e6] * len(case.candles)
    history = bars(case.candles, case.timeframe, volumes, case.half_spread, funding=funding)
    costs = Costs(**(FREE | case.costs))
    exchange = Exchange(history, 0, 1_000.0, costs, case.leverage, venue=case.venue)
    for bar in range(len(case.candles)):
        for request in case.requests.get(bar, []):
            exchange.submit(request)
        exchange.step()

    fills: list[object] = [(fill.bar, fill.quantity, fill.price, fill.reason, fill.maker) for fill in exchange.fills]
    assert fills == [
        (bar, pytest.approx(quantity, rel=1e-12), pytest.approx(price, rel=1e-12), reason, [*maker] == [True])
        for bar, quantity, price, reason, *maker in case.fills
    ]
    assert [(r.bar, r.reason) for r in exchange.rejections] == case.rejections
    if case.equity is not None:
        assert exchange.account().equity == pytest.approx(case.equity, rel=1e-10)
    paid = exchange.paid()
    assert {name: paid[name] for name in case.paid} == pytest.approx(case.paid, rel=1e-10, abs=1e-12)
