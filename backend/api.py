"""The Python API: a command of the program as a function, for notebooks and scripts. `docs/python.md` shows it.

    import cryptosentinel as cs
    result = cs.backtest(teams=["scripted", "ema_cross"], data="sample", start="2021-06-01")
    result.metrics

Every function raises `UserError` for what cannot be met, with what is wrong and what to do; then nothing is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from backend.builders.sources import bars_at, kept_bars
from backend.config.base import split_names
from backend.config.schema import Config
from backend.errors import names_missing_extras
from backend.evaluation.paired_runs import compared_result, results_within
from backend.reporting.comparison.paired import ComparisonOutcome, compare_results
from backend.runs.backtest import backtest_teams
from backend.runs.outcomes import BacktestOutcome, EvaluationOutcome, SftOutcome, TrainOutcome
from backend.runs.requests import (
    RUNS,
    STORE,
    BacktestRequest,
    EvaluateRequest,
    Observer,
    RunRequest,
    SftRequest,
    TrainRequest,
)
from backend.store.run_record import store_at
from backend.store.store import Store
from simulator.market.market import Market

NameList = str | Sequence[str]  # one name, several with commas, or a list of them
OnProgress = Callable[[str, int, int], None]  # what is done, how many parts of it, of how many


@names_missing_extras
def backtest(
    teams: NameList = "scripted",
    *,
    data: str | Path | Market | None = None,
    symbols: NameList = (),
    timeframe: str = "",
    resample: str = "",
    funding: str | Path | None = None,
    news: str | Path | None = None,
    start: str = "",
    end: str = "",
    decide_every: int = 0,
    finer: str = "",
    rules: str = "",
    baselines: NameList | None = None,
    seed: int = 1,
    unmasked: bool = False,
    record: str | Path | None = None,
    check_lookahead: bool = True,
    in_sample: bool = False,
    config: Config | str = "",
    overrides: Sequence[str] = (),
    store: Store | str | Path = STORE,
    runs: str | Path = RUNS,
    on_progress: OnProgress | None = None,
) -> BacktestOutcome:
    """Backtest teams and strategies beside the baselines. The arguments are the options of the command `backtest`.

    `data` may be a market, such as `Market.from_frame` makes of pandas tables; its bars are kept in a folder below
    `runs`, so that the run can be repeated. An empty `baselines` is none; left out, the configuration decides.
    `lookahead` of the outcome has the verdict on each strategy of your own; look at it before the numbers.
    """
    request = BacktestRequest(
        teams=_names(teams),
        data=kept_bars(data, Path(runs)) if isinstance(data, Market) else _folder(data, runs),
        symbols=_names(symbols),
        timeframe=data.timeframe if isinstance(data, Market) else timeframe,
        resample=resample,
        funding=funding,
        news=news,
        start=start,
        end=end,
        decide_every=decide_every,
        finer=finer,
        rules=rules,
        baselines=None if baselines is None else _names(baselines),
        seed=seed,
        unmasked=unmasked,
        record=None if record is None else Path(record),
        check_lookahead=check_lookahead,
        in_sample=in_sample,
        config=config,
        overrides=tuple(overrides),
    )
    return backtest_teams(request, store, Path(runs), _Callback(on_progress))


def _folder(data: str | Path | None, runs: str | Path) -> str | Path | None:
    """The folder of `data`; files of other programs are imported into one below `runs`."""
    return bars_at(data, Path(runs))[0] if data and Path(data).exists() else data


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
def train(
    config: Config | str = "",
    *,
    data: str | Path | None = None,
    symbols: NameList = (),
    timeframe: str = "",
    resample: str = "",
    funding: str | Path | None = None,
    news: str | Path | None = None,
    overrides: Sequence[str] = (),
    resume: str = "",
    from_paper: str = "",
    store: Store | str | Path = STORE,
    runs: str | Path = RUNS,
    on_progress: OnProgress | None = None,
) -> TrainOutcome:
    """Train a team with M-GRPO in this process. The arguments are the options of the command `train`.

    An empty `config` is the preset `demo`, or `recorded_training` where `data` or `from_paper` is given.

    After an interruption, `resume` with the id of the run goes on. `from_paper` is the id of a paper session that
    ended: its bars, costs and states are the data.
    """
    request = TrainRequest(
        config=config,
        data=_folder(data, RUNS),
        symbols=_names(symbols),
        timeframe=timeframe,
        resample=resample,
        funding=funding,
        news=news,
        overrides=tuple(overrides),
        resume=resume,
    )
    from backend.runs.train import train_team  # it imports torch

    if from_paper:
        from backend.paper.training_data import train_request_of

        with store_at(store) as opened:
            request = train_request_of(from_paper, request, opened, Path(runs))
    return train_team(request, store, Path(runs), _Callback(on_progress))


@names_missing_extras
def evaluate(
    folder: str | Path,
    *,
    data: str | Path | None = None,
    symbols: NameList = (),
    timeframe: str = "",
    resample: str = "",
    funding: str | Path | None = None,
    news: str | Path | None = None,
    baselines: NameList | None = None,
    gate: bool = False,
    in_sample: bool = False,
    config: Config | str = "",
    overrides: Sequence[str] = (),
    store: Store | str | Path = STORE,
    runs: str | Path = RUNS,
    on_progress: OnProgress | None = None,
) -> EvaluationOutcome:
    """Measure the trained team in `folder` against its warm start on held-out windows, as the command `evaluate`; with
    `gate`, judge it by the rules of the settings `gate` and record that."""
    from backend.runs.evaluation import evaluate_team  # it imports torch

    request = EvaluateRequest(
        folder=folder,
        data=_folder(data, RUNS),
        symbols=_names(symbols),
        timeframe=timeframe,
        resample=resample,
        funding=funding,
        news=news,
        baselines=None if baselines is None else _names(baselines),
        gate=gate,
        in_sample=in_sample,
        config=config,
        overrides=tuple(overrides),
    )
    return evaluate_team(request, store, Path(runs), _Callback(on_progress))


@names_missing_extras
def sft(
    sources: NameList = "scripted",
    *,
    folder: str | Path = RUNS / "sft",
    store: Store | str | Path = STORE,
    data: str | Path | None = None,
    symbols: NameList = (),
    timeframe: str = "",
    resample: str = "",
    funding: str | Path | None = None,
    news: str | Path | None = None,
    config: Config | str = "",
    overrides: Sequence[str] = (),
    on_progress: OnProgress | None = None,
) -> SftOutcome:
    """Fine-tune each role on the best conversations of the teams in `sources`, as the command `sft`.

    `folder` becomes a team. The same call goes on after an interruption.
    """
    from backend.runs.train import fine_tune_roles  # it imports torch

    request = SftRequest(
        sources=_names(sources),
        folder=Path(folder),
        data=_folder(data, RUNS),
        symbols=_names(symbols),
        timeframe=timeframe,
        resample=resample,
        funding=funding,
        news=news,
        config=config,
        overrides=tuple(overrides),
    )
    return fine_tune_roles(request, _Callback(on_progress), store)


@names_missing_extras
def demo(
    config: Config | str = "demo",
    *,
    overrides: Sequence[str] = (),
    store: Store | str | Path = STORE,
    runs: str | Path = RUNS,
    on_progress: OnProgress | None = None,
) -> EvaluationOutcome:
    """Make a market, train a team in it, and measure what that changed, as the command `demo`. It takes minutes."""
    from backend.runs.demo import run_demo  # it imports torch

    request = RunRequest(config=config, overrides=tuple(overrides))
    return run_demo(request, store, Path(runs), _Callback(on_progress))


class _Callback(Observer):
    """Passes progress on to a function, if there is one."""

    def __init__(self, on_progress: OnProgress | None) -> None:
        self._on_progress = on_progress

    def progress(self, what: str, done: int, total: int) -> None:
        if self._on_progress is not None:
            self._on_progress(what, done, total)


def _names(given: NameList) -> tuple[str, ...]:
    return split_names(given) if isinstance(given, str) else tuple(given)
