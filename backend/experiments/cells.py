"""One cell of an experiment: an arm with one seed, trained where it is, and played through the windows of
the test part."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from backend.builders.loaded_team import LoadedTeam, scripted_team
from backend.builders.market import Account, account_of, limits_of, load_market, split, thinking_time_of
from backend.builders.spans import spans_trained_on
from backend.builders.strategies import NamedStrategy
from backend.config.schema import Config
from backend.evaluation.compare import play_windows
from backend.evaluation.trials import digest_of_trial, overlaps
from backend.experiments.measures import STATES_MEASURE, value_of_arm
from backend.experiments.plan import TEACHER, TRAINED_HERE, UNTRAINED, ArmPlan, ExperimentFile
from backend.models.manifest import MANIFEST, team_folder
from backend.runs.backtest import subject_of
from backend.store.run_record import recorded_run
from backend.store.store import Store
from cryptosentinel.episode import EpisodeResult
from cryptosentinel.team import derive_seed
from simulator.arrays import FloatArray
from simulator.backtest.run import BacktestResult, Strategy, Window, run_backtest
from simulator.errors import UserError
from simulator.market.market import Market
from simulator.market.timeframes import format_time, parse_time
from simulator.strategies import MatchedRandom

Report = Callable[[str, int, int], None]
_FIGURES = ("total_return", "sharpe", "max_drawdown", "turnover")
_SIZES = 101  # quantiles of the sizes that a team held, from which the matched random trader draws


@dataclass(frozen=True)
class Cell:
    """Which cell it is. Its name is that of its file."""

    arm: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.arm}-{self.seed}"


def experiment_cells(experiment: ExperimentFile) -> list[Cell]:
    """All cells of an experiment, those first that others need."""
    plan = experiment.plan
    arms = sorted(plan.arms, key=lambda arm: bool(arm.like))
    return [Cell(arm.name, seed) for arm in arms for seed in experiment.seeds]


def base_name(experiment: ExperimentFile, cell: Cell) -> str | None:
    """The name of the warm start that the cell's arm begins with, None where it needs none. Arms that begin alike share
    it: by all that decides it."""
    arm = experiment.plan.arm(cell.arm)
    config = experiment.settings(arm, cell.seed)
    if arm.team not in (TRAINED_HERE, UNTRAINED) or config.training.base_model or config.training.start_from:
        return None
    return _warm_start_name(config, experiment.plan.windows.model_dump())


def _warm_start_name(config: Config, *more: object) -> str:
    """A name for the warm start of a training with `config`, the same for all that begin alike: by all that decides
    it. `more` is what decides it besides."""
    settings = config.to_dict()
    parts = {name: settings[name] for name in ("market", "nano", "team", "costs")}
    del parts["team"]["veto"]  # it changes no conversation
    return hashlib.sha256(json.dumps([parts, *more], sort_keys=True).encode()).hexdigest()[:16]


def cell_market(experiment: ExperimentFile, cell: Cell) -> Market:
    """The market of a cell, whole. Raises `DataError`."""
    config = experiment.settings(experiment.plan.arm(cell.arm), cell.seed)
    return load_market(config.market, config.costs)


def make_base(experiment: ExperimentFile, cell: Cell, folder: Path, report: Report) -> Path:
    """The warm start of a cell in `folder`, made unless it is there."""
    from backend.training.start import begin  # it imports torch

    config, market = _settled(experiment, cell)
    folder.mkdir(parents=True, exist_ok=True)
    return begin(config, market, folder, report)


def run_cell(
    experiment: ExperimentFile, cell: Cell, folder: Path, base: Path | None, like: dict[str, Any] | None, report: Report
) -> dict[str, Any]:
    """Run a cell; what a training needs lies in `folder`, and a killed one continues from there.

    `base` is its warm start, `like` the document of the cell whose extent and rhythm it copies.
    """
    began = time.monotonic()
    arm = experiment.plan.arm(cell.arm)
    config, market = _settled(experiment, cell)
    windows = _windows(config, market)
    account = account_of(config, market)
    _check_unseen(arm, config, market, windows)
    training: dict[str, Any] | None = None
    subject: LoadedTeam | NamedStrategy
    if arm.team in (TRAINED_HERE, UNTRAINED):
        subject, training = _team_made_here(arm, config, market, folder, base, cell, report)
    elif like is not None:
        subject = _matched(like["style"], cell)
    elif arm.team == TEACHER:
        subject = scripted_team(config.team, config.nano.teacher).renamed(TEACHER)
    else:
        subject = subject_of(arm.team, config)
    if isinstance(subject, LoadedTeam):
        if arm.greedy:
            subject = subject.at_temperature(0.0)
        episodes = play_windows(
            subject, market, windows, account, limits_of(config.guard), config.evaluation_seed, report,
            thinking_time_of(config),
        )  # fmt: skip
        results = [episode.result for episode in episodes]
    else:
        episodes = []
        results = [_play(subject.make(), market, window, account) for window in windows]
    held_out: dict[str, Any] | None = None
    if experiment.plan.test.measure == STATES_MEASURE:
        held_out = value_of_arm(subject, experiment.shared_settings(cell.seed), market, report)
    return {
        "cell": cell.name,
        "data_hash": market.content_hash,
        "windows": [_figures(result, place, episodes) for place, result in enumerate(results)],
        "style": _style(results),
        "digest": digest_of_trial(subject, config, windows[0].decide_every, cell.seed),
        "training": training,
        "held_out": held_out,
        "seconds": time.monotonic() - began,
    }


def check_arms(experiment: ExperimentFile) -> None:
    """Raise `UserError` where an arm cannot be trained as it is set, and where it is a team that was trained on windows
    of the experiment."""
    for cell in experiment_cells(experiment):
        arm = experiment.plan.arm(cell.arm)
        if cell.seed != experiment.seeds[0]:
            continue
        if arm.team == TRAINED_HERE:
            from backend.training.rl_job import check_trainable  # it imports torch

            try:
                check_trainable(experiment.settings(arm, cell.seed))
            except UserError as error:
                raise UserError(f"arm '{arm.name}' cannot be trained: {error}") from error
        elif (team_folder(arm.team) / MANIFEST).is_file():
            config, market = _settled(experiment, cell)
            _check_unseen(arm, config, market, _windows(config, market))


def _check_unseen(arm: ArmPlan, config: Config, market: Market, windows: Sequence[Window]) -> None:
    """Raise `UserError` where the arm is a team that was trained on the windows; see `overlaps`."""
    bars = (min(one.start for one in windows), max(one.stop for one in windows))
    first, last = (int(market.open_time[bar]) + market.interval for bar in bars)
    for sentence in overlaps([arm.team], config, market, first, last, allowed=True).values():
        raise UserError(f"arm '{arm.name}': {sentence}: take later windows, or another team")


def _settled(experiment: ExperimentFile, cell: Cell) -> tuple[Config, Market]:
    """The configuration of a cell, whose shares are those of the plan's days where it has any, and its market. Raises
    `UserError` for days that the market does not have."""
    config = experiment.settings(experiment.plan.arm(cell.arm), cell.seed)
    market, windows = cell_market(experiment, cell), experiment.plan.windows
    if not windows.test_from:
        return config, market
    first, second = (_bar_at(market, day) for day in (windows.validation_from, windows.test_from))
    if min(first, second - first) <= config.team.horizon_bars:
        raise UserError(
            f"the training or validation part has at most {min(first, second - first)} bars, and a horizon of "
            f"{config.team.horizon_bars} must be left behind it: choose other days, or more bars"
        )
    # Half a bar more, so that the shares give these very bars again.
    shares = ((first + 0.5) / len(market), (second - first) / len(market))
    return config.model_copy(update={"market": config.market.model_copy(update={"shares": shares})}), market


def _bar_at(market: Market, day: str) -> int:
    """The first bar that opens on a day or later. Raises `UserError` where it is not inside the market."""
    bar = int(np.searchsorted(market.open_time, parse_time(day)))
    if not 0 < bar < len(market):
        first, last = (format_time(int(market.open_time[place]))[:10] for place in (0, -1))
        raise UserError(f"{day} is not inside the market, whose bars are from {first} to {last}")
    return bar


def _windows(config: Config, market: Market) -> list[Window]:
    from backend.evaluation.compare import split_windows

    evaluation = config.evaluation
    held_out = split(market, config.market, config.team.horizon_bars).held_out
    return split_windows(*held_out, evaluation.windows, evaluation.decisions_per_window, config.team.decide_every or 1)


def _play(strategy: Strategy, market: Market, window: Window, account: Account) -> BacktestResult:
    return run_backtest(market, strategy, window, **account.terms)


def _team_made_here(
    arm: ArmPlan, config: Config, market: Market, folder: Path, base: Path | None, cell: Cell, report: Report
) -> tuple[LoadedTeam, dict[str, Any]]:
    """The team of an arm that the experiment trains, or its warm start; and what the training took."""
    if arm.team != UNTRAINED:
        return _train_here(config, market, folder, base, cell.arm, report)
    if base is not None:
        config = _over(config, base)
    folder.mkdir(parents=True, exist_ok=True)
    return _warm_start(config, market, folder, base), {"steps": 0, "best_step": None, "tokens": 0}


def _train_here(
    config: Config, market: Market, folder: Path, base: Path | None, name: str, report: Report
) -> tuple[LoadedTeam, dict[str, Any]]:
    """A team called `name` that is trained in `folder` from the warm start `base`, or continues there; and what the
    training took."""
    from backend.builders.teams import load_team  # they import torch
    from backend.training.rl_job import run_rl

    if base is not None:
        config = _over(config, base)
    folder.mkdir(parents=True, exist_ok=True)

    def stepped(progress: Any) -> None:
        report("M-GRPO", progress.step, progress.total)

    records, run = folder / "store", f"cell-{folder.name}"
    with (
        Store.open(str(records)) as store,
        recorded_run(store, run, "train", config.training.seed, market.content_hash, config, resumes=True),
    ):
        state = run_rl(config, market, store, run, folder, report, stepped).state
    team = load_team(str(folder), config.team, base=config.training.base_model).renamed(name)
    shutil.rmtree(records, ignore_errors=True)  # the metrics stay in the folder, and the weights
    return team, {"steps": state.step, "best_step": state.best_step, "tokens": state.tokens}


def _over(config: Config, base: Path) -> Config:
    """The configuration of a training over a warm start."""
    training = config.training.model_copy(update={"base_model": str(base.resolve())})
    return config.model_copy(update={"training": training})


def _warm_start(config: Config, market: Market, folder: Path, base: Path | None) -> LoadedTeam:
    from backend.builders.teams import load_team
    from backend.models.manifest import TeamManifest, write_manifest

    named = str(base.resolve()) if base is not None else config.training.base_model
    trained_on = spans_trained_on(config, market)
    write_manifest(folder, TeamManifest.of(config, base=named, adapters=None, trained_on=trained_on))
    return load_team(str(folder), config.team, base=named).renamed(UNTRAINED)


def _matched(style: dict[str, Any], cell: Cell) -> NamedStrategy:
    sizes: FloatArray = np.asarray(style["sizes"], np.float64)
    number = iter(range(1_000_000))

    def make() -> Strategy:
        seed = derive_seed(cell.seed, "random", 0, next(number))
        return MatchedRandom(sizes, style["long_share"], style["changes"], seed)

    return NamedStrategy(f"{MatchedRandom.name} like {cell.name}", make)


def _style(results: Sequence[BacktestResult]) -> dict[str, Any]:
    """Extent and rhythm of an arm, from which `MatchedRandom` is made."""
    twin = MatchedRandom.matched_to(results, 0)
    changes = sum(len({(fill.bar, fill.symbol) for fill in result.fills}) for result in results)
    chances = sum(result.decisions * len(result.symbols) for result in results)
    return {
        "sizes": np.quantile(twin.sizes, np.linspace(0.0, 1.0, _SIZES)).round(6).tolist(),
        "long_share": twin.long_share,
        "changes": changes / chances,
    }


def _figures(result: BacktestResult, place: int, episodes: Sequence[EpisodeResult]) -> dict[str, Any]:
    """What is kept of one window."""
    row: dict[str, Any] = {"start": int(result.times[0]), "stop": int(result.times[-1])}
    row |= {name: float(result.metrics[name]) for name in _FIGURES}
    row["costs"] = float(sum(result.costs.values()) / result.equity[0])
    if episodes:
        row["calls"] = float(np.mean([len(decision.transcripts) - 1 for _, decision in episodes[place].decisions]))
    return row
