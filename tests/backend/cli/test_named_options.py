"""Messages name options that exist: those of the command that they name, or of the one that prints them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer

from backend.cli.main import app, commands_below
from backend.decisions.document import write_decisions
from backend.store.records import RunRecord
from backend.store.store import Store
from tests.command_line import Run
from tests.stored_runs import add_demo_run, full_decision

ROOT = Path(__file__).parents[3]
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
# Options of other programs that messages and comments name.
FOREIGN = {
    "--enable-auto-tool-choice", "--tool-call-parser", "--max-model-len", "--max-lora-rank", "--logprobs-mode",
    "--max-logprobs", "--jinja", "--no-deps",
}  # fmt: skip


def options_of(command: Any) -> set[str]:
    named = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    return {name for name in named if name.startswith("--")} | {"--help"}


# By what a user types for a command, as `runs show`; the program itself by nothing.
MADE = {
    path.removeprefix("cryptosentinel").strip(): command
    for path, command in commands_below(typer.main.get_command(app), "cryptosentinel")
}
COMMANDS = {path: options_of(command) for path, command in MADE.items()}
PATHS = "|".join(sorted((re.escape(path) for path in COMMANDS if path), key=len, reverse=True))
NAMED = re.compile(
    rf"(?:cryptosentinel |`)({PATHS})(?= )([^`;:()\n]*)|(?<![\w-])({PATHS})((?: [A-Z{{][\w}}.]*)* --[^`;:()\n]*)"
)


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The strings of a module that are no docstrings, with `{}` for what is put into them."""
    documented = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield (
                node.lineno,
                "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values),
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented | inside:
            yield node.lineno, node.value


def modules() -> list[Path]:
    return sorted(
        path for layer in ("simulator", "cryptosentinel", "backend", "ui") for path in (ROOT / layer).rglob("*.py")
    )


def test_a_command_that_a_message_names_has_the_options_that_it_names_with_it() -> None:
    """And every other option that a message names is one of some command."""
    known = set().union(*COMMANDS.values()) | FOREIGN
    wrong, with_command, alone = [], 0, 0
    for path in modules():
        for line, text in texts(ast.parse(path.read_text(encoding="utf-8"))):
            here = f"{path.relative_to(ROOT)}:{line}"
            for found in NAMED.finditer(text):
                command, rest = found[1] or found[3], found[2] or found[4]
                if found[3] == "check":  # a verb
                    continue
                for option in OPTION.findall(rest.split(" -- ")[0]):
                    with_command += 1
                    if option not in COMMANDS[command] | COMMANDS[""]:
                        wrong.append(f"{here}: {command} has no {option}")
            for option in OPTION.findall(text) if " " in text else ():  # else an argument of a program that is started
                alone += 1
                wrong += [] if option in known else [f"{here}: no command has {option}"]
    assert not wrong, "\n".join(wrong)
    assert with_command > 15 and alone > 50


@pytest.mark.parametrize("what", ["show", "replay"])
def test_whose_decision_is_chosen_by_the_commands_own_option(what: str, command: Run, tmp_path: Path) -> None:
    with Store.open(tmp_path / "runs" / "store") as store:
        store.add_run(RunRecord("two", "backtest", 0, "", 0, {}))
        write_decisions(store, [replace(full_decision(), run="two", backtest=name) for name in ("one", "other")])
    said = command("runs", what, "two", "--decision", str(full_decision().ordinal))
    assert said.code == 2 and "choose one with --team;" in " ".join(said.err.split())


def test_a_demonstrations_value_of_decisions_is_shown_as_such(command: Run, tmp_path: Path) -> None:
    with Store.open(tmp_path / "runs" / "store") as store:
        add_demo_run(store, "demo-1")
    said = command("runs", "show", "demo-1")
    assert said.code == 0 and "None" not in said.out
    words = " ".join(said.out.split())
    assert "1,000 held-out states x 256" in words and "1,000 states of the no-edge control x 256" in words
    assert "held_out: means over" in words
