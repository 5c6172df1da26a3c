"""The command line: all commands, and how a command that fails ends."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
import unicodedata
from importlib.metadata import version
from typing import Annotated

import typer

from backend.cli.console import console, errors
from backend.cli.parts.lazy import Command, LazyGroup
from backend.cli.parts.signals import end_in_order, end_soon, exit_code
from backend.errors import FOLDER_GONE, INTERRUPTED, message_and_code
from simulator.errors import Interrupted, RunFailed, UserError

_BEGIN, _TEAM, _OPERATE = "Begin here", "A team of your own", "Settings and stores"

# In the order in which a newcomer needs them. Only the module of the command that is called is imported, and libraries
# are imported inside the commands: torch takes seconds, and `--help` should not.
COMMANDS = (
    Command(
        "demo",
        "backend.cli.evaluate:demo",
        "The whole loop in minutes: make a market, train a team in it, and measure the effect.",
        _BEGIN,
    ),
    Command(
        "backtest",
        "backend.cli.backtest:backtest",
        "Backtest teams and strategies against the baselines over one window, store every decision, and write a "
        "report.",
        _BEGIN,
    ),
    Command(
        "runs", "backend.cli.runs:runs_app", "List the stored runs, show one (runs RUN), or a decision of it.", _BEGIN
    ),
    Command(
        "ui",
        "backend.cli.serve:page",
        "Show the page of runs and backtests in a browser. It reads the stores of the current folder.",
        _BEGIN,
    ),
    Command(
        "jobs",
        "backend.cli.parts.jobs:jobs_app",
        "Work that continues without this terminal: hand a command to the queue, list jobs, see one, cancel it.",
        _BEGIN,
    ),
    Command("data", "backend.cli.data:data_app", "Make, list, check and import market data.", _BEGIN),
    Command(
        "check",
        "backend.cli.check:check_app",
        "Check a strategy or a team: look-ahead, and the history it needs. Exit code 1 where something is found.",
        _BEGIN,
    ),
    Command(
        "models",
        "backend.cli.models:models_app",
        "Base models and adapters: list them, check one, try one, pull one from the model hub, export a team's.",
        _TEAM,
    ),
    Command(
        "train",
        "backend.cli.train:train",
        "Train a team with M-GRPO. Ctrl-C is safe: go on with --resume.",
        _TEAM,
    ),
    Command(
        "sft",
        "backend.cli.train:sft",
        "Fine-tune each role: collect conversations, learn the best of them, score that on held-out states.",
        _TEAM,
    ),
    Command(
        "evaluate",
        "backend.cli.evaluate:evaluate",
        "Measure a trained team against the initial team, its teacher and the baselines on held-out data.",
        _TEAM,
    ),
    Command(
        "doctor",
        "backend.cli.evaluate:doctor",
        "Say what is wrong with a training run, and what to try: a table per role, and the findings.",
        _TEAM,
    ),
    Command(
        "experiment",
        "backend.cli.experiments.commands:experiment_app",
        "Experiments: arms, seeds and windows from one file, with the test chosen before the run.",
        _TEAM,
    ),
    Command(
        "search",
        "backend.cli.experiments.search:search",
        "Try many parameter sets of a strategy on the first part of a window, and the best of them once on the rest.",
        _TEAM,
    ),
    Command(
        "paper",
        "backend.cli.paper.commands:paper_app",
        "Paper trading: a team or strategy on live or recorded data, filled by the simulator. No real money.",
        _TEAM,
    ),
    Command(
        "config",
        "backend.cli.settings:show_config",
        "Show every setting of a configuration with its meaning.",
        _OPERATE,
    ),
    Command(
        "store",
        "backend.cli.store:store_app",
        "Check a store, back it up, compact it.",
        _OPERATE,
    ),
)

app = typer.Typer(
    cls=LazyGroup.of(COMMANDS),
    help="A laboratory for crypto-trading agents: a team of role LLMs, backtested and trained with M-GRPO.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _show_version(asked: bool) -> None:
    if asked:
        console.print(f"cryptosentinel {version('cryptosentinel')}", highlight=False)
        raise typer.Exit


@app.callback()
def options(
    version_: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and end.")
    ] = False,
) -> None:
    """Options before the command."""


def program() -> None:
    """Entry point: `main` in a process of its own."""
    threading.excepthook = _thread_failed
    # Libraries make some hundred thousand objects while they are imported, all of which stay: at the usual threshold
    # looking through them again and again takes a tenth of a short command's time.
    gc.set_threshold(10_000)
    with end_soon():
        try:
            main()
        except KeyboardInterrupt:  # between the last word of a command and the interpreter's end
            _fail("stopped", exit_code(INTERRUPTED))


def main() -> None:
    """Run the command of `sys.argv`. A user's mistake ends with exit code 2, a failed run with 1, both with one clear
    message. Ctrl-C or a signal ends with 128 and the signal's number."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Else the interpreter's end looks through all that torch and numba have made, which takes seconds.
    atexit.register(gc.freeze)
    with end_in_order():
        _check_arguments(sys.argv[1:])
        _check_folder()
        try:
            app()
        except (UserError, Interrupted, RunFailed, ModuleNotFoundError, OSError) as error:
            known = message_and_code(error)
            if known is None:
                raise
            message, code = known
            _fail(message, exit_code(code) if isinstance(error, Interrupted) else code)
        except KeyboardInterrupt:  # before or after what a command does: nothing was begun, or all is stored
            _fail("stopped", exit_code(INTERRUPTED))
        except SystemExit as ending:
            # The library of the command line ends without a word, and a destructor may have swallowed the interrupt.
            if ending.code != INTERRUPTED and not exit_code(0):
                raise
            _fail("stopped", exit_code(INTERRUPTED))


def _thread_failed(failure: threading.ExceptHookArgs) -> None:
    """A thread that writes a file (TensorBoard's) hands its error on to whoever writes next, who says it; a traceback
    beside that would say it again. Of a fault of the program the traceback stays."""
    if not isinstance(failure.exc_value, OSError):
        threading.__excepthook__(failure)


def _check_arguments(arguments: list[str]) -> None:
    """End the program where an argument holds what a terminal obeys; a file's name that a shell has put there may."""
    for argument in arguments:
        if any(unicodedata.category(one) == "Cc" and one not in "\n\t" for one in argument):
            _fail(f"the argument {argument!r} holds a control character: rename the file, or type it anew", 2)


def _check_folder() -> None:
    """End the program where the current folder is gone: every path that is not absolute begins there."""
    try:
        os.getcwd()
    except FileNotFoundError:
        _fail(FOLDER_GONE, 2)


def _fail(message: str, code: int) -> None:
    errors.print(f"error: {message}", style="red", highlight=False, soft_wrap=True)
    sys.exit(code)
