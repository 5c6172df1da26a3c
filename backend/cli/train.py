"""`cryptosentinel train`: a training in this process or in several, its resume, and what it would take.

`cryptosentinel sft`: each role learns from the best conversations of a team, and is scored before and after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from backend.cli.console import console, narrow_table, print_notes
from backend.cli.options import MarketOptions, RecordOptions, SetOption, TrainingConfigOption, grouped
from backend.cli.parts.places import StoreOption
from backend.cli.parts.progress import bars
from backend.cli.settings import print_config
from backend.runs.requests import RUNS, STORE, Observer, RunStart, SftRequest, TrainRequest
from simulator.errors import UserError

if TYPE_CHECKING:  # they import torch and the database
    from backend.config.schema import Config
    from backend.runs.outcomes import SftOutcome
    from backend.store.store import Store
    from backend.training.checkpoints import TrainingState
    from simulator.market.market import Market


class Launch(StrEnum):
    """How a training runs: in this process and its helpers, or as actors on Ray."""

    LOCAL = "local"
    RAY = "ray"


@dataclass(frozen=True)
class OnRay:
    """A training by rollout workers and a trainer for each role, which are actors on the Ray cluster at `address`. See
    `backend.runs.train.TrainingProcess`."""

    store: str
    workers: int
    files: str
    asked_address: str

    @property
    def resume_options(self) -> str:
        """Options that `train --resume RUN` needs besides."""
        given = (("--files", self.files), ("--ray-address", self.asked_address))
        return f" --launch ray --workers {self.workers}" + "".join(f" {name} {text}" for name, text in given if text)

    def fit(self, config: Config) -> tuple[Config, str | None]:
        """See `TrainingProcess`: as many shards as workers."""
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


@grouped
def train(
    market: MarketOptions,
    recorded: RecordOptions,
    config: TrainingConfigOption = "",
    set_: SetOption = None,
    resume: Annotated[
        str, typer.Option("--resume", help="Id of a run to go on with; its own configuration is used.")
    ] = "",
    from_paper: Annotated[
        str,
        typer.Option(
            "--from-paper",
            help="Id of a paper session that ended: its bars, costs and states are the data of this run.",
        ),
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the settings and the memory that they take, and stop.")
    ] = False,
    launch: Annotated[
        Launch,
        typer.Option(
            "--launch",
            help="local: this process and helpers. ray: rollout workers and a trainer for each role as actors on Ray.",
        ),
    ] = Launch.LOCAL,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Rollout workers of --launch ray.")] = 1,
    files: Annotated[
        str,
        typer.Option(
            "--files",
            help="With --launch ray, where machines share no folder: an fsspec URL for the run's files, as s3://B/runs.",
        ),
    ] = "",
    ray_address: Annotated[
        str,
        typer.Option(
            "--ray-address",
            help="HOST:PORT of a Ray cluster that this machine has joined, or auto; default: RAY_ADDRESS, else one of "
            "its own on this machine, for as long as the run lasts.",
        ),
    ] = "",
) -> None:
    """Train a team with M-GRPO. Ctrl-C is safe: go on with --resume."""
    request = TrainRequest(config=config, overrides=tuple(set_ or ()), resume=resume, **market.given())
    if from_paper:
        request = request_from_paper(from_paper, request, recorded)
    if dry_run:
        show_dry_run(request.settings())
        return
    process = OnRay(recorded.store, workers, files, ray_address) if launch is Launch.RAY else None
    if process is None and (files or ray_address):
        raise UserError("--files and --ray-address are for --launch ray: add that, or leave them out")
    if not resume:
        request.check()
    from backend.runs.train import train_team

    def announce(start: RunStart) -> None:
        print_notes(start.notes)
        console.print(
            f"run {start.run} in {start.folder}; stop with Ctrl-C and continue with: cryptosentinel train --resume "
            f"{start.run}{process.resume_options if process else ''}"
        )

    with bars(announce) as shown:
        outcome = train_team(request, recorded.store, recorded.runs, shown, process)
    state, folder = outcome.state, outcome.folder
    console.print(f"done: {state.step} steps, best at step {state.best_step} (validation outcome {state.best_score})")
    console.print(f"the team is in {folder}; try: cryptosentinel evaluate {folder}")


def request_from_paper(session: str, request: TrainRequest, recorded: RecordOptions) -> TrainRequest:
    """`request` on the data of a session in the store. Raises `UserError` as `train_request_of` does."""
    from backend.paper.training_data import train_request_of
    from backend.store.run_record import store_at

    with store_at(recorded.store) as store:
        return train_request_of(session, request, store, recorded.runs)


def show_dry_run(config: Config) -> None:
    """Print the settings and the memory that a training with them takes. Raises `UserError` for a base of unknown
    architecture, and, with settings that take less, where the memory of this machine is too small."""
    print_config(config)
    from backend.models.architectures import architecture_of
    from backend.models.shape import Shape
    from backend.policies.hardware import hardware_of, machine_memory
    from backend.training.memory_estimate import estimate, gib, plan_of, require

    shape = Shape.of(architecture_of(config.training, config.nano))
    hardware = hardware_of(config.training)
    base = config.training.base_model or "nano"
    console.print(f"{base}: {shape.parameters / 1e9:.3g} billion parameters, {shape.layers} blocks")
    table = narrow_table(f"memory of the trainer, estimated ({hardware.device}, {hardware.precision})")
    table.add_column("when")
    table.add_column("takes", justify="right", no_wrap=True)
    for need in sorted(estimate(shape, plan_of(config, shape, hardware.kind)).needs, key=lambda one: -one.size):
        table.add_row(need.part, need.phase, gib(need.size))
    console.print(table)
    console.print(require(config, shape, hardware.kind, machine_memory(hardware.device)))


@grouped
def sft(
    market: MarketOptions,
    config: TrainingConfigOption = "",
    set_: SetOption = None,
    from_: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            help="Whose conversations are learned: 'scripted', 'warm_start' (the base itself), the folder of a trained "
            "team, or that of a data set. Repeatable; the best of what teams said is kept, and all of a data set.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of the run, which becomes a team.")] = RUNS / "sft",
    store: StoreOption = STORE,
) -> None:
    """Fine-tune each role: collect conversations, learn the best of them, score that on held-out states.

    Ctrl-C is safe: the same command goes on.
    """
    request = SftRequest(
        config=config,
        overrides=tuple(set_ or ()),
        sources=tuple(from_ or ("scripted",)),
        folder=out,
        **market.given(),
    )
    request.check()
    from backend.runs.train import fine_tune_roles

    with bars() as shown:
        outcome = fine_tune_roles(request, shown, store)
    console.print(_data_table(outcome))
    for role in outcome.counts:
        why = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in outcome.dropped(role).items())
        console.print(f"{role}: dropped {why or 'none'}")
        if not outcome.counts[role]["train"]:
            console.print(f"note: {role} has nothing to learn from, so that it answers as the base does")
    console.print(_score_table(outcome.scores))
    for role, losses in outcome.losses.items():
        if losses is not None:
            console.print(
                f"{role}: imitation loss on validation states {losses[0]:.3f} -> {losses[1]:.3f} nats a token"
            )
    console.print(f"the team is in {out}; try: cryptosentinel evaluate {out}", soft_wrap=True)


def _data_table(outcome: SftOutcome) -> Table:
    """What was collected and kept, by role."""
    table = narrow_table("Conversations")
    for heading in ("collected", "dropped", "kept", "train", "validation"):
        table.add_column(heading, justify="right", no_wrap=True)
    for role in outcome.counts:
        table.add_row(role, *(str(number) for number in outcome.conversations(role).values()))
    return table


def _score_table(scores: Mapping[str, Mapping[str, Any]]) -> Table:
    """The roles' scores before and after."""
    states = max(score["states"] for score in scores.values())
    table = narrow_table(f"held-out score of each role: means over up to {states} states")
    for heading in ("before", "after", "diff", "95 % interval", "scripted", "valid"):
        table.add_column(heading, justify="right", no_wrap=True)
    for role, score in scores.items():
        difference = score["difference"]
        low, high = (None, None) if difference is None else difference["ci95"]
        table.add_row(
            role,
            _number(score["before"]),
            _number(score["after"]),
            "-" if difference is None else f"{difference['mean']:+.3f}",
            "-" if low is None or high is None else f"{low:+.3f} to {high:+.3f}",
            _number(score["reference"]),
            f"{score['valid_before']:.0%}-{score['valid_after']:.0%}",
        )
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
