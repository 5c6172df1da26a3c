"""The use cases that train: `train`, M-GRPO in this process or on Ray, and `sft`, supervised fine-tuning."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.builders.market import Account, account_of, load_market, part_notes, split, unknown_to_training
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


class ThisProcess:
    """A training in this process, and in helpers that keep nothing (`backend.processes`). Another way, such as Ray,
    overrides the methods."""

    resume_options = ""  # that `train --resume RUN` needs besides, each with a space before it

    def fit(self, config: Config) -> tuple[Config, str | None]:
        """The configuration as a new run in this way has it, and a note on what is another for that."""
        return config, None

    def check(self, config: Config) -> None:
        """Raise `UserError` for a configuration that cannot be trained in this way."""
        rl_job.check_training(config)

    def check_resumed(self, folder: Path) -> None:
        """Raise `UserError` for a run that was begun in another way: each keeps its state in other files."""
        if (folder / "services").exists():
            raise UserError(f"the run in {folder} was trained on Ray: continue it with --launch ray")

    def train(
        self, config: Config, market: Market, store: Store, run: str, folder: Path, observer: Observer
    ) -> TrainingState:
        """Train, from the newest checkpoint in `folder` on if there is one. Raises `RunFailed`."""
        with started(rl_job.processes_for(config)) as workers:
            return rl_job.run_rl(config, market, store, run, folder, observer.progress, observer.trained, workers).state


@dataclass(frozen=True)
class OnRay(ThisProcess):
    """A training by rollout workers and a trainer for each role, which are actors on the Ray cluster at `address`."""

    store: str
    workers: int
    files: str
    asked_address: str

    @property
    def resume_options(self) -> str:  # type: ignore[override]  # it is only read
        """See `ThisProcess`."""
        given = (("--files", self.files), ("--ray-address", self.asked_address))
        return f" --launch ray --workers {self.workers}" + "".join(f" {name} {text}" for name, text in given if text)

    def fit(self, config: Config) -> tuple[Config, str | None]:
        """See `ThisProcess`: as many shards as workers."""
        from backend.distributed.driver import with_enough_shards

        return with_enough_shards(config, self.workers)

    def check(self, config: Config) -> None:
        """Raise `UserError` for a training that actors cannot share, or no cluster that they could use."""
        from backend.distributed.cluster import cluster_address
        from backend.distributed.driver import check_distributed
        from backend.distributed.files import check_files_url

        if self.store == "mem://":
            raise UserError("--store mem:// is in this process alone, and --launch ray has several: give a folder")
        check_files_url(self.files)
        cluster_address(self.asked_address, self.store)
        check_distributed(config)

    def check_resumed(self, folder: Path) -> None:
        """Raise `UserError` for a run that was begun in one process."""
        if (folder / "checkpoints").exists():
            raise UserError(f"the run in {folder} was trained in one process: continue it without --launch")

    def train(
        self, config: Config, market: Market, store: Store, run: str, folder: Path, observer: Observer
    ) -> TrainingState:
        """Train on the cluster. Raises `RunFailed`."""
        from backend.distributed.cluster import cluster, cluster_address
        from backend.distributed.driver import RayRequest, run_ray

        where = self.store if "://" in self.store else str(Path(self.store).absolute())
        request = RayRequest(where, self.workers, self.files)
        with cluster(cluster_address(self.asked_address, self.store)):
            return run_ray(config, market, store, run, folder, request, observer.progress, observer.trained)


def train_team(
    request: TrainRequest,
    store: Store | str | Path = STORE,
    runs: Path = RUNS,
    observer: Observer = SILENT,
    process: ThisProcess | None = None,
) -> TrainOutcome:
    """Train a team, record the run in `store`, and leave the team in the run's folder below `runs`.

    Raises `UserError` for a request that cannot be met; then nothing is recorded. Raises `RunFailed` where the training
    cannot continue, and `Interrupted` after Ctrl-C; both can be resumed.
    """
    process = process or ThisProcess()
    config, run = request.settings(), request.resume or new_run_id("train")
    folder, notes, former = runs / run, list[str](), dict[str, Any]()
    if not request.resume:
        config, note = process.fit(config)
        notes += [note] if note else []
        process.check(config)
    with store_at(store) as opened:
        if request.resume:
            config, former = _resumed(opened, request, folder, process, observer), opened.run(run).config
        market = load_market(config.market, config.costs)
        if request.resume and opened.run(run).data_hash != market.content_hash:
            raise UserError(
                f"run {run} was trained on other data (its hash differs from that of {market.source} now): resume "
                "with the same files, or start a new run"
            )
        hardware = describe_hardware(config.training, former.get("hardware", {}))
        origin = dict(former.get("origin", {}) if request.resume else request.origin)
        account = account_of(config, market)
        notes += _notes(config, market, account, origin)
        other_hardware = hardware_change(former.get("hardware", {}), hardware)
        notes += [other_hardware] if other_hardware else []
        observer.started(RunStart(run, folder, config, market, account, notes=tuple(notes)))
        folder.mkdir(parents=True, exist_ok=True)  # before the record, or a kill between leaves a run without a folder
        more = {"hardware": hardware, **({"origin": origin} if origin else {})}
        with recorded_run(
            opened, run, "train", config.training.seed, market.content_hash, config, process.resume_options,
            resumes=bool(request.resume), **more,
        ):  # fmt: skip
            state = process.train(config, market, opened, run, folder, observer)
        summary = summarise(opened, run)
    return TrainOutcome(run, folder, config, state, summary)


def _notes(config: Config, market: Market, account: Account, origin: Mapping[str, Any]) -> list[str]:
    """Where the data came from, what training does not score, and what lies in the parts of recorded bars."""
    notes = []
    if origin:
        notes.append(
            f"the data is what session {origin['session']} recorded: {origin['states']} states from "
            f"{origin['first']} to {origin['last']}"
        )
    not_scored = unknown_to_training(account)
    if not_scored:
        notes.append(f"training does not score {', '.join(not_scored)}; `evaluate` and `backtest` do")
    if market.truth is None:  # of a generated market all parts are alike
        notes += part_notes(market, split(market, config.market, config.team.horizon_bars))
    return notes


def fine_tune_roles(request: SftRequest, observer: Observer = SILENT, store: Store | str | Path = STORE) -> SftOutcome:
    """Collect conversations, train each role on the best of them, score them on held-out states, and record that as a
    run in `store`.

    The same request continues where it stopped. Raises `UserError` for a request that cannot be met, `RunFailed` where
    the training cannot continue, and `Interrupted` after Ctrl-C.
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
                    opened.put(EvaluationRecord(run, SFT, 0, document))
    except (KeyboardInterrupt, Interrupted):
        raise Interrupted(f"stopped; what is in {folder} is kept, and the same command continues from here") from None
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


def _resumed(store: Store, request: TrainRequest, folder: Path, process: ThisProcess, observer: Observer) -> Config:
    """The configuration of a run that continues. Makes sure that no other program trains it. Raises `UserError`,
    also for an imported run."""
    run = request.resume
    record = store.run(run)
    if record.kind != "train":
        raise UserError(f"run {run} is not a training run: `cryptosentinel runs` lists those that are")
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder, so nothing to continue from: give --runs as before")
    config = own_config(record)
    check_links(folder)
    process.check_resumed(folder)
    process.check(config)
    if record.status == "running":
        observer.message(f"run {run} is recorded as running; looking for up to a minute whether somebody is at it")
        store.claim(run)
    return config
