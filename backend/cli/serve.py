"""`cryptosentinel serve`: the processes of a training as commands, and the store that they share."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from secrets import token_urlsafe
from types import FrameType
from typing import Annotated, NoReturn

import typer

from backend.cli.console import console, narrow_table
from backend.runs.requests import STORE
from simulator.errors import UserError

_log = logging.getLogger(__name__)

ServedStoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        help="The store that all processes of the run share: its folder, or the ws:// of one served elsewhere.",
    ),
]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Id of the training run.")]
RunsFolderOption = Annotated[
    Path, typer.Option("--runs", help="Folder that holds the run's folder, or this process's copy of it.")
]
# What a launcher says: which of its workers this is, and whom it replaces.
NumberOption = Annotated[int | None, typer.Option("--number", min=0, hidden=True)]
ReplacesOption = Annotated[str, typer.Option("--replaces", hidden=True)]
ApprovedOption = Annotated[
    str,
    typer.Option(
        "--approved",
        help="SHA-256 of the run's configuration, where this machine has not the key of the user who began the run.",
    ),
]


TOKEN_VARIABLE = "CRYPTOSENTINEL_UI_TOKEN"
_TOKEN = re.compile(r"[A-Za-z0-9_-]{16,200}")  # what an address may hold as it is

serve_app = typer.Typer(
    help="The processes of a training apart: the store, the rollout workers, the trainers; and who is alive.",
    no_args_is_help=True,
)


@serve_app.callback()
def serve_command() -> None:
    """The processes of a training apart: the store, the rollout workers, the trainers; and who is alive."""


def page(
    host: Annotated[str, typer.Option("--host", help="Address to answer at.")] = "localhost",
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port of the page.")] = 8501,
    token: Annotated[
        bool,
        typer.Option(
            "--token/--no-token",
            help=f"Ask for a token: that of {TOKEN_VARIABLE}, else a new one. Without it, anyone who reaches the port "
            "can run programs as you.",
        ),
    ] = True,
    allow_plugins: Annotated[
        bool,
        typer.Option("--allow-plugins", help="Let the page import your own modules that a field names: module:NAME."),
    ] = False,
) -> None:
    """Show the page of runs and backtests in a browser. It reads the stores of the current folder.

    It prints the address with a token, without which nothing is shown. Where there is no store yet, it begins with the
    finished run that comes with the program.
    """
    from backend.config.plugins import refuse_own_modules

    server = "ui.server"
    if find_spec("streamlit") is None or find_spec(server) is None:
        raise UserError('the page needs Streamlit: pip install "cryptosentinel[ui]"')
    given = os.environ.pop(TOKEN_VARIABLE, "")  # what the page starts need not know it
    if token and given and not _TOKEN.fullmatch(given):
        raise UserError(f"{TOKEN_VARIABLE} must have at least 16 letters, digits, '-' and '_': choose another")
    refuse_own_modules(not allow_plugins)
    if not Path(STORE).exists() and not os.environ.get("CRYPTOSENTINEL_STORE"):
        _begin_with_sample()
    console.print("the page gets ready: some seconds", soft_wrap=True)
    key = (given or token_urlsafe(24)) if token else ""
    shown = f"?token={f'${TOKEN_VARIABLE}' if given else key}" if token else ""
    everywhere = host in ("0.0.0.0", "::")
    name = "localhost" if everywhere else f"[{host}]" if ":" in host else host
    import_module(server).serve(
        host, port, key, lambda: console.print(f"the page is at http://{name}:{port}/{shown}", soft_wrap=True)
    )


def _begin_with_sample() -> None:
    """The finished run that comes with the program, in a new store of the current folder. Without it the page opens
    all the same."""
    from backend.runs.sample_run import add_sample_run, has_sample_run
    from backend.store.store import Store

    if has_sample_run():
        try:
            with Store.open(STORE) as store:
                console.print(f"{STORE} is new: it begins with the run {add_sample_run(store)}", soft_wrap=True)
        except UserError as error:
            console.print(f"note: the finished run cannot be opened: {error}", soft_wrap=True)


@serve_app.command("lead")
def serve_lead(
    run: RunArgument,
    store: ServedStoreOption = STORE,
    runs: RunsFolderOption = Path("runs"),
    approved: ApprovedOption = "",
) -> None:
    """Lead a training run that `train --begin` has written, and roll out for it as well, until it is over.

    Of several the first leads and the others stand by: one of them goes on where it was when the first is gone. The
    team is then in the run's folder of the one that has led to the end.
    """
    with _service(run, "rollout-0", None):
        from backend.distributed.entrypoints import run_leader

        folder = run_leader(store, run, runs, approved)
        _log.info("the run is over; %s", "another has led it" if folder is None else f"the team is in {folder}")


@serve_app.command("rollout")
def serve_rollout(
    run: RunArgument,
    store: ServedStoreOption = STORE,
    runs: RunsFolderOption = Path("runs"),
    number: NumberOption = None,
    replaces: ReplacesOption = "",
    approved: ApprovedOption = "",
) -> None:
    """Roll out for a training run, until it is over. As many as you like may join and leave."""
    with _service(run, "rollout" if number is None else f"rollout-{number}", None):
        from backend.distributed.entrypoints import run_worker

        run_worker(store, run, runs, number, replaces, approved=approved)


@serve_app.command("trainer")
def serve_trainer(
    run: RunArgument,
    role: Annotated[str, typer.Option("--role", help="manager, market_analyst, risk_analyst or trader.")],
    store: ServedStoreOption = STORE,
    runs: RunsFolderOption = Path("runs"),
    replaces: ReplacesOption = "",
    approved: ApprovedOption = "",
) -> None:
    """Train one role of a training run, until it is over."""
    with _service(run, f"trainer-{role}", role):
        from backend.distributed.entrypoints import run_role

        run_role(store, run, runs, role, replaces, approved=approved)


@serve_app.command("status")
def serve_status(
    store: ServedStoreOption = STORE,
    run: Annotated[str, typer.Option("--run", help="Id of a run; default: all that have processes.")] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="For programs: a JSON list with an object for each run.")
    ] = False,
) -> None:
    """Show the processes of training runs: who is alive, at which step, how far behind, what waits for it, which code.

    QUEUE is, of a rollout worker, the shards of its step that are not complete; of a trainer, complete steps that it
    has not learnt. LAG is in steps: of weights behind the newest, or of learning behind the rollouts.
    """
    from dataclasses import asdict

    from backend.distributed.status import processes_of
    from backend.store.store import Store

    with Store.open(store, reads_only=True) as opened:
        names = [run] if run else [one.run for one in opened.runs() if opened.services(one.run)]
        found = [processes_of(opened, name) for name in names]
    if as_json:
        # Not through the console, which would wrap it at the width of a terminal.
        print(json.dumps([asdict(one) for one in found], indent=2))
        return
    for one in found:
        step, newest = ("-" if number is None else number for number in (one.step, one.published))
        table = narrow_table(
            f"run {one.run}, {one.status}: at step {step}, {one.complete} steps rolled out, weights of step {newest}"
        )
        for heading in ("state", "step", "lag", "queue", "heartbeat", "weights", "code", "process", "message"):
            table.add_column(heading, no_wrap=heading == "state")
        for process in one.processes:
            cells = (process.step, process.lag, process.queue, f"{process.heartbeat_age:.0f} s ago", process.weights,
                     process.code, process.process, process.message)  # fmt: skip
            table.add_row(process.name, process.state, *("" if cell is None else str(cell) for cell in cells))
        console.print(table)
    if not found:
        console.print(f"no run at {store} has processes")


@contextmanager
def _service(run: str, name: str, role: str | None) -> Iterator[None]:
    """A process of a run, for the time of a block: its log is JSON lines, SIGTERM ends it as Ctrl-C does."""
    from backend.distributed.logs import Ended, Place, logged

    end_on_sigterm()
    try:
        with logged(Place(run, name, role)):
            yield
    except Ended as ended:
        raise typer.Exit(ended.code) from ended


def end_on_sigterm() -> None:
    """Take a request to end as Ctrl-C, so that the others hear of it."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
