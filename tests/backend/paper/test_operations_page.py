"""What the page of operation gives to copy is whole: a unit and a compose file whose commands this program has."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import yaml  # type: ignore[import-untyped]  # it ships no types
from typer.main import get_command

from backend.cli.paper import paper_app

PAGE = (Path(__file__).parents[3] / "docs" / "guides" / "deployment.md").read_text(encoding="utf-8")


def blocks(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


def has_command(words: list[str]) -> bool:
    """Whether `cryptosentinel WORDS...` is a command with these options."""
    command = get_command(paper_app).commands[words[1]]  # type: ignore[attr-defined]  # a group, which typer does not state
    options = {name for parameter in command.params for name in parameter.opts}
    return words[0] == "paper" and {word for word in words[2:] if word.startswith("--")} <= options


def test_the_unit_goes_on_with_a_session_and_leaves_a_refusal_alone() -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # as configparser documents it
    unit.read_string(blocks("ini"))
    service = unit["Service"]
    assert has_command(service["ExecStart"].split()[1:])
    assert service["Restart"] == "on-failure" and service["RestartPreventExitStatus"] == "2"


def test_the_compose_file_has_a_health_check_that_exists() -> None:
    service = yaml.safe_load(blocks("yaml"))["services"]["paper"]
    assert has_command(service["command"][1:]) and has_command(service["healthcheck"]["test"][2:])
    assert service["ulimits"]["core"] == 0
