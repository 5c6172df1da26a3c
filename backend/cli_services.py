"""The processes of a training apart as commands: `serve rollout | trainer | status`, and the launch of all of them."""

from __future__ import annotations

import signal
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from backend.cli_serve import serve_app
from backend.console import console, narrow_table
from simulator.errors import UserError

if TYPE_CHECKING:  # the database and torch take their time
    from backend.config import Config
    from backend.console import Bars
    from backend.training.checkpoints import TrainingState
    from simulator.market import Market

ServedStoreOption = Annotated[
    str, typer.Option("--store", help="ws:// of the store that all processes of the run share.")
]
RunOption = Annotated[str, typer.Option("--run", help="Id of the training run, which must be running.")]
RunsFolderOption = Annotated[
    Path, typer.Option("--runs", help="Folder that holds the run's folder; all its processes share it.")
]
ReplacesOption = Annotated[str, typer.Option("--replaces", hidden=True)]


@serve_app.command("rollout")
def serve_rollout(
    run: RunOption,
    store: ServedStoreOption = "ws://127.0.0.1:8765",
    runs: RunsFolderOption = Path("runs"),
    number: Annotated[int, typer.Option("--number", min=0, help="Which of the workers this is; 0 leads.")] = 0,
    workers: Annotated[int, typer.Option("--workers", min=1, help="How many workers the run has.")] = 1,
    replaces: ReplacesOption = "",
) -> None:
    """Roll out for a training run, until it is over."""
    from backend.services.processes import run_worker

    _end_on_sigterm()
    run_worker(store, run, runs, number, workers, replaces)


@serve_app.command("trainer")
def serve_trainer(
    run: RunOption,
    role: Annotated[str, typer.Option("--role", help="manager, market_analyst, risk_analyst or trader.")],
    store: ServedStoreOption = "ws://127.0.0.1:8765",
    runs: RunsFolderOption = Path("runs"),
    replaces: ReplacesOption = "",
) -> None:
    """Train one role of a training run, until it is over."""
    from backend.services.processes import run_role

    _end_on_sigterm()
    run_role(store, run, runs, role, replaces)


@serve_app.command("status")
def serve_status(
    store: ServedStoreOption = "ws://127.0.0.1:8765",
    run: Annotated[str, typer.Option("--run", help="Id of a run; default: all that have processes.")] = "",
) -> None:
    """Show the processes of training runs: who is alive, at which step, how far behind, with which code."""
    from backend.services.beacon import SILENT
    from backend.store.store import Store

    with Store.open(store) as opened:
        now = opened.now()
        table = narrow_table(f"processes at {store}")
        for heading in ("run", "state", "step", "behind", "heard", "code", "process", "does"):
            table.add_column(heading)
        for record in [opened.run(run)] if run else opened.runs():
            services = opened.services(record.run)
            ahead = max((one.step for one in services if one.step is not None), default=0)
            for one in services:
                silent = (now - one.updated_at) / 1000
                over = one.state in ("stopped", "failed")
                table.add_row(
                    one.name,
                    record.run,
                    one.state if over or silent < SILENT else "silent",
                    "" if one.step is None else str(one.step),
                    "" if one.step is None else str(ahead - one.step),
                    f"{silent:.0f} s ago",
                    one.code_version,
                    one.process,
                    one.message or "",
                )
    console.print(table)


def check(settings: Config, workers: int) -> None:
    """Raise `ConfigError` for a training that cannot be divided among processes so."""
    from backend.services.processes import check_apart

    check_apart(settings, workers)


def served_store(store: str, runs: Path) -> AbstractContextManager[str]:
    """The store as an address that several processes can open, for a block."""
    from backend.services.launch import gateway

    return gateway(store, runs / "store.log")


def check_resumed(folder: Path, apart: bool) -> None:
    """Raise `UserError` where a run is to go on otherwise than it began: each way keeps what it needs elsewhere."""
    if apart and (folder / "checkpoints").exists():
        raise UserError(f"the run in {folder} was trained in one process: go on without --launch")
    if not apart and (folder / "services").exists():
        raise UserError(f"the run in {folder} was trained in several processes: go on with --launch processes")


def launched(
    settings: Config, market: Market, address: str, run: str, runs: Path, workers: int, shown: Bars
) -> TrainingState:
    """A run that has begun, by processes of its own on this machine; where it ended. Raises `RunFailed`."""
    from backend.services.launch import run_processes
    from backend.services.lead import leader_state
    from backend.training.job import warm_started_base

    warm_started_base(settings, market, runs / run, shown.report)
    total = settings.training.stage1_steps + settings.training.stage2_steps
    run_processes(address, run, runs, workers, lambda step: shown.report("M-GRPO", step, max(step, total)))
    return leader_state(runs / run)


def _end_on_sigterm() -> None:
    """Take a request to end as Ctrl-C, so that the others hear of it."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
