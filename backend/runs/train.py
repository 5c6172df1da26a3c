"""The use cases that train: `train`, M-GRPO in this process or on Ray, and `sft`, supervised fine-tuning."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from backend.builders.market import account_of, load_market, split, unknown_to_training
from backend.builders.parts import part_notes
from backend.config.schema import Config
from backend.policies.hardware import describe_hardware, hardware_change
from backend.processes import started
from backend.reporting.run_summary import summarise
from backend.runs.outcomes import SftOutcome, TrainOutcome
from backend.runs.requests import RUNS, SILENT, STORE, Observer, RunStart, SftRequest, TrainRequest
from backend.store.records import EvaluationRecord
from backend.store.run_record import new_run_id, own_config, recorded_run, store_at
from backend.store.store import Store
from backend.training import rl_job
from backend.training.checkpoints import TrainingState
from backend.training.sft_job import SCORES, run_sft
from backend.training.start import require_start
from simulator.errors import Interrupted, UserError
from simulator.folders import check_links
from simulator.market.market import Market

SFT = "sft"  # the kind of such a run, and the name of what it came to


class TrainingProcess(Protocol):
    """How a training runs. `ThisProcess` is the way in this process; `backend.cli.train.OnRay` another."""

    @property
    def resume_options(self) -> str:
        """Options that `train --resume RUN` needs besides, each with a space before it."""

    def fit(self, config: Config) -> tuple[Config, str | None]:
        """The configuration as a new run in this way has it, and a note on what is another for that."""

    def check(self, config: Config) -> None:
        """Raise `UserError` for a configuration that cannot be trained in this way."""

    def check_resumed(self, folder: Path) -> None:
        """Raise `UserError` for a run that was begun in another way: each keeps its state in other files."""

    def train(
        self, config: Config, market: Market, store: Store, run: str, folder: Path, observer: Observer
    ) -> TrainingState:
        """Train, going on from the newest checkpoint in `folder` if there is one. Raises `RunFailed`."""


class ThisProcess:
    """A training in this process, and in helpers that keep nothing (`backend.processes`)."""

    resume_options = ""

    def fit(self, config: Config) -> tuple[Config, str | None]:
        """See `TrainingProcess`."""
        return config, None

    def check(self, config: Config) -> None:
        """See `TrainingProcess`."""
        rl_job.check_training(config)

    def check_resumed(self, folder: Path) -> None:
        """See `TrainingProcess`."""
        if (folder / "services").exists():
            raise UserError(f"the run in {folder} was trained on Ray: continue it with --launch ray")

    def train(
        self, config: Config, market: Market, store: Store, run: str, folder: Path, observer: Observer
    ) -> TrainingState:
        """See `TrainingProcess`."""
        with started(rl_job.processes_for(config)) as workers:
            return rl_job.run_rl(config, market, store, run, folder, observer.progress, observer.trained, workers).state


def train_team(
    request: TrainRequest,
    store: Store | str | Path = STORE,
    runs: Path = RUNS,
    observer: Observer = SILENT,
    process: TrainingProcess | None = None,
) -> TrainOutcome:
    """Train a team, record the run in `store`, and leave the team in the run's folder below `runs`.

    Raises `UserError` for a request that cannot be met; then nothing is recorded. Raises `RunFailed` where the training
    cannot go on, and `Interrupted` after Ctrl-C; both can be resumed.
    """
    process = process or ThisProcess()
    settings = _settings(request, process)
    with store_at(store) as opened:
        prepared = _prepared(request, settings, opened, runs, observer, process)
        run, folder, config, market = prepared.run, prepared.folder, prepared.config, prepared.market
        with recorded_run(
            opened, run, "train", config.training.seed, market.content_hash, config, process.resume_options,
            resumes=bool(request.resume), **prepared.more,
        ):  # fmt: skip
            state = process.train(config, market, opened, run, folder, observer)
        summary = summarise(opened, run)
    return TrainOutcome(run, folder, config, state, summary)


@dataclass(frozen=True)
class _Prepared:
    """A training before its record is written; `more` is what the record holds besides the configuration."""

    run: str
    folder: Path
    config: Config
    market: Market
    more: dict[str, Any]


def _settings(request: TrainRequest, process: TrainingProcess) -> tuple[Config, list[str]]:
    """The configuration that was asked for, and notes on it. Raises `UserError` for one that cannot be trained so."""
    config, notes = request.settings(), []
    if not request.resume:
        config, note = process.fit(config)
        notes += [note] if note else []
        process.check(config)
    return config, notes


def _prepared(
    request: TrainRequest,
    settings: tuple[Config, list[str]],
    opened: Store,
    runs: Path,
    observer: Observer,
    process: TrainingProcess,
) -> _Prepared:
    """The run, its folder, its configuration and its market. Raises `UserError` for a request that cannot be met."""
    config, notes = settings
    run = request.resume or new_run_id("train")
    folder = runs / run
    if request.resume:
        config = _resumed(opened, request, folder, process, observer)
    market = load_market(config.market, config.costs)
    if request.resume and opened.run(run).data_hash != market.content_hash:
        raise UserError(
            f"run {run} was trained on other data (its hash differs from that of {market.source} now): resume "
            "with the same files, or start a new run"
        )
    former = opened.run(run).config.get("hardware", {}) if request.resume else {}
    account, hardware = account_of(config, market), describe_hardware(config.training, former)
    origin = dict(opened.run(run).config.get("origin", {}) if request.resume else request.origin)
    not_scored = unknown_to_training(account)
    if origin:
        notes.append(
            f"the data is what session {origin['session']} recorded: {origin['states']} states from "
            f"{origin['first']} to {origin['last']}"
        )
    if not_scored:
        notes.append(f"training does not score {', '.join(not_scored)}; `evaluate` and `backtest` do")
    if market.truth is None:  # of a generated market all parts are alike
        notes += part_notes(market, split(market, config.market, config.team.horizon_bars))
    other_hardware = hardware_change(former, hardware)
    if other_hardware:
        notes.append(other_hardware)
    observer.started(RunStart(run, folder, config, market, account, notes=tuple(notes)))
    folder.mkdir(parents=True, exist_ok=True)  # before the record, or a kill between leaves a run without a folder
    more = {"hardware": hardware, **({"origin": origin} if origin else {})}
    return _Prepared(run, folder, config, market, more)


def fine_tune_roles(request: SftRequest, observer: Observer = SILENT, store: Store | str | Path = STORE) -> SftOutcome:
    """Collect conversations, train each role on the best of them, score them on held-out states, and record that as a
    run in `store`.

    The same request goes on where it stopped. Raises `UserError` for a request that cannot be met, `RunFailed` where
    the training cannot go on, and `Interrupted` after Ctrl-C.
    """
    config, folder = request.settings(), request.folder
    require_start(config.training)
    market = load_market(config.market, config.costs)
    try:
        with store_at(store) as opened:
            about: dict[str, Any] = {"learned_from": list(request.sources), "folder": str(folder.resolve())}
            run, finished = _sft_run(opened, {"config": config.to_dict(), **about}, folder)
            with (
                nullcontext()
                if finished
                else recorded_run(opened, run, SFT, config.sft_seed, market.content_hash, config, resumes=True, **about)
            ):
                result = run_sft(config, market, request.sources, folder, observer.progress)
                counts = result.manifest["counts"]
                if not finished:
                    document = {"counts": counts, "scores": result.scores, "losses": result.losses}
                    opened.add_evaluation(EvaluationRecord(run, SFT, 0, document))
    except (KeyboardInterrupt, Interrupted):
        raise Interrupted(f"stopped; what is in {folder} is kept, and the same command goes on from here") from None
    return SftOutcome(folder, config, counts, result.scores, result.losses)


def _sft_run(store: Store, document: Mapping[str, Any], folder: Path) -> tuple[str, bool]:
    """The run that was begun in `folder` as `document` says, and whether it came to its end; a new one where there is
    none, or where the folder was emptied since."""
    scored = (folder / SCORES).is_file()
    for record in store.runs():
        finished = record.status == "finished"
        alike = record.kind == SFT and all(record.config.get(key) == value for key, value in document.items())
        if alike and finished <= scored:
            return record.run, finished
    return new_run_id(SFT), False


def _resumed(store: Store, request: TrainRequest, folder: Path, process: TrainingProcess, observer: Observer) -> Config:
    """The configuration of a run that goes on. Makes sure that no other program trains it. Raises `UserError`,
    also for an imported run."""
    run = request.resume
    record = store.run(run)
    if record.kind != "train":
        raise UserError(f"run {run} is no training run: `cryptosentinel runs` lists those that are")
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder, so nothing to go on from: give --runs as before")
    config = own_config(record)
    check_links(folder)
    process.check_resumed(folder)
    process.check(config)
    if record.status == "running":
        observer.message(f"run {run} is recorded as running; looking for up to a minute whether somebody is at it")
        store.claim(run)
    return config
