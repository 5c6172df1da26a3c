"""The command line: all commands, each imported when it is called, and how a command that fails ends."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from backend.cli.console import console, errors
from backend.cli.signals import end_in_order, end_soon, exit_code
from backend.errors import FOLDER_GONE, INTERRUPTED, message_and_code
from simulator.errors import Interrupted, RunFailed, UserError


@dataclass(frozen=True)
class Command:
    """A command by name: where it is (`module:function`, or `module:app` of a group), its line in the list of commands,
    and the part of the list that it stands in."""

    name: str
    place: str
    help: str
    panel: str

    def load(self) -> Any:
        """The command itself, as typer makes it."""
        module, _, attribute = self.place.partition(":")
        found: Any = getattr(import_module(module), attribute)
        holder = typer.Typer()
        if isinstance(found, typer.Typer):
            holder.add_typer(found, name=self.name)
        else:
            holder.command(self.name)(found)
            holder.callback()(_together)
        made: Any = typer.main.get_command(holder)
        return made.commands[self.name]


class ListedCommand(TyperCommand):
    """A command in a list, which is not imported yet."""

    def __init__(self, command: Command) -> None:
        super().__init__(command.name, help=command.help, rich_help_panel=command.panel)
        self.load = command.load


class LazyGroup(TyperGroup):
    """A group that imports the command that is called, and no other."""

    listed: Sequence[Command] = ()

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for command in self.listed:
            self.add_command(ListedCommand(command))

    @classmethod
    def of(cls, commands: Sequence[Command]) -> type[LazyGroup]:
        """The group of these commands."""
        return type("LazyGroupOfCommands", (cls,), {"listed": tuple(commands)})

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that `args` begins with, imported."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, ListedCommand) else command, rest


def commands_below(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """`command` and each command below it, imported, with what a user types for it. Hidden ones are left out."""
    if isinstance(command, ListedCommand):
        command = command.load()
    if not command.hidden:
        yield path, command
        for name, below in command.commands.items() if isinstance(command, TyperGroup) else ():
            yield from commands_below(below, f"{path} {name}")


def _together() -> None:
    """Makes typer build a group, also of one command."""


# In the order in which a newcomer needs them. Only the module of the command that is called is imported, and libraries
# are imported inside the commands: torch takes seconds, and `--help` should not.
_LISTED = {
    "Begin here": (
        ("demo", "evaluate:demo", "Make a market, train a team in it, and measure the effect, in minutes."),
        ("backtest", "backtest:backtest", "Backtest teams and strategies against baselines, with a report."),
        ("runs", "runs:runs_app", "List the stored runs, show one (runs RUN), or a decision of it."),
        ("ui", "serve:page", "Show the page of runs and backtests in a browser."),
        ("jobs", "jobs:jobs_app", "Work that continues without this terminal."),
        ("data", "data:data_app", "Make, list, check and import market data."),
        ("check", "check:check_app", "Check a strategy or a team: look-ahead, and the history it needs."),
    ),
    "A team of your own": (
        ("models", "models:models_app", "List, check, try, pull and export models and adapters."),
        ("train", "train:train", "Train a team with M-GRPO. Ctrl-C is safe: continue with --resume."),
        ("sft", "train:sft", "Fine-tune each role on the best conversations of other teams."),
        ("evaluate", "evaluate:evaluate", "Measure a trained team on held-out data."),
        ("doctor", "evaluate:doctor", "Say what is wrong with a training run, and what to try."),
        ("experiment", "experiment:experiment_app", "Compare arms over seeds and windows, from one file."),
        ("paper", "paper:paper_app", "Paper trading: live or recorded data, no real money."),
    ),
    "Settings and stores": (
        ("config", "train:show_config", "Show every setting of a configuration with its meaning."),
        ("store", "store:store_app", "Check a store, back it up."),
    ),
}
COMMANDS = tuple(
    Command(name, f"{__package__}.{place}", text, panel)  # in a wheel the package has another name
    for panel, listed in _LISTED.items()
    for name, place, text in listed
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
    """A thread that writes a file (TensorBoard's) hands its error on to the next writer, which reports it; a traceback
    beside that would say it again. Of a fault of the program the traceback stays."""
    if not isinstance(failure.exc_value, OSError):
        threading.__excepthook__(failure)


def _check_arguments(arguments: list[str]) -> None:
    """End the program where an argument holds what a terminal obeys; a file's name that a shell has put there may."""
    for argument in arguments:
        if any(unicodedata.category(one) == "Cc" and one not in "\n\t" for one in argument):
            _fail(f"the argument {argument!r} holds a control character: rename the file, or type it again", 2)


def _check_folder() -> None:
    """End the program where the current folder is gone: every path that is not absolute begins there."""
    try:
        os.getcwd()
    except FileNotFoundError:
        _fail(FOLDER_GONE, 2)


def _fail(message: str, code: int) -> None:
    errors.print(f"error: {message}", style="red", highlight=False, soft_wrap=True)
    sys.exit(code)
