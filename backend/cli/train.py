"""`cryptosentinel train`: a training in this process or in several, its resume, and what it would take.

`cryptosentinel sft`: each role learns from the best conversations of a team, and is scored before and after.

`cryptosentinel config`: the settings of a configuration, each with its meaning."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from backend.cli.console import StoreOption, console, narrow_table, print_notes
from backend.cli.options import ConfigOption, RecordOptions, SetOption, grouped
from backend.cli.progress import bars
from backend.config.load import describe, load_config
from backend.runs.requests import STORE, RunStart, SftRequest, TrainRequest
from simulator.errors import UserError

if TYPE_CHECKING:  # they import torch and the database
    from backend.config.schema import Config
    from backend.runs.outcomes import SftOutcome


class Launch(StrEnum):
    """How a training runs: in this process and its helpers, or as actors on Ray."""

    LOCAL = "local"
    RAY = "ray"


@grouped
def train(
    request: TrainRequest,
    recorded: RecordOptions,
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
            rich_help_panel="Ray",
            help="local: this process and helpers. ray: rollout workers and a trainer for each role as actors on Ray.",
        ),
    ] = Launch.LOCAL,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Rollout workers.", rich_help_panel="Ray")] = 1,
    files: Annotated[
        str,
        typer.Option(
            "--files",
            rich_help_panel="Ray",
            help="Where machines share no folder: an fsspec URL for the run's files, as s3://B/runs.",
        ),
    ] = "",
    ray_address: Annotated[
        str,
        typer.Option(
            "--ray-address",
            rich_help_panel="Ray",
            help="HOST:PORT of a Ray cluster that this machine has joined, or auto; default: RAY_ADDRESS, else one of "
            "its own on this machine, for as long as the run lasts.",
        ),
    ] = "",
) -> None:
    """Train a team with M-GRPO. Ctrl-C is safe: continue with --resume."""
    if from_paper:
        request = request_from_paper(from_paper, request, recorded)
    if dry_run:
        show_dry_run(request.settings())
        return
    if launch is Launch.LOCAL and (files or ray_address):
        raise UserError("--files and --ray-address are for --launch ray: add that, or leave them out")
    if not request.resume:
        request.check()
    from backend.runs.train import OnRay, train_team

    process = OnRay(recorded.store, workers, files, ray_address) if launch is Launch.RAY else None

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
    from backend.models.shape import Shape, architecture_of
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
def sft(request: SftRequest, store: StoreOption = STORE) -> None:
    """Fine-tune each role: collect conversations, learn the best of them, score that on held-out states.

    Ctrl-C is safe: the same command resumes.
    """
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
    console.print(f"the team is in {outcome.folder}; try: cryptosentinel evaluate {outcome.folder}", soft_wrap=True)


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


def show_config(config: ConfigOption = "demo", set_: SetOption = None) -> None:
    """Show every setting of a configuration with its meaning."""
    print_config(load_config(config, set_ or []))


def print_config(config: Config) -> None:
    """Print every setting of a configuration with its meaning."""
    values = config.to_dict()
    table = Table("key", "value", "meaning", title="configuration", title_justify="left")
    for entry in describe():
        value: object = values
        for part in entry.key.split("."):
            assert isinstance(value, dict)
            value = value[part]
        table.add_row(entry.key, str(value), entry.meaning)
    console.print(table)
