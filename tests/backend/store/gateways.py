"""Gateways for the tests: one in a thread of the test, with its database in memory, and one as a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from surrealdb_embedded import SyncEmbeddedDB

from backend.store.gateway import Gateway

ROOT = Path(__file__).resolve().parents[3]
SERVE = "from backend.cli.serve import serve_app; serve_app()"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(**more: str) -> dict[str, str]:
    """The environment of a process of a test, without credentials unless they are given."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CRYPTOSENTINEL_STORE")}
    return {**kept, "PYTHONPATH": str(ROOT), **more}


class GatewayThread:
    """A gateway in memory. `lines` is what it said."""

    def __init__(self, credentials: tuple[str, str] | None = None, url: str = "mem://", port: int = 0) -> None:
        self.lines: list[str] = []
        self._ready = threading.Event()
        self._arguments = credentials, url, port
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._ready.wait(20)

    async def _serve(self) -> None:
        credentials, url, port = self._arguments
        database = SyncEmbeddedDB(url)
        database.connect()
        self._loop, self._gateway = asyncio.get_running_loop(), Gateway(database, credentials, self.lines.append)

        def started(actual: int) -> None:
            self.port = actual
            self.url = f"ws://127.0.0.1:{actual}"
            self._ready.set()

        await self._gateway.serve("127.0.0.1", port, started)

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._gateway.stop)
        self._thread.join(20)
        assert not self._thread.is_alive()


@contextmanager
def gateway_thread(credentials: tuple[str, str] | None = None) -> Iterator[GatewayThread]:
    gateway = GatewayThread(credentials)
    try:
        yield gateway
    finally:
        gateway.stop()


class GatewayProcess:
    """`serve store` on a folder, as a process. Leaving the block kills it."""

    def __init__(self, folder: Path, port: int, **variables: str) -> None:
        self.url = f"ws://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, "store", "--path", str(folder), "--port", str(port)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(**variables),
        )  # fmt: skip
        assert self.process.stdout is not None
        self.first_line = self.process.stdout.readline().strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Ask it to stop; its exit code and what it said after its first line."""
        self.process.send_signal(number)
        rest, _ = self.process.communicate(timeout=30)
        return self.process.returncode, rest.strip()
