"""The market that a run was made on, loaded again for the candles, which no record holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from backend.builders.market import load_market
from backend.store.records import RunRecord
from backend.store.run_record import own_config
from simulator.errors import DataError, UserError
from simulator.market.market import Bars, Market
from simulator.market.resample import resample_arrays
from simulator.market.timeframes import BAR_COLUMNS, DAY_MS, TIMEFRAMES, bar_start, format_time, next_bar_start

MOST_CANDLES = 600


@dataclass(frozen=True)
class MarketReload:
    """The market of a run, or None and in one sentence why there is none."""

    market: Market | None
    problem: str = ""


def market_of(run: RunRecord) -> Market:
    """The market of `run`, from the data that it was made with. Raises `UserError` where that is gone or has changed
    since, and for an imported run."""
    config = own_config(run)
    market = load_market(config.market, config.costs)
    if market.content_hash != run.data_hash:
        raise DataError(
            f"{market.source}: the data has changed since run {run.run}; its candles would not be those traded then"
        )
    return market


def reload_market(run: RunRecord, load: Callable[[RunRecord], Market] = market_of) -> MarketReload:
    """What `load` gives; where the market cannot be had, the reason in place of an error."""
    try:
        return MarketReload(load(run))
    except UserError as error:
        return MarketReload(None, str(error))


def candles(market: Market, symbol: str, first: int, last: int) -> Bars:
    """Bars of `symbol` that close from `first` to `last` (ms); the grid's where they are at most `MOST_CANDLES`.

    Otherwise the finest coarser ones that are: minutes, hours, days or multiples of days, the last of them perhaps not
    whole. An absent bar is NaN with `present` False. Raises `DataError` for an unknown symbol and for times outside
    the market.
    """
    column = market.column(symbol)
    # The first close is where the run began: its bar is shown, it was the last one that the team saw.
    inside = np.flatnonzero((market.open_time < last) & (market.open_time + market.interval >= first))
    if not len(inside):
        raise DataError(f"{market.source}: there are no bars from {format_time(first)} to {format_time(last)} UTC")
    rows = slice(int(inside[0]), int(inside[-1]) + 1)
    open_time = market.open_time[rows]
    columns = {name: getattr(market, name)[rows, column : column + 1] for name in BAR_COLUMNS}
    if len(inside) > MOST_CANDLES:
        target = _coarse_interval(market.interval, int(open_time[0]), int(open_time[-1]))
        # Absent bars up to the end of the last coarse one, which would be left out as unfinished.
        end = int(open_time[-1]) + market.interval
        missing = (next_bar_start(end, target) - end) // market.interval
        open_time = np.concatenate([open_time, open_time[-1] + market.interval * np.arange(1, missing + 1)])
        padded = {name: np.vstack([values, np.full((missing, 1), np.nan)]) for name, values in columns.items()}
        coarse = resample_arrays(open_time, padded, market.interval, target)
        open_time, columns = coarse.open_time, {name: getattr(coarse, name) for name in BAR_COLUMNS}
    flat = {name: values[:, 0] for name, values in columns.items()}
    return Bars(symbol, open_time, **flat, present=~np.isnan(flat["close"]))


def _coarse_interval(interval: int, first: int, last: int) -> int:
    """The smallest usual length of a bar, a multiple of `interval`, of which few enough reach from first to last."""
    usual = sorted([*TIMEFRAMES.values(), *(days * DAY_MS for days in (2, 3, 14, 28, 84))])
    enough = [
        one
        for one in usual
        if one % interval == 0 and (bar_start(last, one) - bar_start(first, one)) // one < MOST_CANDLES
    ]
    return enough[0] if enough else usual[-1]
