"""The use case search: many sets of a strategy's parameters on the first part of a window, and the best on the rest.

Sets are drawn evenly from the strategy's ranges by a Halton sequence (Halton 1960), on a logarithmic scale. Every set
is a trial in the ledger. What choosing the best of them is worth is measured in three ways: the probability of
overfitting (CSCV), the Sharpe ratio deflated by their number and spread, and walk-forward: the best of the past, traded
on what followed. The last part of the window is looked at once, with the chosen set alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from backend.builders.market import Account, account_of, load_market
from backend.builders.strategies import NamedStrategy, arguments_of_strategy, named_strategy, with_arguments
from backend.config.schema import Config
from backend.evaluation.trials import TrialCount, count_trials, digest_of_trial
from backend.experiments.workers import cores, side_by_side_in_processes
from backend.runs.backtest import market_settings, requested_window
from backend.runs.requests import SILENT, STORE, Observer, WindowRequest
from backend.statistics.bootstrap import WindowIntervals, window_intervals
from backend.statistics.selection import Overfitting, benjamini_hochberg, overfitting
from backend.statistics.splits import walk_forward
from backend.store.records import EvaluationRecord, TrialRecord
from backend.store.run_record import new_run_id, recorded_run, store_at
from backend.store.store import Store
from simulator.arrays import FloatArray
from simulator.backtest import metrics
from simulator.backtest.from_signals import run_signals
from simulator.backtest.run import Window, run_backtest
from simulator.errors import DataError, UserError
from simulator.market.market import Market
from simulator.market.timeframes import YEAR_MS
from simulator.strategies import Hold
from simulator.strategies.signal_arrays import long_flat_targets
from simulator.strategies.signals import LongFlat, ParameterRanges

FOLDS, PARTS = 4, 16  # of walk-forward, and of the halvings behind the probability of overfitting
_FEWEST_BARS = 4 * PARTS
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)
_CHUNK = 50  # sets that a process plays at a time


@dataclass(frozen=True, kw_only=True)
class SearchRequest(WindowRequest):
    """A search among the parameters of `strategy`.

    `ranges` replaces those of the strategy. `test_share` is the last part of the window, which the search does not see.
    """

    strategy: str
    trials: int = 200
    ranges: Mapping[str, tuple[float, float]] | None = None
    test_share: float = 0.3
    workers: int = 0

    def check(self) -> None:
        """As for every window; also the numbers."""
        super().check()
        if self.trials < 2:
            raise UserError(f"--trials {self.trials}: a search needs two sets or more")
        if not 0.0 < self.test_share < 0.9:
            raise UserError(f"--test-share {self.test_share:g}: give a share above 0 and below 0.9")


@dataclass(frozen=True)
class TriedSet:
    """A set of parameters, its annual Sharpe ratio and return where it was chosen, and the p-value of a ratio above 0
    after Benjamini and Hochberg's correction."""

    name: str
    parameters: dict[str, float]
    sharpe: float
    total_return: float
    adjusted: float


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Attributes:
        tried: all sets, the best first. chosen: the first of them.
        overfitting: of all sets on the bars of the search.
        deflated: probability that the chosen set's Sharpe ratio is above 0, after all that were tried on these bars.
        walk_forward: annual Sharpe ratio of choosing the best so far and trading it on what followed.
        final: the chosen set on the last part, with its intervals beside holding; None where these are too few bars,
            for the reason in `problem`.
    """

    run: str
    strategy: str
    tried: list[TriedSet]
    bars: int
    overfitting: Overfitting
    deflated: float
    walk_forward: float
    final_return: float
    final_sharpe: float
    hold_return: float
    final: WindowIntervals | None
    problem: str
    trials: int
    looks: int
    seconds: float

    @property
    def chosen(self) -> TriedSet:
        """The set with the highest Sharpe ratio."""
        return self.tried[0]

    def to_dict(self) -> dict[str, Any]:
        """All of it for programs."""
        return asdict(self)


def search_parameters(
    request: SearchRequest, store: Store | str | Path = STORE, observer: Observer = SILENT
) -> SearchResult:
    """Search, count every set in the ledger of trials, and record the result in `store`. Raises `UserError`."""
    began = time.monotonic()
    config = market_settings(request)
    market = load_market(config.market, config.costs)
    window = requested_window(market, request)
    account = account_of(config, market)
    strategy = named_strategy(request.strategy)
    ranges = ranges_of(strategy, request.ranges)
    searched, final = parts_of(window, request.test_share)
    sets = draw_sets(strategy, ranges, request.trials)
    run = new_run_id("search")
    with (
        store_at(store) as opened,
        recorded_run(
            opened, run, "search", request.seed, market.content_hash, config, strategy=strategy.name,
            ranges={name: list(ends) for name, ends in ranges.items()}, trials=len(sets),
        ),
    ):  # fmt: skip
        observer.progress("parameter sets", 0, len(sets))
        returns = _all_returns(sets, market, searched, account, request.workers or cores(), observer)
        count = _count(opened, run, sets, config, market, searched)
        result = _judged(sets, returns, market, searched, final, account, run, count)
        last = _ledger_row(run, sets[_best(returns)], config, market, final, "final/")
        opened.put([last])
        looks = count_trials(opened.trials(market.content_hash), market.content_hash, last.start, last.stop).looks
        result = replace(result, looks=looks, seconds=time.monotonic() - began)
        opened.add_evaluation(EvaluationRecord(run, "search", 0, result.to_dict()))
    return result


def ranges_of(strategy: NamedStrategy, given: Mapping[str, tuple[float, float]] | None) -> ParameterRanges:
    """What is tried of each argument. Raises `UserError` where the strategy has none, or the ranges are no ranges."""
    declared: ParameterRanges = getattr(strategy.make(), "parameters", {})
    ranges = dict(given) if given else dict(declared)
    taken = arguments_of_strategy(strategy)
    if not ranges:
        raise UserError(
            f"{strategy.name} says nothing of its parameters: give --range NAME=LOW..HIGH for any of "
            f"{', '.join(taken) or 'none, since it takes no number'}; or a class attribute parameters, {{name: (low, "
            "high)}"
        )
    for name, (low, high) in ranges.items():
        if name not in taken:
            raise UserError(f"{strategy.name} has no argument '{name}'; it has {', '.join(taken)}")
        if not 0.0 < low < high:
            raise UserError(
                f"the range of {name} is {low:g} to {high:g}: give two numbers above 0, the lower one first"
            )
    if len(ranges) > len(_PRIMES):
        raise UserError(f"{len(ranges)} parameters are too many to search: {len(_PRIMES)} at most")
    return ranges


def parts_of(window: Window, test_share: float) -> tuple[Window, Window]:
    """The part of the window that is searched and the last part, which begins with a decision of its own. Raises
    `DataError` for a window that is too short."""
    every = window.decide_every
    searched = int((window.stop - window.start) * (1.0 - test_share)) // every * every
    if searched < _FEWEST_BARS or window.stop - window.start - searched < 2:
        raise DataError(
            f"the window has {window.stop - window.start} bars, of which {searched} are searched: it takes "
            f"{_FEWEST_BARS}; take a longer window or finer bars"
        )
    middle = window.start + searched
    return Window(window.start, middle, every), Window(middle, window.stop, every)


def draw_sets(strategy: NamedStrategy, ranges: ParameterRanges, count: int) -> list[NamedStrategy]:
    """`count` different sets within the ranges that the strategy takes; fewer where there are no more.

    Raises `UserError` where it takes none of them.
    """
    taken, found, refusal = arguments_of_strategy(strategy), dict[str, NamedStrategy](), ""
    for point in _halton(len(ranges), 20 * count):
        if len(found) == count:
            break
        values = []
        for (name, (low, high)), place in zip(ranges.items(), point, strict=True):
            value = low * (high / low) ** place
            values.append(f"{name}={round(value) if isinstance(taken[name], int) else f'{value:.4g}'}")
        text = ",".join(values)
        if text not in found:
            try:
                found[text] = with_arguments(strategy, text)
            except UserError as error:  # as a fast average above the slow one
                refusal = str(error)
    if len(found) < 2:
        raise UserError(f"{strategy.name} takes fewer than two sets within these ranges: {refusal or 'widen them'}")
    return list(found.values())


def _halton(dimensions: int, count: int) -> Iterator[list[float]]:
    """Points that fill the unit cube evenly; the first ones are left out, which lie on a line in high dimensions."""
    for index in range(20, count + 20):
        point = []
        for base in _PRIMES[:dimensions]:
            place, scale, rest = 0.0, 1.0, index
            while rest:
                scale /= base
                rest, digit = divmod(rest, base)
                place += scale * digit
            point.append(place)
        yield point


@dataclass(frozen=True)
class _Chunk:
    """Sets that one process plays, by their texts: what makes a strategy does not travel between processes."""

    first: int
    names: tuple[str, ...]


def _all_returns(
    sets: list[NamedStrategy], market: Market, window: Window, account: Account, workers: int, observer: Observer
) -> FloatArray:
    """(bars, sets): returns of every set in the window. Sets that are signals of whole arrays are played in this
    process; all others bar by bar, several processes side by side."""
    first = sets[0].make()
    at_once = isinstance(first, LongFlat) and _signal_returns(first, market, window, account) is not None
    columns: list[FloatArray] = [np.empty(0)] * len(sets)
    if at_once:
        for number, one in enumerate(sets):
            made = one.make()
            assert isinstance(made, LongFlat)
            returns = _signal_returns(made, market, window, account)
            assert returns is not None
            columns[number] = returns
            if number % _CHUNK == _CHUNK - 1:
                observer.progress("parameter sets", number + 1, len(sets))
    else:
        chunks = [
            _Chunk(start, tuple(one.name for one in sets[start : start + _CHUNK]))
            for start in range(0, len(sets), _CHUNK)
        ]
        work, done = partial(_played, market=market, window=window, account=account), 0
        for chunk, found in side_by_side_in_processes(work, chunks, workers):
            columns[chunk.first : chunk.first + len(found)] = found
            done += len(found)
            observer.progress("parameter sets", done, len(sets))
    return np.stack(columns, axis=1)


def _signal_returns(strategy: LongFlat, market: Market, window: Window, account: Account) -> FloatArray | None:
    """Returns of a strategy's signals in one call of the kernel; None where it cannot be had so."""
    venue = account.venue
    if venue.finer is not None or account.costs.latency_bars or account.costs.latency_ms >= market.interval:
        return None
    targets = long_flat_targets(strategy, market, window.start, window.decide_every)
    if targets is None:
        return None
    targets[window.stop :] = np.nan
    equity = run_signals(market, targets, **account.terms).equity[window.start : window.stop + 1]
    return metrics.returns_of(equity)


def _played(chunk: _Chunk, market: Market, window: Window, account: Account) -> list[FloatArray]:
    return [
        metrics.returns_of(run_backtest(market, named_strategy(name).make(), window, **account.terms).equity)
        for name in chunk.names
    ]


def _sharpes(returns: FloatArray) -> FloatArray:
    """(sets,): Sharpe ratio of a bar; 0 where nothing varies."""
    spread = returns.std(axis=0, ddof=1)
    still = spread <= 1e-15
    return np.where(still, 0.0, returns.mean(axis=0) / np.where(still, 1.0, spread))


def _best(returns: FloatArray) -> int:
    return int(_sharpes(returns).argmax())


def _judged(
    sets: list[NamedStrategy], returns: FloatArray, market: Market, searched: Window, final: Window, account: Account,
    run: str, count: TrialCount,
) -> SearchResult:  # fmt: skip
    ratios, year = _sharpes(returns), math.sqrt(YEAR_MS / market.interval)
    chances = [1.0 - metrics.probabilistic_sharpe(column) for column in returns.T]
    adjusted = benjamini_hochberg(chances)
    tried = [
        TriedSet(
            sets[place].name,
            _parameters(sets[place]),
            float(year * ratios[place]),
            float(np.prod(1.0 + returns[:, place]) - 1.0),
            float(adjusted[place]),
        )
        for place in np.argsort(-ratios, kind="stable").tolist()
    ]
    best = _best(returns)
    terms = account.terms
    result = run_backtest(market, sets[best].make(), final, **terms)
    held = run_backtest(market, Hold(), final, **terms)
    intervals, problem = None, ""
    try:
        intervals = window_intervals(
            metrics.returns_of(result.equity), YEAR_MS / market.interval, metrics.returns_of(held.equity)
        )
    except DataError as error:
        problem = str(error)
    return SearchResult(
        run=run,
        strategy=sets[0].name.rpartition(":")[0],
        tried=tried,
        bars=len(returns),
        overfitting=overfitting(returns, PARTS),
        deflated=metrics.deflated_sharpe(returns[:, best], max(count.trials, len(sets)), float(ratios.std(ddof=1))),
        walk_forward=float(year * _sharpes(_chosen_forward(returns)[:, None])[0]),
        final_return=result.metrics["total_return"],
        final_sharpe=result.metrics["sharpe"],
        hold_return=held.metrics["total_return"],
        final=intervals,
        problem=problem,
        trials=count.trials,
        looks=count.looks,
        seconds=0.0,
    )


def _chosen_forward(returns: FloatArray) -> FloatArray:
    """Returns of the set that was best on the bars before, on the bars that followed, fold after fold."""
    pieces = []
    for fold in walk_forward(len(returns), FOLDS, horizon=1, anchored=True):
        [(start, stop)] = fold.train
        first, last = fold.test
        pieces.append(returns[first:last, _best(returns[start:stop])])
    return np.concatenate(pieces)


def _parameters(one: NamedStrategy) -> dict[str, float]:
    pairs = (part.partition("=") for part in one.name.rpartition(":")[2].split(","))
    return {name: float(value) for name, _, value in pairs}


def _count(
    store: Store, run: str, sets: list[NamedStrategy], config: Config, market: Market, window: Window
) -> TrialCount:
    """Put every set into the ledger, and count what was tried on these bars."""
    rows = [_ledger_row(run, one, config, market, window) for one in sets]
    store.put(rows)
    return count_trials(store.trials(market.content_hash), market.content_hash, rows[0].start, rows[0].stop)


def _ledger_row(
    run: str, one: NamedStrategy, config: Config, market: Market, window: Window, of: str = ""
) -> TrialRecord:
    first, last = (int(market.open_time[bar]) + market.interval for bar in (window.start, window.stop))
    digest = digest_of_trial(one, config, window.decide_every, 0)
    return TrialRecord(run, of + one.name, market.content_hash, first, last, digest, int(time.time() * 1000))
