"""Which commands a job may be, a backtest as a command, and how a job goes on where it stopped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from backend.jobs.files import Job
from backend.runs.requests import BacktestRequest, MarketRequest, TrainRequest, WindowRequest
from simulator.errors import UserError

# Those that work for a while and end by themselves.
JOB_COMMANDS = (
    "backtest", "train", "sft", "evaluate", "demo", "experiment", "search", "check", "data", "models", "paper",
)  # fmt: skip
_PAPER_JOBS = (("run",), ("resume",), ("demo",))
_GOES_ON = ("train", "sft", "demo", "experiment")  # they keep what they have done until they are stopped
_KEPT = ("--store", "--runs", "--launch", "--workers", "--ray-address")  # of a training that is resumed


def check_command(command: Sequence[str]) -> None:
    """Raise `UserError` for what is no command that can be a job."""
    if not command:
        raise UserError("no command is given: for example `cryptosentinel jobs run -- backtest --team ema_cross`")
    if command[0] not in JOB_COMMANDS:
        raise UserError(f"'{command[0][:50]}' cannot be a job: one of these can: {', '.join(JOB_COMMANDS)}")
    if command[0] == "paper" and command[1:2] not in _PAPER_JOBS:
        raise UserError("of a paper session only `paper run`, `paper resume` and `paper demo` can be a job")
    for argument in command:
        if "\0" in argument:
            raise UserError("an argument holds a character of code 0: type it anew")


def backtest_command(request: BacktestRequest, store: str, runs: str) -> tuple[str, ...]:
    """The command line of a backtest whose configuration is a preset or a file. What is as the command has it anyway
    is left out."""
    assert isinstance(request.config, str)
    given: list[tuple[str, object]] = [
        *_market_options(request),
        *(("--team", team) for team in request.teams),
        ("--start", request.start),
        ("--end", request.end),
        ("--decide-every", request.decide_every or None),
        ("--finer", request.finer),
        ("--rules", request.rules),
        ("--record", request.record),
        ("--like", request.like),
        *(("--variant", variant) for variant in request.variants),
        ("--seed", request.seed if request.seed != BacktestRequest.seed else None),
        ("--store", store),
        ("--runs", runs),
        *(("--set", override) for override in request.overrides),
    ]
    if request.baselines is not None:
        given.append(("--baselines", ",".join(request.baselines) or "none"))
    command = _words(given)
    command += ["--unmasked"] if request.unmasked else []
    command += [] if request.check_lookahead else ["--no-check-lookahead"]
    return ("backtest", *command)


def training_command(request: TrainRequest, store: str, runs: str) -> tuple[str, ...]:
    """The command line of a training whose configuration is a preset or a file, or of going on with one."""
    assert isinstance(request.config, str)
    records: list[tuple[str, object]] = [("--store", store), ("--runs", runs)]
    if request.resume:
        return ("train", *_words([("--resume", request.resume), *records]))
    changed = [("--set", override) for override in request.overrides]
    return ("train", *_words([*_market_options(request), *records, *changed]))


def session_command(request: WindowRequest, team: str, store: str, runs: str) -> tuple[str, ...]:
    """The command line of a paper session of a team on recorded bars."""
    assert isinstance(request.config, str)
    given: list[tuple[str, object]] = [
        *_market_options(request),
        ("--start", request.start),
        ("--end", request.end),
        ("--decide-every", request.decide_every or None),
        ("--team", team),
        ("--store", store),
        ("--runs", runs),
        *(("--set", override) for override in request.overrides),
    ]
    return ("paper", "run", *_words(given))


def resume_command(session: str, store: str, runs: str, *, release: bool) -> tuple[str, ...]:
    """The command line that resumes a paper session; `release` takes its kill switch back."""
    released = ["--release"] if release else []
    return ("paper", "resume", *_words([("--store", store), ("--runs", runs)]), *released, "--", session)


def download_command(
    exchange: str, market: str, symbols: str, timeframes: str, start: str, out: Path
) -> tuple[str, ...]:
    """The command line of a download into the folder `out`, which goes on where it stopped."""
    given: list[tuple[str, object]] = [
        ("--exchange", exchange), ("--market", market), ("--symbols", symbols), ("--timeframe", timeframes),
        ("--start", start), ("--out", out),
    ]  # fmt: skip
    return ("data", "download", *_words(given))


def resumed_command(job: Job) -> tuple[str, ...]:
    """The command that goes on with a job that has stopped. Raises `UserError` where nothing can go on."""
    command = job.request.command
    if job.status == "done":
        raise UserError(f"job {job.name} is done: there is nothing to go on with")
    if command[0] == "train" and job.run:
        return ("train", "--resume", job.run, *_kept(command))
    if command[:2] == ("paper", "run") and job.run:
        return ("paper", "resume", job.run, *_kept(command))
    if can_go_on(job):
        return command
    raise UserError(
        f"job {job.name} is a '{command[0]}', which keeps nothing to go on with: start it anew with `cryptosentinel "
        f"jobs run -- {command[0]} ...`"
    )


def can_go_on(job: Job) -> bool:
    """Whether it has stopped and keeps what a second one begins with."""
    command = job.request.command
    recorded = any(one == "--record" or one.startswith("--record=") for one in command)
    session = command[:2] in (("paper", "run"), ("paper", "resume")) and bool(job.run)
    return not job.active and job.status != "done" and (recorded or session or command[0] in _GOES_ON)


def _market_options(request: MarketRequest) -> list[tuple[str, object]]:
    """What every command on a market takes."""
    return [
        ("--config", request.config),
        ("--data", request.data),
        ("--symbols", ",".join(request.symbols)),
        ("--timeframe", request.timeframe),
        ("--resample", request.resample),
        ("--funding", request.funding),
        ("--news", request.news),
    ]


def _words(given: Sequence[tuple[str, object]]) -> list[str]:
    """Options as arguments, without those that are empty; with "=", so that a value may begin with a dash."""
    return [f"{option}={value}" for option, value in given if value is not None and value != ""]


def _kept(command: Sequence[str]) -> list[str]:
    """The options of a training that its resume needs again, as they were typed."""
    kept: list[str] = []
    for place, one in enumerate(command):
        if one.partition("=")[0] in _KEPT:
            kept += [one] if "=" in one else list(command[place : place + 2])
    return kept
