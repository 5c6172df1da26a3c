"""A market with something in every field, its other futures, and a strategy that follows any signal."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from simulator import strategies
from simulator.backtest.run import orders_for_target
from simulator.exchange.exchange_records import AccountView
from simulator.exchange.orders import Order
from simulator.market.events import FundingEvent, NewsItem
from simulator.market.market import Market, MarketView
from simulator.market.series import DataSeries
from simulator.market.timeframes import BAR_COLUMNS
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.markets import without_bars

BARS = 320


@cache
def rich_market(bars: int = BARS) -> Market:
    """Two coins of 4h bars with holes, and something in every field: a series comes every second bar."""
    market = generate(SyntheticConfig(bars=bars, seed=3, symbols=("AAAUSDT", "BBBUSDT")))
    rng = np.random.default_rng(5)
    holes = rng.random(market.close.shape) < 0.03
    time = market.open_time[::2] + market.interval
    return replace(
        without_bars(market, holes),
        partial=(rng.random(holes.shape) < 0.2) & ~holes,
        series={"onchain/fees": DataSeries(time, {"value": rng.normal(10.0, 3.0, len(time))})},
    )


def other_future(market: Market, bar: int, seed: int) -> Market:
    """The same market up to the close of `bar`, and another one from there on: bars, volumes, spreads, holes, funding,
    headlines. Among the new headlines are some about events before the clock that are only known after it."""
    rng = np.random.default_rng(seed)
    now = market.view(bar).now
    later = slice(bar + 1, None)
    arrays: dict[str, Any] = {}
    shape = market.close[later].shape
    level = np.exp(rng.normal(0.0, 0.5, (1, shape[1])) + np.cumsum(rng.normal(0.0, 0.05, shape), axis=0))
    absent = rng.random(shape) < 0.1
    for name in BAR_COLUMNS:
        values = getattr(market, name).copy()
        factor = level if name in ("open", "high", "low", "close") else np.exp(rng.normal(0.0, 1.0, shape))
        filled = np.nan_to_num(values[later], nan=2e-4 if name == "half_spread" else 100.0)
        values[later] = np.where(absent, np.nan, filled * factor)
        arrays[name] = values
    funding = {
        symbol: tuple(
            event if event.time <= now else FundingEvent(event.time, float(rng.normal(0.0, 0.01))) for event in events
        )
        for symbol, events in market.funding.items()
    }
    known = [item for item in market.news if item.known_at <= now]
    texts = ("prices surge on strong demand", "hack drains exchange", "crash deepens")
    unknown = [
        NewsItem(now - int(rng.integers(0, market.interval)), now + 1 + number, symbol, str(rng.choice(texts)))
        for number, symbol in enumerate([*market.symbols, None] * 3)
    ]
    series = {}
    for name, one in market.series.items():
        drawn = {column: rng.normal(0.0, 9.0, len(one)) for column in one.columns}
        kept = one.known_at <= now
        series[name] = DataSeries(one.known_at, {c: np.where(kept, one.columns[c], drawn[c]) for c in one.columns})
    news = (*known, *unknown)
    return replace(market, **arrays, funding=funding, news=news, series=series, truth=None)


Signal = Callable[[MarketView, str], float]


def market_behind(view: MarketView) -> Market:
    """The market of a view, which no attribute leads to: the garbage collector knows it. For cheats that are to be
    found."""
    return next(one for one in gc.get_referents(view) if isinstance(one, Market))


class Follows:
    """Holds the exposure that `signal` gives for each symbol, from -1 to 1, shared among the symbols."""

    name = "follows"

    def __init__(self, signal: Signal, delays: Sequence[int] = (0,)) -> None:
        self.signal = signal
        self.delays = delays

    def decide(self, view: MarketView, account: AccountView) -> Sequence[Order]:
        orders: list[Order] = []
        for symbol in view.symbols:
            share = float(np.clip(np.nan_to_num(self.signal(view, symbol)), -1.0, 1.0)) / len(view.symbols)
            orders += orders_for_target(view, account, symbol, share, delays=self.delays)
        return orders


WITHOUT_ARGUMENTS = [
    one
    for one in vars(strategies).values()
    if isinstance(one, type)
    and isinstance(getattr(one, "name", None), str)
    and all(
        parameter.default is not inspect.Parameter.empty
        or parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        for parameter in inspect.signature(one).parameters.values()
    )
]
