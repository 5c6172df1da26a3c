"""Folds of an experiment: which bars an arm may learn from, and which windows it is tested on.

A fold sees the bars from its beginning to the end of its test part, and no later one. Inside it the parts are those of
every training (`backend.builders.market.split`): training, validation, test, each a horizon apart, so that what a bar
of one part is judged by lies in no other part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from backend.builders.market import split
from backend.config.schema import Config
from backend.experiments.plan import WindowsPlan
from backend.statistics.splits import walk_forward
from simulator.errors import DataError, UserError
from simulator.market.market import Market
from simulator.market.timeframes import BAR_COLUMNS, format_time, parse_time


@dataclass(frozen=True)
class Fold:
    """The bars [start, stop) that are seen, and the bars of the whole market at which validation and test begin."""

    start: int
    validation: int
    test: int
    stop: int

    def seen(self, market: Market) -> Market:
        """The bars of the fold, and what became known until their end."""
        if (self.start, self.stop) == (0, len(market)):
            return market
        return bars_between(market, self.start, self.stop)

    def trained_on(self, seen: Market) -> tuple[int, int]:
        """First and last moment (ms) that a training in `seen`, the fold's bars, may have looked at, its choice of a
        version included."""
        return int(seen.open_time[0]), int(seen.open_time[self.test - self.start - 1]) + seen.interval


def folds_of(plan: WindowsPlan, market: Market, config: Config) -> list[Fold]:
    """The folds of a market. Raises `UserError` for days that it does not have, `DataError` where it is too short."""
    bars, horizon = len(market), config.team.horizon_bars
    if plan.split == "shares":
        parts = split(market, config.market, horizon)
        return [Fold(0, parts.validation[0], parts.held_out[0], bars)]
    if plan.split == "dates":
        validation, test = (_bar_at(market, day) for day in (plan.validation_from, plan.test_from))
        return [Fold(0, validation, test, bars)]
    share = config.market.shares[1]
    found = []
    for fold in walk_forward(bars, plan.folds, horizon, anchored=plan.split == "anchored"):
        [(start, _)] = fold.train
        test, stop = fold.test
        found.append(Fold(start, test - max(1, int((test - start) * share)), test, stop))
    return found


def with_fold(config: Config, fold: Fold, bars: int) -> Config:
    """The configuration whose parts are those of the fold, for the `bars` that it sees.

    Raises `DataError` where a part is shorter than the horizon that must be left between two of them.
    """
    first, second = fold.validation - fold.start, fold.test - fold.start
    if min(first, second - first) <= config.team.horizon_bars:
        raise DataError(
            f"the training or validation part has at most {min(first, second - first)} bars, and a horizon of "
            f"{config.team.horizon_bars} must be left behind it: use fewer folds, or more bars"
        )
    # Half a bar more, so that the shares give these very bars again.
    shares = ((first + 0.5) / bars, (second - first) / bars)
    return config.model_copy(update={"market": config.market.model_copy(update={"shares": shares})})


def bars_between(market: Market, start: int, stop: int) -> Market:
    """The bars [start, stop) of a market, with what became known until their end. Generated truth is left out."""
    last = int(market.open_time[stop - 1]) + market.interval
    arrays: dict[str, Any] = {name: np.ascontiguousarray(getattr(market, name)[start:stop]) for name in BAR_COLUMNS}
    if market.truth is not None:
        raise UserError(
            "walk-forward folds are of recorded bars: a generated market's hidden truth is of the whole of it; use "
            "split = 'shares'"
        )
    return replace(
        market,
        open_time=market.open_time[start:stop],
        **arrays,
        partial=None if market.partial is None else market.partial[start:stop],
        funding={name: tuple(one for one in events if one.time <= last) for name, events in market.funding.items()},
        news=tuple(one for one in market.news if one.known_at <= last),
        source=f"{market.source}, to {format_time(last)}",
    )


def _bar_at(market: Market, day: str) -> int:
    """The first bar that opens on a day or later. Raises `UserError` where it is not inside the market."""
    bar = int(np.searchsorted(market.open_time, parse_time(day)))
    if not 0 < bar < len(market):
        first, last = (format_time(int(market.open_time[place]))[:10] for place in (0, -1))
        raise UserError(f"{day} is not inside the market, whose bars are from {first} to {last}")
    return bar
