"""The Python API: a command of the program as a function, for notebooks and scripts. `docs/guides/python.md` shows it.

    import cryptosentinel as cs
    result = cs.backtest(teams=["scripted", "ema_cross"], data="sample", start="2021-06-01")
    result.frame()

Every function raises `UserError` for what cannot be met, with what is wrong and what to do; then nothing is recorded.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

import pandas as pd

from backend.builders.sources import kept_bars
from backend.builders.strategies import NamedStrategy, given_strategy
from backend.config.base import suggestion
from backend.config.schema import Config
from backend.errors import names_missing_extras
from backend.evaluation.paired_runs import compared_result, results_within
from backend.reporting.comparison import ComparisonOutcome, compare_results
from backend.runs.backtest import backtest_teams
from backend.runs.optimize import Constraint, OptimizeOutcome, optimize_strategy
from backend.runs.outcomes import BacktestOutcome, EvaluationOutcome, SftOutcome, TrainOutcome
from backend.runs.requests import (
    RUNS,
    STORE,
    BacktestRequest,
    EvaluateRequest,
    MarketRequest,
    Observer,
    RunRequest,
    SftRequest,
    TrainRequest,
    options_of,
)
from backend.store.run_record import store_at
from backend.store.store import Store
from simulator.backtest.run import Strategy
from simulator.errors import UserError
from simulator.market.market import Market

NameList = str | Sequence[str]  # one name, several with commas, or a list of them
Tested = str | Path | Strategy | type | Callable[..., Any]  # names, or the code of a strategy
_Request = TypeVar("_Request", bound=RunRequest)
_P = ParamSpec("_P")
_R = TypeVar("_R")
Bars = str | Path | Market | pd.DataFrame | Mapping[str, pd.DataFrame]
OnProgress = Callable[[str, int, int], None]  # what is done, how many parts of it, of how many


def with_options_of(kind: type[RunRequest]) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """A function whose help shows the options of the request `kind` in place of `**options`."""

    def shown(function: Callable[_P, _R]) -> Callable[_P, _R]:
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        more = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
            for name, default, _ in options_of(kind)
            if name not in signature.parameters
        ]
        vars(function)["__signature__"] = signature.replace(parameters=[*own, *more])
        return function

    return shown


@names_missing_extras
@with_options_of(BacktestRequest)
def backtest(
    teams: Tested | Sequence[Tested] = "scripted",
    *,
    data: Bars = "",
    store: Store | str | Path = STORE,
    runs: str | Path = RUNS,
    on_progress: OnProgress | None = None,
    **options: Any,
) -> BacktestOutcome:
    """Backtest teams and strategies beside the baselines. `options` are those of the command `backtest`, such as
    `symbols` and `start`: the fields of `BacktestRequest`. Dates may be texts, dates or timestamps.

    `teams` are names; a strategy of your own may also be its class, an object of it, or a function `decide(view)`.
    `data` is a folder of bars, a CSV file, a pandas table with an index of open times and the columns open, high, low,
    close and volume, several by symbol, or a `Market`. The bars are kept in a folder below `runs`, so that the run can
    be repeated. An empty `baselines` means no baseline; left out, the configuration decides. `lookahead` of the
    outcome has the verdict on each strategy of your own; look at it before the numbers.
    """
    names, own = _names_and_own([teams] if isinstance(teams, str) or not isinstance(teams, Sequence) else teams)
    if not names and not options.get("like"):
        raise UserError("no team is named: give at least one, such as 'scripted'")
    request = _backtest_request(names, data, runs, options)
    return backtest_teams(request, store, Path(runs), _Callback(on_progress), own)


@names_missing_extras
def optimize(
    strategy: str | type | Callable[..., Any],
    *,
    constraint: Constraint | None = None,
    data: Bars = "",
    store: Store | str | Path = STORE,
    runs: str | Path = RUNS,
    on_progress: OnProgress | None = None,
    options: Mapping[str, Any] = MappingProxyType({}),
    **ranges: Sequence[Any],
) -> OptimizeOutcome:
    """Backtest a strategy with each combination of the values in `ranges`, as `fast=range(5, 30, 5)`, and the best of
    them as `backtest` does. The names are arguments of the class, or attributes of it. `constraint` gets a combination
    and accepts it: `lambda p: p.fast < p.slow`. `options` are those of `backtest`, such as `{"start": "2021-01-01"}`.

    The outcome has the best combination, a table of all, and the probability of overfitting."""
    request = _backtest_request((), data, runs, options)
    return optimize_strategy(strategy, ranges, constraint, request, store, Path(runs), _Callback(on_progress))


def compare(
    *results: BacktestOutcome | str, team: str = "", seed: int = 0, store: Store | str | Path = STORE
) -> ComparisonOutcome:
    """Compare backtests bar by bar, each with the first, as the command `runs compare`.

    `results` are backtests, or the ids of those in `store`. Of a single one those that were tested in it are compared
    with its first; of several the first of each, or `team`. Only what traded the same bars at the same costs can be
    compared. `seed` is that of the bootstrap.
    """
    if len(results) == 1 and not team:
        [result] = results
        if isinstance(result, BacktestOutcome):
            return compare_results(result.compared(), seed)
        with store_at(store) as opened:
            return compare_results(results_within(opened, result), seed)
    compared = []
    for result in results:
        if isinstance(result, str):
            with store_at(store) as opened:
                compared.append(compared_result(opened, result, team))
        else:
            compared.append(result.compared(team)[0])
    return compare_results(compared, seed)


@names_missing_extras
@with_options_of(TrainRequest)
def train(
    config: Config | str = "",
    *,
    from_paper: str = "",
    store: Store | str | Path = STORE,
    runs: str | Path = RUNS,
    on_progress: OnProgress | None = None,
    **options: Any,
) -> TrainOutcome:
    """Train a team with M-GRPO in this process. `options` are those of the command `train`: the fields of
    `TrainRequest`.

    An empty `config` is the preset `demo`, or `recorded_training` where `data` or `from_paper` is given.

    After an interruption, `resume` with the id of the run continues. `from_paper` is the id of a paper session that
    ended: its bars, costs and states are the data.
    """
    request = _request(TrainRequest, {"config": config, **options})
    from backend.runs.train import train_team  # it imports torch

    if from_paper:
        from backend.paper.training_data import train_request_of

        with store_at(store) as opened:
            request = train_request_of(from_paper, request, opened, Path(runs))
    return train_team(request, store, Path(runs), _Callback(on_progress))


@names_missing_extras
@with_options_of(EvaluateRequest)
def evaluate(
    folder: str | Path,
    *,
    store: Store | str | Path = STORE,
    runs: str | Path = RUNS,
    on_progress: OnProgress | None = None,
    **options: Any,
) -> EvaluationOutcome:
    """Measure the trained team in `folder` against its initial team on held-out windows. `options` are those of the
    command `evaluate`: the fields of `EvaluateRequest`."""
    from backend.runs.evaluation import evaluate_team  # it imports torch

    request = _request(EvaluateRequest, {"folder": folder, **options})
    return evaluate_team(request, store, Path(runs), _Callback(on_progress))


@names_missing_extras
@with_options_of(SftRequest)
def sft(
    sources: NameList = "scripted",
    *,
    store: Store | str | Path = STORE,
    on_progress: OnProgress | None = None,
    **options: Any,
) -> SftOutcome:
    """Fine-tune each role on the best conversations of the teams in `sources`. `options` are those of the command
    `sft`: the fields of `SftRequest`.

    `folder` becomes a team. The same call continues after an interruption.
    """
    from backend.runs.train import fine_tune_roles  # it imports torch

    request = _request(SftRequest, {"sources": sources, **options})
    return fine_tune_roles(request, _Callback(on_progress), store)


@names_missing_extras
@with_options_of(RunRequest)
def demo(
    config: Config | str = "demo",
    *,
    store: Store | str | Path = STORE,
    runs: str | Path = RUNS,
    on_progress: OnProgress | None = None,
    **options: Any,
) -> EvaluationOutcome:
    """Make a market, train a team in it, and measure what that changed, as the command `demo`. It takes minutes."""
    from backend.runs.demo import run_demo  # it imports torch

    return run_demo(_request(RunRequest, {"config": config, **options}), store, Path(runs), _Callback(on_progress))


def _names_and_own(tested: Sequence[Tested]) -> tuple[list[str], dict[str, NamedStrategy]]:
    """The names of all that is tested, and by their names the strategies that are not names. Raises `UserError` for two
    of one name."""
    names: list[str] = []
    own: dict[str, NamedStrategy] = {}
    for one in tested:
        if isinstance(one, str | Path):
            names.append(str(one))
            continue
        strategy = given_strategy(one)
        if strategy.name in own:
            raise UserError(f"two strategies are called {strategy.name}: give each its own name")
        own[strategy.name] = strategy
        names.append(strategy.name)
    return names, own


def _backtest_request(
    names: Sequence[str], data: Bars, runs: str | Path, options: Mapping[str, Any]
) -> BacktestRequest:
    """The request of names, bars and options as `backtest` takes them."""
    given = dict(options)
    if not isinstance(data, str | Path):
        market = data if isinstance(data, Market) else Market.from_frame(data)
        given["timeframe"] = market.timeframe
        data = kept_bars(market, Path(runs))
    given |= {name: day.isoformat() for name in ("start", "end") if isinstance(day := options.get(name), date)}
    return _request(BacktestRequest, {"teams": names, "data": data, **given}, runs)


def _request(kind: type[_Request], given: dict[str, Any], runs: str | Path = RUNS) -> _Request:
    """The request of a call. Raises `UserError` for an option that it does not have."""
    known = [name for name, _, _ in options_of(kind)]
    for name in given:
        if name not in known:
            raise UserError(f"there is no option '{name}'{suggestion(name, known)}: choose of {', '.join(known)}")
    request = kind.of(**given)
    return request.imported(Path(runs))[0] if isinstance(request, MarketRequest) else request


class _Callback(Observer):
    """Passes progress on to a function, if there is one."""

    def __init__(self, on_progress: OnProgress | None) -> None:
        self._on_progress = on_progress

    def progress(self, what: str, done: int, total: int) -> None:
        if self._on_progress is not None:
            self._on_progress(what, done, total)
