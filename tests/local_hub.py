"""A model hub on this machine that serves folders as the public one serves models: what it lists, how it names commits
and files, and how it refuses."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests import local_server
from tests.local_server import QuietHandler

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".safetensors", ".bin")  # kept apart on the hub, with their SHA-256


@dataclass
class LocalHub:
    """What is served and how: `models` by name, and faults by what a test wants to see.

    `refuse` (status, error code) answers every question about a model. `cut` files lose their last byte under way, and
    tell of it no word; `dropped` break off once in the middle. `readers`:
    tokens that may read; empty: everybody may.
    """

    models: dict[str, Path]
    commit: str = COMMIT
    refuse: tuple[int, str] | None = None
    refuse_files: tuple[int, str] | None = None
    cut: set[str] = field(default_factory=set)
    dropped: set[str] = field(default_factory=set)
    readers: set[str] = field(default_factory=set)
    revisions: set[str] = field(default_factory=lambda: {"main", COMMIT})
    url: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)  # method and path of each request
    tokens: set[str] = field(default_factory=set)

    def fetched(self) -> list[str]:
        """The files whose content was asked for, in order of their names."""
        return sorted(path.rsplit("/", 1)[1] for method, path in self.asked if method == "GET" and "/resolve/" in path)


@contextmanager
def serving(hub: LocalHub) -> Iterator[LocalHub]:
    """Serve `hub` on a free port of this machine for the time of a block."""

    class Handler(_Handler):
        served = hub

    with local_server.serving(Handler) as hub.url:
        yield hub


class _Handler(QuietHandler):
    served: LocalHub

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub, path = self.served, unquote(urlsplit(self.path).path)
        hub.asked.append((self.command, path))
        token = (self.headers.get("authorization") or "").removeprefix("Bearer ")
        if token:
            hub.tokens.add(token)
        if hub.refuse is not None:
            return self._refuse(*hub.refuse)
        if hub.readers and token not in hub.readers:
            return self._refuse(401, "GatedRepo")
        parts = path.strip("/").split("/")
        if path.startswith("/api/models/"):
            name, rest = "/".join(parts[2:4]), parts[4:]
            if name not in hub.models:
                return self._refuse(404, "RepoNotFound")
            if rest and rest[1] not in hub.revisions:
                return self._refuse(404, "RevisionNotFound")
            return self._json(self._tree(name) if rest[:1] == ["tree"] else self._info(name))
        name, file = "/".join(parts[:2]), "/".join(parts[4:])
        if name not in hub.models or not (hub.models[name] / file).is_file():
            return self._refuse(404, "EntryNotFound")
        if hub.refuse_files is not None:
            return self._refuse(*hub.refuse_files)
        return self._file(hub.models[name] / file)

    def _info(self, name: str) -> object:
        siblings = []
        for path in sorted(self.served.models[name].iterdir()):
            content = path.read_bytes()
            size = len(content)
            one: dict[str, object] = {"rfilename": path.name, "size": size, "blobId": _sha1(content)}
            if path.suffix in LARGE:
                one["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": size, "pointerSize": 130}
            siblings.append(one)
        return {"id": name, "modelId": name, "sha": self.served.commit, "siblings": siblings, "tags": []}

    def _tree(self, name: str) -> object:
        return [
            {"type": "file", "path": path.name, "size": path.stat().st_size, "oid": _sha1(path.read_bytes())}
            for path in sorted(self.served.models[name].iterdir())
        ]

    def _file(self, path: Path) -> None:
        content = path.read_bytes()
        start = 0
        asked = self.headers.get("Range", "")
        if asked.startswith("bytes="):
            start = int(asked.removeprefix("bytes=").split("-")[0])
        large = path.suffix in LARGE
        etag = hashlib.sha256(content).hexdigest() if large else _sha1(content)
        body = content[start:]
        if path.name in self.served.cut and self.command == "GET":
            body = body[:-1]
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": self.served.commit, "Accept-Ranges": "bytes"}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        length = None
        if path.name in self.served.dropped and self.command == "GET":
            self.served.dropped.discard(path.name)
            body, length = body[: len(body) // 2], len(body)
        self.answer(206 if start else 200, body, length=length, headers=headers)

    def _json(self, document: object) -> None:
        self.answer(200, json.dumps(document).encode())

    def _refuse(self, status: int, code: str) -> None:
        said = {"X-Error-Code": code} if code else {}
        self.answer(status, b"", headers={**said, "X-Error-Message": "\x1b[31mfrom the server\x1b[0m"})


def _sha1(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


@contextmanager
def as_the_hub(served: LocalHub, patch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    """The hub that programs of this process ask."""
    for name in ("HF_TOKEN", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        patch.delenv(name, raising=False)
    with serving(served) as running:
        patch.setenv("HF_ENDPOINT", running.url)
        yield running
