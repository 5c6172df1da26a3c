"""The container's files, as far as they can be checked without a container engine: nothing is built here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import typer

from backend.cli.main import app
from backend.cli.parts.lazy import commands_below

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
CONTAINERFILE = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
PAGE = (DEPLOY / "page.yaml").read_text(encoding="utf-8")


def instructions() -> list[tuple[str, str]]:
    """Instruction and argument of each line, with continued lines joined."""
    lines = re.sub(r"\\\n\s*", " ", CONTAINERFILE).splitlines()
    return [(word, rest) for line in lines if line and line[0] != "#" for word, _, rest in [line.partition(" ")]]


def only(name: str) -> str:
    [rest] = [rest for word, rest in instructions() if word == name]
    return rest


def test_the_base_image_is_named_by_its_digest() -> None:
    assert re.fullmatch(r"python:3\.11-slim-bookworm@sha256:[0-9a-f]{64}", only("FROM"))


def test_what_is_copied_is_there_and_no_more_goes_to_the_builder() -> None:
    copied = {name for word, rest in instructions() if word == "COPY" for name in rest.split()[:-1]}
    assert copied and all((ROOT / name).exists() for name in copied)
    ignored = (DEPLOY / "Containerfile.dockerignore").read_text(encoding="utf-8").split("\n")
    assert "*" in ignored and {line[1:] for line in ignored if line.startswith("!")} == copied
    needed = {"pyproject.toml", "setup.py", "README.md", "LICENSE", "requirements", "configs", "data"}
    assert needed | {"simulator", "cryptosentinel", "backend", "ui"} <= copied


def test_it_installs_from_the_locks() -> None:
    lists = only("ARG").partition("=")[2].strip('"').split()
    assert {"base", "ui"} <= {*lists} and all((ROOT / "requirements" / f"{name}.txt").is_file() for name in lists)
    assert "RUN python scripts/install.py ${LISTS}" in CONTAINERFILE
    assert "pip install" not in CONTAINERFILE


def test_it_starts_a_command_that_exists_with_its_options_and_port() -> None:
    words = json.loads(only("ENTRYPOINT")) + json.loads(only("CMD"))
    commands: dict[str, Any] = dict(commands_below(typer.main.get_command(app), "cryptosentinel"))
    command = commands[" ".join(words[:2])]
    options = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options
    port = words[words.index("--port") + 1]
    assert only("EXPOSE") == port and f":{port}/_stcore/health" in only("HEALTHCHECK")


def test_it_runs_as_nobody_in_particular_and_holds_no_secret() -> None:
    names = [word for word, _ in instructions()]
    assert only("USER") == "1000" and names.index("USER") < names.index("ENTRYPOINT")
    assert "environment: [CRYPTOSENTINEL_UI_TOKEN]" in PAGE, (
        "a name, whose value is in the environment of who starts it"
    )
    words = (CONTAINERFILE + PAGE).replace("CRYPTOSENTINEL_UI_TOKEN", "")
    assert not re.search(r"(?i)password|secret|token|api_key", words)


def test_the_page_is_bound_to_the_machine_itself() -> None:
    published = re.findall(r'^\s+- "([^"]+:8501)"', PAGE, re.MULTILINE)
    assert published == ["127.0.0.1:8501:8501"]
    assert "read_only: true" in PAGE and "cap_drop: [ALL]" in PAGE and "network_mode" not in PAGE
