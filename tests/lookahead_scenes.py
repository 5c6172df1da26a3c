"""A market with something in every field, and a strategy that follows any signal: for tests of the analyses."""

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
from simulator.market.market import Market, MarketView
from simulator.market.series import DataSeries
from simulator.market.timeframes import BAR_COLUMNS
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate

BARS = 320


@cache
def rich_market(bars: int = BARS) -> Market:
    """Two coins of 4h bars with holes, and something in every field: a series comes every second bar."""
    market = generate(SyntheticConfig(bars=bars, seed=3, symbols=("AAAUSDT", "BBBUSDT")))
    rng = np.random.default_rng(5)
    holes = rng.random(market.close.shape) < 0.03
    arrays: dict[str, Any] = {name: np.where(holes, np.nan, getattr(market, name)) for name in BAR_COLUMNS}
    time = market.open_time[::2] + market.interval
    return replace(
        market,
        **arrays,
        partial=(rng.random(holes.shape) < 0.2) & ~holes,
        series={"onchain/fees": DataSeries(time, {"value": rng.normal(10.0, 3.0, len(time))})},
    )


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
