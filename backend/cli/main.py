"""The command line: all commands, and how a command that fails ends."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import unicodedata

import typer

from backend.cli.backtest import backtest
from backend.cli.check import check_app
from backend.cli.console import errors, print_config
from backend.cli.data import data_app
from backend.cli.evaluate import demo, doctor, evaluate
from backend.cli.models import models_app
from backend.cli.options import ConfigOption, SetOption
from backend.cli.paper.commands import paper_app
from backend.cli.runs import runs_app
from backend.cli.serve import serve_app
from backend.cli.signals import end_in_order, exit_code
from backend.cli.store import store_app
from backend.cli.train import sft, train
from backend.config.load import load_config
from backend.distributed.parent import follow_parent
from backend.errors import INTERRUPTED, message_and_code
from simulator.errors import Interrupted, RunFailed, UserError

# Libraries are imported inside the commands: torch takes seconds, and `--help` should not.

app = typer.Typer(
    help="A laboratory for crypto-trading agents: a team of role LLMs, backtested and trained with M-GRPO.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(data_app, name="data")
app.add_typer(check_app, name="check")
app.add_typer(paper_app, name="paper")
app.add_typer(runs_app, name="runs")
app.add_typer(store_app, name="store")
app.add_typer(models_app, name="models")
app.add_typer(serve_app, name="serve")
for command in (backtest, train, sft, evaluate, demo, doctor):
    app.command()(command)


@app.command("config")
def show_config(config: ConfigOption = "demo", set_: SetOption = None) -> None:
    """Show every setting of a configuration with its meaning."""
    print_config(load_config(config, set_ or []))


def main() -> None:
    """Entry point. A user's mistake ends with exit code 2, a failed run with 1, both with one clear message. Ctrl-C
    or a signal ends with 128 and the signal's number."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Else the interpreter's end looks through all that torch and numba have made, which takes seconds.
    atexit.register(gc.freeze)
    with end_in_order():
        follow_parent()
        _check_arguments(sys.argv[1:])
        try:
            app()
        except (UserError, Interrupted, RunFailed, OSError) as error:
            known = message_and_code(error)
            if known is None:
                raise
            message, code = known
            _fail(message, exit_code(code) if isinstance(error, Interrupted) else code)
        except KeyboardInterrupt:  # before or after what a command does: nothing was begun, or all is stored
            _fail("stopped", exit_code(INTERRUPTED))
        except SystemExit as ending:
            if ending.code != INTERRUPTED:
                raise
            _fail("stopped", exit_code(INTERRUPTED))  # the library of the command line ends without a word


def _check_arguments(arguments: list[str]) -> None:
    """End the program where an argument holds what a terminal obeys; a file's name that a shell has put there may."""
    for argument in arguments:
        if any(unicodedata.category(one) == "Cc" and one not in "\n\t" for one in argument):
            _fail(f"the argument {argument!r} holds a control character: rename the file, or type it anew", 2)


def _fail(message: str, code: int) -> None:
    errors.print(f"error: {message}", style="red", highlight=False, soft_wrap=True)
    sys.exit(code)
