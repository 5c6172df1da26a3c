"""Artefacts made to do harm, and canaries that notice when they do."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from backend.config.artefacts import USER_ONLY
from backend.config.load import describe
from backend.config.schema import Config
from backend.models.manifest import MANIFEST

KEY_VARIABLE, KEY = "CANARY_API_KEY", "a-key-that-nobody-else-may-see"


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

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(f"{self.command} {self.path} {self.headers.get('Authorization')}")
            self.send_error(503)

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        made = Canary(folder, f"http://127.0.0.1:{server.server_port}/v1", seen)
        made.program.write_text(f"#!/bin/sh\ntouch '{folder / 'was-run'}'\n")
        made.program.chmod(made.program.stat().st_mode | stat.S_IXUSR)
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def dangerous_keys() -> list[str]:
    """Every setting that only the user may say, one by one."""
    return [one.key for one in describe() if any(f"{one.key}.".startswith(f"{key}.") for key in USER_ONLY)]


def hostile_config(key: str, outside: str = "/etc", url: str = "http://127.0.0.1:9/v1") -> dict[str, Any]:
    """A configuration, as an artefact holds it, whose setting `key` is not its default; the settings that it needs to
    be valid are set as well."""
    document = Config().to_dict()
    engine = document["engine"]
    if key.startswith("engine.") and key != "engine.kind":
        engine["kind"] = {"engine.provider": "openai_api", "engine.plugin": "own"}.get(key, "vllm")
    section, name = key.rsplit(".", 1)
    table = document
    for part in section.split("."):
        table = table[part]
    values: dict[str, Any] = {
        "engine.kind": "openai_api", "engine.url": url, "engine.python": f"{outside}/helper", "engine.gpu_share": 0.5,
        "engine.timeout": 7.0, "engine.concurrency": 512,
        "engine.key_variable": KEY_VARIABLE, "engine.model": outside,
        "engine.provider": "ollama", "engine.extra_body": {"theirs": 1},
        "budget.prices": {"theirs": [1.0, 1.0, 1.0]}, "budget.decision": {"calls": 9}, "budget.day": {"tokens": 9},
        "budget.run": {"seconds": 9.0},
        "paper.broker": "sandbox", "gate.better_than": ["hold"], "gate.decisions": 20, "budget.max_cost": 0.0,
        "plugins.roles": ["theirs:ROLE"], "team.tools": ["manager=theirs:TOOL"],
        "training.scores": ["trader=theirs:score"],
        "training.reward": "theirs:reward", "training.recipe": "theirs:Recipe", "training.credit": "theirs:Credit",
        "engine.plugin": "theirs:engine", "market.source": "theirs:load",
    }  # fmt: skip
    default = table[name]
    table[name] = values.get(key, outside if isinstance(default, str) else 5 if isinstance(default, int) else 5.0)
    if key == "training.wandb_project":
        table[name] = "theirs"
    return document


def write_team(folder: Path, config: dict[str, Any], base: str = "nano", **more: Any) -> Path:
    """A team's manifest as somebody else writes it, without the help of this program."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {"base": base, "adapters": None, "start": None, "config": config, **more}
    (folder / MANIFEST).write_text(json.dumps(document))
    return folder
