"""The commands of `cryptosentinel jobs`: hand work to the queue, see it, cancel it."""

from __future__ import annotations

from typing import Annotated

import typer

from backend.cli.console import RunsOption, console, narrow_table
from backend.jobs.commands import command_words
from backend.jobs.files import Job
from backend.jobs.queue import JobQueue
from backend.runs.requests import RUNS
from simulator.market.timeframes import format_time

_LOG_BYTES = 3_000  # of a log that `show` shows
_WHOLE_LOG = 1 << 30

JobArgument = Annotated[str, typer.Argument(help="A job, as `cryptosentinel jobs list` names it.")]

jobs_app = typer.Typer(
    help="Work that continues without this terminal: hand a command to the queue, list jobs, see one, cancel it.",
    no_args_is_help=True,
)


@jobs_app.callback()
def jobs_command() -> None:
    """Work that continues without this terminal: hand a command to the queue, list jobs, see one, cancel it."""


@jobs_app.command("run", context_settings={"ignore_unknown_options": True})
def jobs_run(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="A command and its options: -- backtest --team hold.")
    ],
    runs: RunsOption = RUNS,
) -> None:
    """Hand a command to the queue. It runs in a process of its own, which needs neither this terminal nor the page."""
    job = JobQueue(runs).submit(command)
    console.print(f"job {job.name}: {command_words(job.request.command)}", soft_wrap=True)
    console.print(f"see it with: cryptosentinel jobs show {job.name}", soft_wrap=True)


@jobs_app.command("list")
def jobs_list(runs: RunsOption = RUNS) -> None:
    """List the jobs, the newest first: what each is, how far it is, and the run that it made."""
    queue = JobQueue(runs)
    jobs = queue.jobs()
    if not jobs:
        console.print("there are no jobs; hand one in with: cryptosentinel jobs run -- backtest --team ema_cross")
        return
    table = narrow_table(f"jobs in {runs}, at most {queue.limit} at a time")
    for heading in ("state", "done", "run"):
        table.add_column(heading, no_wrap=True)
    for job in jobs:
        table.add_row(job.name, job.status, "" if job.share is None else f"{job.share:.0%}", job.run)
    console.print(table)


@jobs_app.command("show")
def jobs_show(
    job: JobArgument,
    log: Annotated[bool, typer.Option("--log", help="Print the whole log and nothing else.")] = False,
    runs: RunsOption = RUNS,
) -> None:
    """Show a job: its command, its state, and the end of its log."""
    state = JobQueue(runs).job(job)
    if log:
        console.print(state.log(_WHOLE_LOG), end="", soft_wrap=True, highlight=False)
        return
    for label, value in _facts(state):
        console.print(f"{label}: {value}", soft_wrap=True, highlight=False)
    end_of_log = state.log(_LOG_BYTES).rstrip()
    if end_of_log:
        console.print(f"\n{end_of_log}", soft_wrap=True, highlight=False)


@jobs_app.command("cancel")
def jobs_cancel(job: JobArgument, runs: RunsOption = RUNS) -> None:
    """Cancel a job. One that runs ends as by Ctrl-C; a second time ends it at once."""
    state = JobQueue(runs).cancel(job)
    console.print(f"job {job} is being stopped" if state.active else f"job {job} is cancelled")


def _facts(job: Job) -> list[tuple[str, str]]:
    """Label and value of what a job's files say."""
    facts = [("job", job.name), ("command", command_words(job.request.command)), ("folder", job.request.folder)]
    facts.append(("state", f"{job.status}: {job.message}" if job.message else job.status))
    moments = {"asked for": job.request.submitted_at, "began": job.state.started_at, "ended": job.state.finished_at}
    facts += [(label, f"{format_time(moment)} UTC") for label, moment in moments.items() if moment]
    if job.state.total:
        facts.append(("how far", f"{job.state.what} {job.state.done}/{job.state.total}"))
    if job.run:
        facts.append(("run", job.run))
    return facts
