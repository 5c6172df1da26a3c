"""`import cryptosentinel as cs`: the public names of all layers, of which no layer makes use."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import cryptosentinel
from scripts.make_stub import COMMAND, STUB, front_door_stub

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", cryptosentinel.__all__)
def test_every_public_name_is_there_and_says_what_it_is(name: str) -> None:
    found = getattr(cryptosentinel, name)
    assert not callable(found) or found.__doc__
    assert getattr(cryptosentinel, name) is found


def test_it_imports_nothing_until_a_name_is_used() -> None:
    asked = "import sys, cryptosentinel as cs; print(dir(cs) == cs.__all__, *(n in sys.modules for n in sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", asked, "numpy", "simulator"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "False", "False"]


def test_a_name_that_is_not_public_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'backtests'"):
        _ = getattr(cryptosentinel, "backtests")  # noqa: B009 - the type checker knows that it is not there


def test_type_checkers_see_the_same_names() -> None:
    assert STUB.read_text(encoding="utf-8") == front_door_stub(), f"out of date: run `{COMMAND}` and commit the result"


def test_no_layer_uses_the_front_door() -> None:
    users = [
        path.relative_to(ROOT).as_posix()
        for layer in ("simulator", "cryptosentinel", "backend", "ui")
        for path in (ROOT / layer).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Import) and "cryptosentinel" in [alias.name for alias in node.names])
        or (
            isinstance(node, ast.ImportFrom)
            and node.module == "cryptosentinel"
            and {alias.name for alias in node.names} & set(cryptosentinel.__all__)
        )
    ]
    assert users == []
