"""Which commands a job may be, and a request as a command line."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from backend.runs.requests import MarketRequest, options_of
from simulator.errors import UserError

# Those that work for a while and end by themselves.
JOB_COMMANDS = (
    "backtest", "train", "sft", "evaluate", "demo", "experiment", "check", "data", "models", "paper",
)  # fmt: skip
_PAPER_JOBS = (("run",), ("resume",), ("demo",))


def check_command(command: Sequence[str]) -> None:
    """Raise `UserError` for what is not a command that can be a job."""
    if not command:
        raise UserError("no command is given: for example `cryptosentinel jobs run -- backtest --team ema_cross`")
    if command[0] not in JOB_COMMANDS:
        raise UserError(f"'{command[0][:50]}' cannot be a job: one of these can: {', '.join(JOB_COMMANDS)}")
    if command[0] == "paper" and tuple(command[1:2]) not in _PAPER_JOBS:
        raise UserError("of a paper session only `paper run`, `paper resume` and `paper demo` can be a job")
    if any("\0" in argument for argument in command):
        raise UserError("an argument holds a character of code 0: type it again")


def command_words(command: Sequence[str]) -> str:
    """A command as one types it in a shell."""
    return shlex.join(("cryptosentinel", *command))


def request_command(words: Sequence[str], request: MarketRequest, **more: str) -> tuple[str, ...]:
    """The command line `words` of a request whose configuration is a preset or a file. `more` are other options.

    A value follows "=", so that it may begin with a dash; a field that has its default is left out.
    """
    command = [*words]
    for name, default, declared in options_of(request):
        value, spelled = getattr(request, name), declared.names[0]
        if value == default:
            continue
        if isinstance(value, bool):
            command.append(spelled if value else f"--no-{spelled[2:]}")
        elif declared.repeated:
            command += [f"{spelled}={item}" for item in value]
        else:
            command.append(f"{spelled}={','.join(value) or 'none' if isinstance(value, tuple) else value}")
    return (*command, *(f"--{name}={value}" for name, value in more.items()))


def session_resume_command(session: str, store: str, runs: str, *, release: bool) -> tuple[str, ...]:
    """The command line that resumes a paper session; `release` takes its kill switch back."""
    return ("paper", "resume", f"--store={store}", f"--runs={runs}", *(["--release"] if release else []), "--", session)


def download_command(
    exchange: str, market: str, symbols: str, timeframes: str, start: str, out: Path
) -> tuple[str, ...]:
    """The command line of a download into the folder `out`, which continues where it stopped."""
    given = {"exchange": exchange, "market": market, "symbols": symbols, "timeframe": timeframes, "start": start}
    return ("data", "download", *(f"--{name}={value}" for name, value in given.items() if value), f"--out={out}")
