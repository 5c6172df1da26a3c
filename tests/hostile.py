"""Artefacts made to do harm, and canaries that notice when they do."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backend.config.schema import Config
from backend.models.manifest import MANIFEST
from tests import local_server
from tests.local_server import QuietHandler

KEY_VARIABLE, KEY = "CRYPTOSENTINEL_API_KEY", "a-key-that-nobody-else-may-see"


@dataclass
class Canary:
    """A program that leaves a file when it is run, and a server on this machine that remembers what it is asked."""

    folder: Path
    url: str
    requests: list[str] = field(default_factory=list)

    @property
    def program(self) -> Path:
        return self.folder / "helper"

    @property
    def was_run(self) -> bool:
        return (self.folder / "was-run").exists()

    def assert_untouched(self) -> None:
        """Neither was the program run nor the server asked."""
        assert not self.was_run, "the artefact's program was run"
        assert not self.requests, f"the artefact's server was asked: {self.requests}"


@contextmanager
def canary(folder: Path) -> Iterator[Canary]:
    """A canary in `folder`, its server up for the time of a block."""
    folder.mkdir(parents=True, exist_ok=True)
    seen: list[str] = []

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            seen.append(f"{self.command} {self.path} {self.headers.get('Authorization')}")
            self.close_connection = True
            self.answer(503, b"")

        do_POST = do_GET

    with local_server.serving(Handler) as url:
        made = Canary(folder, f"{url}/v1", seen)
        made.program.write_text(f"#!/bin/sh\ntouch '{folder / 'was-run'}'\n")
        made.program.chmod(made.program.stat().st_mode | stat.S_IXUSR)
        yield made


# Settings that run, contact or read, each with a value that a canary notices, and what else makes them valid.
DANGEROUS: dict[str, dict[str, Any]] = {
    "engine.python": {"kind": "vllm", "python": "{outside}/helper"},
    "engine.url": {"kind": "openai_api", "url": "{url}", "model": "theirs"},
    "plugins.roles": {"roles": ["canary_module:ROLE"]},
    "training.start_from": {"start_from": "{outside}"},
}


def hostile_config(key: str, outside: str = "/etc", url: str = "http://127.0.0.1:9/v1") -> dict[str, Any]:
    """A configuration, as an artefact holds it, with one of the settings above."""
    document = Config().to_dict()
    values = {
        name: value.format(outside=outside, url=url) if isinstance(value, str) else value
        for name, value in DANGEROUS[key].items()
    }
    document[key.partition(".")[0]] |= values
    return document


def write_team(folder: Path, base: str = "nano", **more: Any) -> Path:
    """A team's manifest as somebody else writes it, without the help of this program."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).write_text(json.dumps({"base": base, "adapters": None, "start": None, **more}))
    return folder
