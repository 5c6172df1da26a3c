"""`cryptosentinel train`: a training in this process or in several, its resume, and what it would take.

`cryptosentinel sft`: each role learns from the best conversations of a team, and is scored before and after."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
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
from backend.config.ownership import digest_of
from backend.runs.requests import RUNS, STORE, Observer, RunStart, SftRequest, TrainRequest
from simulator.errors import UserError

if TYPE_CHECKING:  # they import torch and the database
    from backend.config.schema import Config
    from backend.runs.outcomes import SftOutcome
    from backend.store.store import Store
    from backend.training.checkpoints import TrainingState
    from simulator.market.market import Market


class Launch(StrEnum):
    """How the parts of a training are started."""

    PROCESSES = "processes"
    RAY = "ray"


@dataclass(frozen=True)
class SeveralProcesses:
    """A training by rollout workers and a trainer for each role: processes of this machine, or actors on the Ray
    cluster at the address `cluster`. All of them open the store at `store`. See `backend.runs.train.TrainingProcess`.
    """

    launch: Launch
    workers: int
    store: str
    runs: Path
    asked_address: str = ""
    cluster: str | None = None
    more_workers: int = 0

    @property
    def resume_options(self) -> str:
        """Options that `train --resume RUN` needs besides."""
        options = f" --launch {self.launch} --workers {self.workers}"
        options += f" --more-workers {self.more_workers}" if self.more_workers else ""
        return f"{options} --ray-address {self.asked_address}" if self.asked_address else options

    def fit(self, config: Config) -> tuple[Config, str | None]:
        """See `backend.runs.train.TrainingProcess`: as many shards as workers."""
        from backend.distributed.entrypoints import with_enough_shards

        return with_enough_shards(config, self.workers + self.more_workers)

    def check(self, config: Config) -> None:
        """Raise `ConfigError` for a training that cannot be divided among processes."""
        from backend.distributed.entrypoints import check_distributed

        check_distributed(config, self.workers + self.more_workers)

    def check_resumed(self, folder: Path) -> None:
        """Raise `UserError` for a run that was begun in one process."""
        refuse_one_process(folder)

    def train(
        self, config: Config, market: Market, store: Store, run: str, folder: Path, observer: Observer
    ) -> TrainingState:
        """Train by processes that are started here. Raises `RunFailed`."""
        from backend.distributed.coordinator import coordinator_state
        from backend.distributed.local_launcher import run_processes
        from backend.distributed.ray.launcher import run_ray
        from backend.training.start import begin

        begin(config, market, folder, observer.progress)
        approved = digest_of(config.to_dict())
        total = config.training.stage1_steps + config.training.stage2_steps

        def on_step(step: int) -> None:
            observer.progress("M-GRPO", step, max(step, total))

        if self.cluster is None:
            run_processes(self.store, run, self.runs, self.workers, on_step, approved=approved)
        else:
            more = self.more_workers
            run_ray(self.store, run, self.runs, self.workers, on_step, None, self.cluster, approved, more_workers=more)
        return coordinator_state(folder)


def refuse_one_process(folder: Path) -> None:
    """Raise `UserError` for a run that was begun in one process."""
    if (folder / "checkpoints").exists():
        raise UserError(f"the run in {folder} was trained in one process: go on without --launch")


class FilesOption(StrEnum):
    """Where the files of a run are that its processes need from each other."""

    STORE = "store"
    FOLDER = "folder"


@dataclass(frozen=True)
class StartedByHand:
    """A training by processes that are started one by one. See `backend.runs.train.BegunProcess`."""

    workers: int
    files: FilesOption

    begun_message: str = "begun; it waits for its processes"

    def fit(self, config: Config) -> tuple[Config, str | None]:
        """See `BegunProcess`: as many shards as workers."""
        from backend.distributed.entrypoints import with_enough_shards

        return with_enough_shards(config, self.workers)

    def check(self, config: Config) -> None:
        """Raise `ConfigError` for a training that cannot be divided among processes."""
        from backend.distributed.entrypoints import check_distributed

        check_distributed(config, self.workers)

    def check_resumed(self, folder: Path) -> None:
        """Raise `UserError`: a run begins once."""
        raise UserError(f"the run in {folder} has begun: leave --begin out to go on with it")

    def record(self) -> dict[str, Any]:
        """How the processes work together, for the run's record."""
        from backend.distributed.by_hand import ByHand
        from backend.store.run_record import BY_HAND

        return {BY_HAND: ByHand(self.workers, self.files.value).document()}

    def begin(self, config: Config, market: Market, store: Store, run: str, folder: Path, observer: Observer) -> None:
        """See `BegunProcess`."""
        from backend.distributed.by_hand import ByHand, publish_begin
        from backend.training.start import begin

        begin(config, market, folder, observer.progress)
        publish_begin(store, run, folder, ByHand(self.workers, self.files.value))


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
        Launch | None,
        typer.Option(
            "--launch",
            help="Rollout workers and a trainer for each role apart: processes of this machine, or actors on Ray.",
        ),
    ] = None,
    begin: Annotated[
        bool,
        typer.Option(
            "--begin",
            help="Write the run and end; its processes are then started one by one, on any machine that reaches the "
            "store: serve lead, serve rollout, serve trainer.",
        ),
    ] = False,
    files: Annotated[
        FilesOption,
        typer.Option(
            "--files",
            help="With --begin: whether the run's files travel through the store, or all machines share its folder.",
        ),
    ] = FilesOption.STORE,
    workers: Annotated[
        int, typer.Option("--workers", min=1, help="Rollout workers of --launch and --begin; the first one leads.")
    ] = 1,
    ray_address: Annotated[
        str,
        typer.Option(
            "--ray-address",
            help="HOST:PORT of a Ray cluster that this machine has joined, or auto; default: RAY_ADDRESS, else one of "
            "our own on this machine, for as long as the run lasts.",
        ),
    ] = "",
    more_workers: Annotated[
        int,
        typer.Option(
            "--more-workers",
            min=0,
            help="With --launch ray: rollout workers that join whenever the cluster has room for one.",
        ),
    ] = 0,
) -> None:
    """Train a team with M-GRPO. Ctrl-C is safe: go on with --resume."""
    request = TrainRequest(config=config, overrides=tuple(set_ or ()), resume=resume, **market.given())
    if from_paper:
        request = request_from_paper(from_paper, request, recorded)
    if dry_run:
        show_dry_run(request.settings())
        return
    if begin and (resume or launch is not None):
        raise UserError(f"--begin begins a run for others, and {'--resume' if resume else '--launch'} carries one out")
    if files is not FilesOption.STORE and not begin:
        raise UserError(f"--files {files} is for --begin: add that, or leave it out")
    if more_workers and launch is not Launch.RAY:
        raise UserError(f"--more-workers {more_workers} is for --launch ray: add that, or leave it out")
    if not resume:
        request.check()
    if begin:
        begin_by_hand(request, recorded, StartedByHand(workers, files))
        return
    from backend.runs.train import ThisProcess, train_team

    with ExitStack() as stack:
        where, options = recorded.store, ""
        process: ThisProcess | SeveralProcesses = ThisProcess()
        if launch is not None:
            process = SeveralProcesses(launch, workers, where, recorded.runs, ray_address, more_workers=more_workers)
            if not resume:
                process.check(request.settings())  # before anything is started
        cluster = ray_cluster(launch == Launch.RAY, ray_address, where)
        if isinstance(process, SeveralProcesses):
            if where == "mem://":
                raise UserError("--store mem:// is in this process alone, and --launch has several: give a folder")
            process = replace(process, cluster=cluster)
            options = process.resume_options

        def announce(start: RunStart) -> None:
            print_notes(start.notes)
            console.print(
                f"run {start.run} in {start.folder}; stop with Ctrl-C and go on with: cryptosentinel train --resume "
                f"{start.run}{options}"
            )

        shown = stack.enter_context(bars(announce))
        outcome = train_team(request, where, recorded.runs, shown, process)
    state, folder = outcome.state, outcome.folder
    console.print(f"done: {state.step} steps, best at step {state.best_step} (validation outcome {state.best_score})")
    console.print(f"the team is in {folder}; try: cryptosentinel evaluate {folder}")


def begin_by_hand(request: TrainRequest, recorded: RecordOptions, process: StartedByHand) -> None:
    """Write a run for processes that are started one by one, and print their commands."""
    if recorded.store == "mem://":
        raise UserError(
            "--store mem:// is in this process alone, and --begin is for several: give a folder or a server"
        )
    from backend.distributed.by_hand import commands
    from backend.runs.train import begin_training
    from cryptosentinel.agents.registry import roles_of

    def announce(start: RunStart) -> None:
        print_notes(start.notes)

    with bars(announce) as shown:
        begun = begin_training(request, recorded.store, recorded.runs, shown, process)
    console.print(f"run {begun.run} has begun, and nobody works on it yet. Start, in any order, each where you like:")
    for command in commands(begun.run, roles_of(begun.config.team.roles), process.workers, recorded.store):
        console.print(command, soft_wrap=True, highlight=False)
    console.print(
        "on a machine without your key: --approved " + digest_of(begun.config.to_dict()),
        soft_wrap=True,
        highlight=False,
    )


def request_from_paper(session: str, request: TrainRequest, recorded: RecordOptions) -> TrainRequest:
    """`request` on the data of a session in the store. Raises `UserError` as `train_request_of` does."""
    from backend.paper.review.training_data import train_request_of
    from backend.store.run_record import store_at

    with store_at(recorded.store) as store:
        return train_request_of(session, request, store, recorded.runs)


def ray_cluster(on_ray: bool, asked: str, store: str) -> str | None:
    """The address of the Ray cluster to launch on; None to launch without Ray. Raises `UserError` if there is none."""
    if on_ray:
        from backend.distributed.ray.cluster import cluster_address

        return cluster_address(asked, store)
    if asked:
        raise UserError(f"--ray-address {asked} is for --launch ray: add that, or leave the address out")
    return None


def show_dry_run(config: Config) -> None:
    """Print the settings and the memory that a training with them takes. Raises `UserError` for a base of unknown
    architecture, and, with settings that fit, where the memory of this machine is too small."""
    print_config(config)
    from backend.models.architectures import architecture_of
    from backend.models.shape import Shape
    from backend.policies.hardware import hardware_of, machine_memory
    from backend.training.memory_estimate import estimate, gib, memory_verdict, plan_of, require

    shape = Shape.of(architecture_of(config.training, config.nano))
    hardware = hardware_of(config.training)
    free = machine_memory(hardware.device)
    expected = estimate(shape, plan_of(config, shape, hardware.kind))
    base = config.training.base_model or "nano"
    console.print(f"{base}: {shape.parameters / 1e9:.3g} billion parameters, {shape.layers} blocks")
    table = narrow_table(f"memory of the trainer, estimated ({hardware.device}, {hardware.precision})")
    table.add_column("when")
    table.add_column("takes", justify="right", no_wrap=True)
    for need in sorted(expected.needs, key=lambda one: -one.size):
        table.add_row(need.part, need.phase, gib(need.size))
    console.print(table)
    require(config, shape, hardware.kind, free)
    console.print(memory_verdict(expected, free))


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
            "team, or a data set: its folder, or hf://OWNER/NAME on the model hub. Repeatable; the best of what teams "
            "said is kept, and all of a data set.",
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
