"""The use case search: many sets of a strategy's parameters on the first part of a window, and the best on the rest.

Sets are drawn from the strategy's ranges round by round (`backend.experiments.tuning.proposals`), evenly or by a
sequential optimiser that is told the Sharpe ratio of those before. Every set is a trial in the ledger. What choosing
the best of them is worth is measured in three ways: the probability of overfitting (CSCV), the Sharpe ratio deflated by
their number and spread, and walk-forward: the best of the past, traded on what followed. The last part of the window is
looked at once, with the chosen set alone.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from backend.builders.market import Account, account_of, load_market
from backend.builders.strategies import (
    NamedStrategy,
    arguments_of_strategy,
    made_ready,
    named_strategy,
    with_arguments,
)
from backend.config.schema import Config
from backend.evaluation.trials import TrialCount, count_trials, digest_of_trial
from backend.experiments.tuning.drawing import Drawing, DrawnSet
from backend.experiments.tuning.folder import SearchFolder, open_search
from backend.experiments.tuning.proposals import (
    MOST_DIMENSIONS,
    SAMPLERS,
    Dimension,
    Sampler,
    proposals_of,
    sampler_version,
)
from backend.processes import Workers, WorkReport, cores, started
from backend.runs.backtest import market_settings
from backend.runs.requests import RUNS, SILENT, STORE, Observer, WindowRequest
from backend.runs.window import requested_window
from backend.statistics.bootstrap import WindowIntervals, window_intervals
from backend.statistics.selection import Overfitting, benjamini_hochberg, combinatorial_overfitting, overfitting
from backend.statistics.splits import combinatorial, walk_forward
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

SplitName = Literal["halves", "combinatorial"]
SPLITS: tuple[SplitName, ...] = ("halves", "combinatorial")
GROUPS, TESTED, EMBARGO = 8, 2, 0.01  # of combinatorial purged cross-validation; the embargo is a share of the bars
FOLDS, PARTS = 4, 16  # of walk-forward, and of the halvings behind the probability of overfitting
_FEWEST_BARS = 4 * PARTS
# Sets of a round, which is kept as a whole. The optimiser learns between rounds only; the number is the same on every
# machine, so that the result is.
_ROUND: dict[Sampler, int] = {"halton": 32, "tpe": 8}


@dataclass(frozen=True, kw_only=True)
class SearchRequest(WindowRequest):
    """A search among the parameters of `strategy`.

    `ranges` replaces those of the strategy. `test_share` is the last part of the window, which the search does not see.
    With a `name`, each round is kept in the folder of that name below `runs/searches/`, and the same request goes on
    from there after a kill.
    """

    strategy: str
    trials: int = 200
    ranges: Mapping[str, tuple[float, float]] | None = None
    test_share: float = 0.3
    workers: int = 0
    sampler: Sampler = "halton"
    split: SplitName = "halves"
    name: str = ""

    def check(self) -> None:
        """As for every window; also the numbers."""
        super().check()
        if self.trials < 2:
            raise UserError(f"--trials {self.trials}: a search needs two sets or more")
        if not 0.0 < self.test_share < 0.9:
            raise UserError(f"--test-share {self.test_share:g}: give a share above 0 and below 0.9")
        if self.sampler not in SAMPLERS:
            raise UserError(f"--sampler {self.sampler}: there are {' and '.join(SAMPLERS)}")
        if self.split not in SPLITS:
            raise UserError(f"--split {self.split}: there are {' and '.join(SPLITS)}")
        sampler_version(self.sampler)


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
        overfitting: of all sets on the bars of the search, by `split`. paths: of combinatorial purged cross-validation,
            the annual Sharpe ratio of each path; empty for halves.
        deflated: probability that the chosen set's Sharpe ratio is above 0, after all that were tried on these bars.
        walk_forward: annual Sharpe ratio of choosing the best so far and trading it on what followed.
        final: the chosen set on the last part, with its intervals beside holding; None where these are too few bars,
            for the reason in `problem`.
    """

    run: str
    strategy: str
    tried: list[TriedSet]
    bars: int
    split: SplitName
    overfitting: Overfitting
    paths: list[float]
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


@dataclass(frozen=True)
class _Setting:
    """Where sets are played."""

    market: Market
    window: Window
    account: Account


def search_parameters(
    request: SearchRequest, store: Store | str | Path = STORE, observer: Observer = SILENT, runs: Path = RUNS
) -> SearchResult:
    """Search, count every set in the ledger of trials, and record the result in `store`. A search that was finished
    under its name is read and not made again. Raises `UserError`."""
    began = time.monotonic()
    config = market_settings(request)
    market = load_market(config.market, config.costs)
    account = account_of(config, market)
    strategy = named_strategy(request.strategy)
    ranges = ranges_of(strategy, request.ranges)
    window = requested_window(market, request, _warm_up(strategy, ranges))
    searched, final = parts_of(window, request.test_share)
    folder: SearchFolder | None = None
    if request.name:
        plan = _plan(request, strategy, ranges, config, market, searched, final)
        folder = open_search(runs, request.name, "search", plan)
        finished = folder.result(SearchResult)
        if finished is not None:
            if any(not one.name.startswith(f"{strategy.name}:") for one in finished.tried) or not finished.tried:
                raise UserError(f"the result in {folder.path} is of another strategy: move the folder away")
            observer.message(f"this search is finished: its result is in {folder.path}")
            return finished
    run = new_run_id("search") if folder is None else folder.run
    drawing = drawing_of(strategy, ranges, request.sampler, request.seed)
    with (
        store_at(store) as opened,
        recorded_run(
            opened, run, "search", request.seed, market.content_hash, config, resumes=folder is not None,
            strategy=strategy.name, ranges={name: list(ends) for name, ends in ranges.items()}, trials=request.trials,
            sampler=sampler_version(request.sampler),
        ),
    ):  # fmt: skip
        setting = _Setting(market, searched, account)

        def counted(tried: Sequence[NamedStrategy]) -> None:
            opened.put([_ledger_row(run, one, config, market, searched) for one in tried])

        sets, returns = _tried(drawing, setting, request, folder, counted, observer)
        ledger = opened.trials(market.content_hash)
        first = _ledger_row(run, sets[0], config, market, searched)
        tally = count_trials(ledger, market.content_hash, first.start, first.stop)
        result = _judged(sets, returns, market, searched, final, account, run, tally, request.split)
        last = _ledger_row(run, sets[_best(returns)], config, market, final, "final/")
        opened.put([last])
        looks = count_trials(opened.trials(market.content_hash), market.content_hash, last.start, last.stop).looks
        result = replace(result, looks=looks, seconds=time.monotonic() - began)
        opened.add_evaluation(EvaluationRecord(run, "search", 0, result.to_dict()))
        if folder is not None:
            folder.keep_result(result.to_dict())
    return result


def _plan(
    request: SearchRequest, strategy: NamedStrategy, ranges: ParameterRanges, config: Config, market: Market,
    searched: Window, final: Window,
) -> dict[str, Any]:  # fmt: skip
    """All that decides the result of a search."""
    return {
        "strategy": digest_of_trial(strategy, config, searched.decide_every, 0),
        "ranges": {name: list(ends) for name, ends in ranges.items()},
        "trials": request.trials,
        "sampler": sampler_version(request.sampler),
        "split": request.split,
        "seed": request.seed,
        "data": market.content_hash,
        "searched": [searched.start, searched.stop],
        "final": [final.start, final.stop],
        "decide_every": searched.decide_every,
        "config": config.to_dict(),
    }


def _warm_up(strategy: NamedStrategy, ranges: ParameterRanges) -> int:
    """The most bars that the strategy needs before its first decision, with the ends of the ranges."""
    taken, bars = arguments_of_strategy(strategy), list[int]()
    for ends in itertools.product(*ranges.values()):
        values = zip(ranges, ends, strict=True)
        text = ",".join(f"{name}={round(end) if isinstance(taken[name], int) else end}" for name, end in values)
        try:
            bars.append(made_ready(with_arguments(strategy, text))[1])
        except UserError:
            continue  # it refuses these together, such as a fast average that is slower than the slow one
    return max(bars, default=made_ready(strategy)[1])


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
    if len(ranges) > MOST_DIMENSIONS:
        raise UserError(f"{len(ranges)} parameters are too many to search: {MOST_DIMENSIONS} at most")
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


def drawing_of(strategy: NamedStrategy, ranges: ParameterRanges, sampler: Sampler, seed: int) -> Drawing[NamedStrategy]:
    """What draws sets of the strategy's arguments within the ranges."""
    taken = arguments_of_strategy(strategy)
    dimensions = [Dimension(name, low, high, isinstance(taken[name], int)) for name, (low, high) in ranges.items()]
    return Drawing(dimensions, proposals_of(sampler, dimensions, seed), lambda text: with_arguments(strategy, text))


def _tried(
    drawing: Drawing[NamedStrategy], setting: _Setting, request: SearchRequest, folder: SearchFolder | None,
    counted: Callable[[Sequence[NamedStrategy]], None], observer: Observer,
) -> tuple[list[NamedStrategy], FloatArray]:  # fmt: skip
    """The sets of all rounds, and (bars, sets) their returns in the searched window. Each round is played, or read
    where it was finished before, `counted`, and then told to what draws the next one.

    Raises `UserError` where the strategy takes fewer than two sets.
    """
    sets: list[NamedStrategy] = []
    columns: list[FloatArray] = []
    size = _ROUND[request.sampler]
    observer.progress("parameter sets", 0, request.trials)
    number = 1 if _at_once(request.strategy, setting) else request.workers or cores()
    with started(number, import_torch=False) as pool:
        for number in itertools.count():
            drawn = drawing.next_round(min(size, request.trials - len(sets)))
            if not drawn:
                break
            counted([one.made for one in drawn])
            returns = _round_returns(f"{number:04d}", drawn, setting, folder, pool)
            for one, column, ratio in zip(drawn, returns, _sharpes(np.stack(returns, axis=1)).tolist(), strict=True):
                drawing.score(one, ratio)
                sets.append(one.made)
                columns.append(column)
            observer.progress("parameter sets", len(sets), request.trials)
    if len(sets) < 2:
        raise UserError(
            f"{request.strategy} takes fewer than two sets within these ranges: {drawing.refusal or 'widen them'}"
        )
    return sets, np.stack(columns, axis=1)


def _round_returns(
    name: str, drawn: Sequence[DrawnSet[NamedStrategy]], setting: _Setting, folder: SearchFolder | None, pool: Workers
) -> list[FloatArray]:
    """Returns of each set of a round: as they were kept, or played now and kept. Raises `UserError` where other sets
    were kept than are drawn now."""
    texts = [one.text for one in drawn]
    kept = None if folder is None else folder.round_returns(name, texts, setting.window.stop - setting.window.start)
    if kept is not None:
        return kept
    returns = _all_returns([one.made for one in drawn], setting, pool)
    if folder is not None:
        folder.keep_round(name, texts, returns)
    return returns


def _at_once(strategy: str, setting: _Setting) -> bool:
    """Whether the strategy's sets are signals of whole arrays, each played in one call of the kernel."""
    made = named_strategy(strategy).make()
    return isinstance(made, LongFlat) and _signal_returns(made, setting) is not None


def _all_returns(sets: Sequence[NamedStrategy], setting: _Setting, pool: Workers) -> list[FloatArray]:
    """Returns of each set: of signals of whole arrays in this process, of all others bar by bar, several side by
    side."""
    first = sets[0].make()
    if isinstance(first, LongFlat) and _signal_returns(first, setting) is not None:
        columns = []
        for one in sets:
            made = one.make()
            assert isinstance(made, LongFlat)
            returns = _signal_returns(made, setting)
            assert returns is not None
            columns.append(returns)
        return columns
    # By their names: what makes a strategy does not travel between processes.
    names = tuple(one.name for one in sets)
    shares = [names[place :: pool.number] for place in range(pool.number) if names[place :: pool.number]]
    played: dict[str, FloatArray] = {}
    for share, returns_of_share in zip(shares, pool.each(partial(_played, setting=setting), shares), strict=True):
        played |= zip(share, returns_of_share, strict=True)
    return [played[name] for name in names]


def _signal_returns(strategy: LongFlat, setting: _Setting) -> FloatArray | None:
    """Returns of a strategy's signals in one call of the kernel; None where it cannot be had so."""
    market, window, account = setting.market, setting.window, setting.account
    venue = account.venue
    if venue.finer is not None or account.costs.latency_bars or account.costs.latency_ms >= market.interval:
        return None
    targets = long_flat_targets(strategy, market, window.start, window.decide_every)
    if targets is None:
        return None
    targets[window.stop :] = np.nan
    equity = run_signals(market, targets, **account.terms).equity[window.start : window.stop + 1]
    return metrics.returns_of(equity)


def _played(names: tuple[str, ...], report: WorkReport, setting: _Setting) -> list[FloatArray]:
    market, window, terms = setting.market, setting.window, setting.account.terms
    return [
        metrics.returns_of(run_backtest(market, named_strategy(name).make(), window, **terms).equity) for name in names
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
    run: str, count: TrialCount, split: SplitName,
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
    lucky, paths = overfitting_of(returns, split, searched.decide_every)
    return SearchResult(
        run=run,
        strategy=sets[0].name.rpartition(":")[0],
        tried=tried,
        bars=len(returns),
        split=split,
        overfitting=lucky,
        paths=(year * _sharpes(paths.T)).tolist(),
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


def overfitting_of(returns: FloatArray, split: SplitName, horizon: int) -> tuple[Overfitting, FloatArray]:
    """The probability of overfitting of choosing among sets by their `returns` (bars, sets), and the paths (paths,
    bars) of combinatorial purged cross-validation, none for halves. What is held at a bar was decided at most `horizon`
    bars before."""
    if split == "halves":
        return overfitting(returns, PARTS), np.empty((0, len(returns)))
    embargo = math.ceil(EMBARGO * len(returns))
    return combinatorial_overfitting(returns, combinatorial(len(returns), GROUPS, TESTED, horizon, embargo))


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


def _ledger_row(
    run: str, one: NamedStrategy, config: Config, market: Market, window: Window, of: str = ""
) -> TrialRecord:
    first, last = (int(market.open_time[bar]) + market.interval for bar in (window.start, window.stop))
    digest = digest_of_trial(one, config, window.decide_every, 0)
    return TrialRecord(run, of + one.name, market.content_hash, first, last, digest, int(time.time() * 1000))
