"""The use case search: many sets of a strategy's parameters on the first part of a window, and the best on the rest.

Optuna proposes the sets, by the tree-structured Parzen estimator: more of them where the Sharpe ratio was high. Every
set is a trial in the ledger. What choosing the best of them is worth is measured in three ways: the probability of
overfitting (CSCV), the Sharpe ratio deflated by their number and spread, and walk-forward: the best of the past, traded
on what followed. The last part of the window is looked at once, with the chosen set alone.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

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
from backend.processes import Workers, WorkReport, cores, started
from backend.runs.backtest import market_settings
from backend.runs.requests import SILENT, STORE, Observer, WindowRequest
from backend.runs.window import requested_window
from backend.statistics.bootstrap import WindowIntervals, window_intervals
from backend.statistics.selection import Overfitting, benjamini_hochberg, overfitting
from backend.store.records import EvaluationRecord, TrialRecord
from backend.store.run_record import new_run_id, recorded_run, store_at
from backend.store.store import Store
from simulator.arrays import FloatArray
from simulator.backtest import metrics
from simulator.backtest.run import Window, run_backtest
from simulator.errors import DataError, UserError
from simulator.market.market import Market
from simulator.market.timeframes import YEAR_MS
from simulator.strategies import Hold
from simulator.strategies.signals import ParameterRanges

FOLDS, PARTS = 4, 16  # of walk-forward, and of the halvings behind the probability of overfitting
_FEWEST_BARS = 4 * PARTS
# Sets that are played side by side. The optimizer learns between rounds only; the number is the same on every machine,
# so that the result is.
_ROUND = 8
_ATTEMPTS = 20  # for each set that is wanted: most are new, but for few whole numbers or many that are refused
_STEADY = 10.0  # highest over lowest from which a range is searched on a logarithmic scale


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
        _optuna()


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


@dataclass(frozen=True)
class _Setting:
    """Where sets are played."""

    market: Market
    window: Window
    account: Account


def search_parameters(
    request: SearchRequest, store: Store | str | Path = STORE, observer: Observer = SILENT
) -> SearchResult:
    """Search, count every set in the ledger of trials, and record the result in `store`. Raises `UserError`."""
    began = time.monotonic()
    config = market_settings(request)
    market = load_market(config.market, config.costs)
    account = account_of(config, market)
    strategy = named_strategy(request.strategy)
    ranges = ranges_of(strategy, request.ranges)
    window = requested_window(market, request, _warm_up(strategy, ranges))
    searched, final = parts_of(window, request.test_share)
    run = new_run_id("search")
    with (
        store_at(store) as opened,
        recorded_run(
            opened, run, "search", request.seed, market.content_hash, config, strategy=strategy.name,
            ranges={name: list(ends) for name, ends in ranges.items()}, trials=request.trials,
        ),
    ):  # fmt: skip

        def counted(tried: Sequence[NamedStrategy]) -> None:
            opened.put([_ledger_row(run, one, config, market, searched) for one in tried])

        setting = _Setting(market, searched, account)
        sets, returns = _tried(strategy, ranges, setting, request, counted, observer)
        first = _ledger_row(run, sets[0], config, market, searched)
        tally = count_trials(opened.trials(market.content_hash), market.content_hash, first.start, first.stop)
        result = _judged(sets, returns, market, searched, final, account, run, tally)
        last = _ledger_row(run, sets[_best(returns)], config, market, final, "final/")
        opened.put([last])
        looks = count_trials(opened.trials(market.content_hash), market.content_hash, last.start, last.stop).looks
        result = replace(result, looks=looks, seconds=time.monotonic() - began)
        opened.add_evaluation(EvaluationRecord(run, "search", 0, result.to_dict()))
    return result


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
    """What is tried of each argument. Raises `UserError` where the strategy has none, or the ranges are invalid."""
    declared: ParameterRanges = getattr(strategy.make(), "parameters", {})
    ranges = dict(given) if given else dict(declared)
    taken = arguments_of_strategy(strategy)
    if not ranges:
        raise UserError(
            f"{strategy.name} lists no ranges of its parameters: give --range NAME=LOW..HIGH for any of "
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


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise UserError(
            "a search needs the package optuna: pip install 'cryptosentinel[search]' (in a clone: python "
            "scripts/install.py search)"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


class Proposals:
    """Different sets of a strategy's arguments within the ranges, which it takes, round by round."""

    def __init__(self, strategy: NamedStrategy, ranges: ParameterRanges, seed: int) -> None:
        optuna = _optuna()
        taken = arguments_of_strategy(strategy)
        self._strategy = strategy
        self._study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
        self._failed = optuna.trial.TrialState.FAIL
        self._space = {
            name: optuna.distributions.IntDistribution(round(low), round(high), log=high >= _STEADY * low)
            if isinstance(taken[name], int)
            else optuna.distributions.FloatDistribution(low, high, log=high >= _STEADY * low)
            for name, (low, high) in ranges.items()
        }
        self._known: dict[str, float | None] = {}  # score by text; None: refused, or being played
        self.refusal = ""  # why the last one was refused

    def rounds(self, count: int) -> Iterator[dict[int, NamedStrategy]]:
        """`count` sets by their number, a round at a time; fewer where no more are met within these ranges. `score`
        those of a round before the next one."""
        left = count
        while left:
            fresh: dict[int, NamedStrategy] = {}
            for _ in range(_ATTEMPTS * _ROUND):
                if len(fresh) == min(_ROUND, left):
                    break
                trial = self._study.ask(self._space)
                text = ",".join(f"{n}={v if isinstance(v, int) else f'{v:.6g}'}" for n, v in trial.params.items())
                if text in self._known:
                    self._tell(trial.number, self._known[text])
                    continue
                self._known[text] = None
                try:
                    fresh[trial.number] = with_arguments(self._strategy, text)
                except UserError as error:
                    self.refusal = str(error)
                    self._tell(trial.number, None)
            if not fresh:
                return
            left -= len(fresh)
            yield fresh

    def score(self, number: int, one: NamedStrategy, score: float) -> None:
        """Report the Sharpe ratio of a set."""
        self._known[one.name.rpartition(":")[2]] = score
        self._tell(number, score)

    def _tell(self, number: int, score: float | None) -> None:
        if score is None or not math.isfinite(score):
            self._study.tell(number, state=self._failed)
        else:
            self._study.tell(number, score)


def _tried(
    strategy: NamedStrategy, ranges: ParameterRanges, setting: _Setting, request: SearchRequest,
    counted: Callable[[Sequence[NamedStrategy]], None], observer: Observer,
) -> tuple[list[NamedStrategy], FloatArray]:  # fmt: skip
    """The sets of all rounds, which are `counted` before they are played, and (bars, sets) their returns in the
    searched window. Raises `UserError` where the strategy takes fewer than two sets."""
    proposals = Proposals(strategy, ranges, request.seed)
    sets, columns = list[NamedStrategy](), list[FloatArray]()
    observer.progress("parameter sets", 0, request.trials)
    with started(request.workers or cores(), import_torch=False) as pool:
        for fresh in proposals.rounds(request.trials):
            counted(list(fresh.values()))
            returns = _all_returns(list(fresh.values()), setting, pool)
            for (number, one), column in zip(fresh.items(), returns, strict=True):
                proposals.score(number, one, float(_sharpes(column[:, None])[0]))
                sets.append(one)
                columns.append(column)
            observer.progress("parameter sets", len(sets), request.trials)
    if len(sets) < 2:
        raise UserError(
            f"{request.strategy} takes fewer than two sets within these ranges: {proposals.refusal or 'widen them'}"
        )
    return sets, np.stack(columns, axis=1)


def _all_returns(sets: Sequence[NamedStrategy], setting: _Setting, pool: Workers) -> list[FloatArray]:
    """Returns of each set, several played side by side."""
    # By their names: what makes a strategy does not travel between processes.
    names = tuple(one.name for one in sets)
    shares = [names[place :: pool.number] for place in range(pool.number) if names[place :: pool.number]]
    played: dict[str, FloatArray] = {}
    for share, returns_of_share in zip(shares, pool.each(partial(_played, setting=setting), shares), strict=True):
        played |= zip(share, returns_of_share, strict=True)
    return [played[name] for name in names]


def _played(names: tuple[str, ...], report: WorkReport, setting: _Setting) -> list[FloatArray]:
    # A market keeps the indicators that a run makes; the other processes are being sent this one meanwhile.
    market, window, terms = setting.market.without_indicators(), setting.window, setting.account.terms
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
    """Returns of the set that was best on all bars before, on those that followed, for each quarter of the second
    half."""
    edges = np.linspace(len(returns) // 2, len(returns), FOLDS + 1).astype(int).tolist()
    return np.concatenate(
        [returns[first:last, _best(returns[: first - 1])] for first, last in itertools.pairwise(edges)]
    )


def _parameters(one: NamedStrategy) -> dict[str, float]:
    pairs = (part.partition("=") for part in one.name.rpartition(":")[2].split(","))
    return {name: float(value) for name, _, value in pairs}


def _ledger_row(
    run: str, one: NamedStrategy, config: Config, market: Market, window: Window, of: str = ""
) -> TrialRecord:
    first, last = (int(market.open_time[bar]) + market.interval for bar in (window.start, window.stop))
    digest = digest_of_trial(one, config, window.decide_every, 0)
    return TrialRecord(run, of + one.name, market.content_hash, first, last, digest, int(time.time() * 1000))
