"""A gateway in a thread of the process that holds the store, so that its own work goes on."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from backend.store.errors import StoreError
from backend.store.gateway.credentials import PASSWORD_VARIABLE, SHORTEST_PASSWORD, USER_VARIABLE, GatewayAccount
from backend.store.gateway.engine import StoreEngine
from backend.store.gateway.server import Gateway, ObjectCalls
from simulator.errors import RunFailed

_log = logging.getLogger(__name__)


def log_line(line: str) -> None:
    """What a gateway has to say, where no operator listens."""
    _log.info("%s", line)


@dataclass(frozen=True)
class Listen:
    """Where a gateway listens: by default any free port that only this machine reaches. `account` is one that an
    operator named, beside the random ones of the launch.

    Raises `StoreError` for a host that others can reach without an account, or with a short password.
    """

    host: str = "127.0.0.1"
    port: int = 0
    account: GatewayAccount | None = None

    def __post_init__(self) -> None:
        if _is_local(self.host):
            return
        if self.account is None:
            raise StoreError(
                f"--host {self.host} can be reached from other machines: set {USER_VARIABLE} and {PASSWORD_VARIABLE} "
                "in the environment, or serve 127.0.0.1"
            )
        if len(self.account.password) < SHORTEST_PASSWORD:
            raise StoreError(
                f"--host {self.host} can be reached from other machines, and {PASSWORD_VARIABLE} has "
                f"{len(self.account.password)} characters: give at least {SHORTEST_PASSWORD}"
            )

    def url(self, port: int) -> str:
        """By which programs of this machine reach it at `port`."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"ws://{f'[{host}]' if ':' in host else host}:{port}"


class HostedGateway:
    """Serves `engine`, and the files of runs through `objects`, from construction until `stop`. `on_snapshot` takes a
    snapshot of the database for a program of this machine and returns its text. Raises `StoreError` if it cannot listen
    there."""

    def __init__(
        self,
        engine: StoreEngine,
        listen: Listen,
        accounts: Sequence[GatewayAccount],
        say: Callable[[str], None] = log_line,
        objects: ObjectCalls | None = None,
        on_snapshot: Callable[[], str] | None = None,
    ) -> None:
        self._engine, self._listen, self._accounts, self._say = engine, listen, accounts, say
        self._objects, self._on_snapshot = objects, on_snapshot
        self._begun = threading.Event()
        self._over = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._gateway: Gateway | None = None
        self._port = 0
        self._error: StoreError | RunFailed | None = None
        self._thread = threading.Thread(target=self._run, name="gateway of the store", daemon=True)
        self._thread.start()
        self._begun.wait()
        self._raise_error()

    @property
    def url(self) -> str:
        """By which programs of this machine reach it."""
        return self._listen.url(self._port)

    def wait(self, seconds: float) -> bool:
        """Wait up to that long for its end, and whether it has ended. Raises `RunFailed` if the database failed it."""
        if not self._over.wait(seconds):
            return False
        self._raise_error()
        return True

    def stop(self) -> None:
        """Finish the requests under way, send the clients away, and end. A second call does nothing."""
        if self._loop is not None and self._gateway is not None and self._thread.is_alive():
            try:
                self._loop.call_soon_threadsafe(self._gateway.stop)
            except RuntimeError:  # it has ended just now
                return
            self._thread.join()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except (StoreError, RunFailed) as error:
            self._error = error
            if isinstance(error, RunFailed):
                _log.error("%s", error)
        finally:
            self._over.set()
            self._begun.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._gateway = Gateway(self._engine, self._accounts, self._say, self._objects, self._on_snapshot)

        def started(port: int) -> None:
            self._port = port
            self._begun.set()

        await self._gateway.serve(self._listen.host, self._listen.port, started)


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
