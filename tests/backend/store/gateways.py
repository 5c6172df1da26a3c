"""Gateways for the tests: one in a thread of the test, with its database in memory, and one as a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from backend.store.gateway.credentials import GatewayAccount
from backend.store.gateway.engine import StoreEngine
from backend.store.gateway.host import HostedGateway, Listen

ROOT = Path(__file__).resolve().parents[3]
ACCOUNT = GatewayAccount("trader", "correct horse")
CREDENTIALS = {"CRYPTOSENTINEL_STORE_USER": ACCOUNT.user, "CRYPTOSENTINEL_STORE_PASSWORD": ACCOUNT.password}
SERVE = "from backend.cli.serve import serve_app; serve_app()"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(**more: str) -> dict[str, str]:
    """The environment of a process of a test, without an account unless one is given."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CRYPTOSENTINEL_STORE")}
    return {**kept, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), **more}


class GatewayThread:
    """A gateway in memory with one account. `lines` is what it said."""

    def __init__(self, port: int = 0, url: str = "mem://") -> None:
        self.lines: list[str] = []
        self._engine = StoreEngine(url)
        self._gateway = HostedGateway(self._engine, Listen(port=port), [ACCOUNT], self.lines.append)
        self.url = self._gateway.url
        self.port = int(self.url.rpartition(":")[2])

    def stop(self) -> None:
        self._gateway.stop()
        self._engine.close()


@contextmanager
def gateway_thread() -> Iterator[GatewayThread]:
    gateway = GatewayThread()
    try:
        yield gateway
    finally:
        gateway.stop()


class GatewayProcess:
    """`serve store` on a folder with the account of these tests, as a process. Leaving the block kills it."""

    def __init__(self, folder: Path, port: int, **variables: str) -> None:
        variables = CREDENTIALS | variables
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
