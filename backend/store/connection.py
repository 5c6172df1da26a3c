"""A connection to the database: held by this process, by another process of this machine, or a server's.

A folder is held by one process at a time, and which one that is may change at any time: each new try finds it out
again, and takes the folder over where nobody holds it (`holding.py`). Whether a request was carried out whose answer
got lost cannot be known, so it is sent again; hence every statement given to `query` must do no harm when it runs
twice.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import AuthenticationError
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from surrealdb import BlockingWsSurrealConnection
from surrealdb.data import cbor
from surrealdb.errors import SurrealError, TransportError, UnexpectedResponseError
from websockets.exceptions import ConnectionClosed, WebSocketException

from backend.store import local_server
from backend.store.engine import DATABASE, DISK_TROUBLE, NAMESPACE, DatabaseEngine
from backend.store.errors import StoreDiskError, StoreError
from backend.store.holding import FolderHolding, hold
from backend.store.local_server import HolderFailed, LocalClient
from backend.store.lock import FolderHeld
from backend.store.schema import PREPARE, identity_in, new_store
from simulator.files import DISK_FULL

USER_VARIABLE = "CRYPTOSENTINEL_STORE_USER"
PASSWORD_VARIABLE = "CRYPTOSENTINEL_STORE_PASSWORD"

_PAUSES = (0.2, 1.0, 5.0)  # seconds before each of the three retries
_CONFLICTS = 30  # retries of a transaction that met another one in a server
_SERVING = 30.0  # seconds in which a process that has taken a folder must serve it
_LOOK = 0.02
_TRY_AGAIN = "can be retried"  # so a server ends its message about transactions that met
_LOCKED = "already locked"  # the engine's words for a process that has just begun or not quite ended
_TOO_LARGE = 1009  # the WebSocket's code
# The way to the database is broken; everything else that is raised is an answer.
_UNREACHABLE = (
    TransportError, UnexpectedResponseError, OSError, EOFError, WebSocketException, AuthenticationError,
)  # fmt: skip
_DISK_ADVICE = "is the disk full? Free some space and start again: what was stored until now is still there"

_log = logging.getLogger(__name__)


class StoreChannel(Protocol):
    """A way to the database, in use by one thread at a time."""

    def query_raw(self, text: str, parameters: dict[str, Any], /) -> dict[str, Any]:
        """The answer to statements, with the result of each or an error."""

    def close(self) -> None:
        """Leave; a second call does nothing."""


class _Local:
    """The database of this machine: `ask` answers requests in CBOR, `leave` is called once."""

    def __init__(self, ask: Callable[[bytes], bytes], leave: Callable[[], None]) -> None:
        self._ask = ask
        self._leave: Callable[[], None] | None = leave

    def query_raw(self, text: str, parameters: dict[str, Any], /) -> dict[str, Any]:
        """See `StoreChannel`."""
        request = cbor.encode({"id": "store", "method": "query", "params": [text, parameters]})
        answer: dict[str, Any] = cbor.decode(self._ask(request))
        return answer

    def close(self) -> None:
        """See `StoreChannel`."""
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()


class Connection:
    """Raises `StoreError` from every method; `name` is how messages call the database.

    `where` is a folder, `mem://` or the address of a server, and `identity` that of the store in it. `on_connected` is
    called with each new way to the database. `exclusive` is for a program that must have a folder alone.
    """

    def __init__(
        self, where: str | Path, on_connected: Callable[[Connection], None] = lambda own: None, exclusive: bool = False
    ) -> None:
        self.name = url = str(where)
        self.remote = url.startswith(("ws://", "wss://"))
        self.folder: Path | None = None
        if not self.remote and url != "mem://":
            if "://" in url:
                raise StoreError(f"store {url}: give a folder, 'mem://' or the 'ws://' address of a server")
            self.folder = Path(where).absolute()
        self.holds = False  # whether this process has the database open
        self.identity = ""
        self._on_connected, self._exclusive = on_connected, exclusive
        self._one_at_a_time = threading.RLock()  # `_greet` asks while it is held
        self._closed = threading.Event()
        self._channel: StoreChannel | None = None
        if self.remote:
            _credentials(url)
        _connections.add(self)
        try:
            self._channel = self._dial()
        except _Unreachable as error:
            raise self._unreachable(error) from error
        except (RuntimeError, SurrealError, *_UNREACHABLE) as error:
            raise self._cannot_open(error) from error
        self._greet()

    def close(self) -> None:
        """Close the database, or leave it to the others; a second call does nothing."""
        self._closed.set()  # whoever waits for another try gives up at once
        with self._one_at_a_time:
            self._drop()

    def forget_inherited(self) -> None:
        """Called in a forked process: the way to the database belongs to the parent."""
        self._one_at_a_time = threading.RLock()
        if self._channel is not None:
            _inherited.append(self._channel)
        self._channel, self.holds = None, False

    def query(self, text: str, parameters: dict[str, Any] | None = None) -> Any:
        """Result of the last statement. A server that does not answer is tried again three times."""
        with self._one_at_a_time:
            failures = conflicts = 0
            until = time.monotonic() + _SERVING
            while True:
                if self._closed.is_set():
                    raise StoreError(f"store {self.name} is closed")
                try:
                    return self._once(text, parameters or {})
                except _Conflict as error:
                    conflicts += 1
                    if conflicts > _CONFLICTS:
                        raise self._failed(str(error)) from error
                    time.sleep(random.uniform(0.01, 0.2))  # not both at the same moment again
                except _Unreachable as error:
                    # Short programs may hold a folder one after the other, and each end before it answers.
                    if time.monotonic() > until if self.folder is not None else failures == len(_PAUSES):
                        raise self._unreachable(error) from error
                    self._closed.wait(_LOOK if self.folder is not None else _PAUSES[failures])
                    failures += 1

    def _once(self, text: str, parameters: dict[str, Any]) -> Any:
        try:
            if self._channel is None:
                self._channel = self._dial()
                self._greet()
            return self._result(self._channel.query_raw(text, parameters))
        except (StoreError, _Conflict, _Unreachable):
            raise
        except _UNREACHABLE as error:
            if self.holds:
                raise self._failed(str(error)) from error
            self._drop()
            if isinstance(error, TimeoutError):  # it hangs: three times as long would not help
                raise self._unreachable(error) from error
            closed = error if isinstance(error, ConnectionClosed) else error.__cause__
            if isinstance(closed, ConnectionClosed) and closed.rcvd is not None and closed.rcvd.code == _TOO_LARGE:
                raise StoreError(f"store {self.name}: a record is larger than the server takes") from error
            raise _Unreachable(str(error) or type(error).__name__) from error
        except (RuntimeError, ValueError, SurrealError, HolderFailed) as error:
            raise self._failed(str(error)) from error
        except BaseException:  # Ctrl-C: an answer may still come, and the next request would take it for its own
            if not self.holds:
                self._drop()
            raise

    def _result(self, response: dict[str, Any]) -> Any:
        if "result" not in response:
            error = response.get("error")
            raise self._failed(str(error.get("message", error) if isinstance(error, dict) else error))
        failures = [str(statement["result"]) for statement in response["result"] if statement["status"] != "OK"]
        if failures:
            # The other statements of a failed transaction only report that they were not executed.
            reason = next((text for text in failures if "not executed" not in text), failures[0])
            if any(_TRY_AGAIN in text for text in failures):
                raise _Conflict(reason)
            raise self._failed(reason)
        return response["result"][-1]["result"]

    def _greet(self) -> None:
        """Make a database that was just reached ready for use. Raises `StoreError` where it is another store than
        before, which would take our records silently, or one of another schema."""
        try:
            identity = identity_in(self.query(PREPARE, new_store()), self.name)
            if self.identity not in ("", identity):
                raise StoreError(
                    f"store {self.name}: another store answers at this address than before; start the server with the "
                    "folder that it had, or start this program again"
                )
            self.identity = identity
            self._on_connected(self)
        except BaseException:
            self._drop()
            raise

    def _dial(self) -> StoreChannel:
        """A way to our database, signed in where it must be."""
        if self.remote:
            return self._dial_server()
        if self.folder is None:
            engine = DatabaseEngine(self.name)
            self.holds = True
            return _Local(engine.execute, engine.close)
        until = time.monotonic() + _SERVING
        while True:
            try:
                return self._dial_folder(self.folder)
            except (FolderHeld, _Unreachable, RuntimeError) as error:
                if isinstance(error, RuntimeError) and _LOCKED not in str(error):
                    raise
                if self._closed.is_set() or time.monotonic() > until:
                    raise
            self._closed.wait(_LOOK)

    def _dial_folder(self, folder: Path) -> StoreChannel:
        """Hold the folder or reach its holder. Raises `FolderHeld` for a holder that does not serve it yet, and
        `_Unreachable` for one that has gone meanwhile."""
        try:
            return self._held(hold(folder, self._prepare, self._exclusive))
        except FolderHeld as held:
            if self._exclusive:
                raise StoreError(f"store {folder} is in use by {held.holder}: end that one first") from held
            if (address := local_server.find(folder)) is None:
                raise
        except OSError as error:
            raise self._cannot_open(error) from error
        try:
            client = LocalClient(address)
        except TimeoutError as error:
            raise self._unreachable(error) from error
        except _UNREACHABLE as error:
            raise _Unreachable(str(error) or type(error).__name__) from error
        return _Local(client.ask, client.close)

    def _prepare(self, engine: DatabaseEngine) -> None:
        """Make the schema of a new database. Raises `StoreError`."""
        self._result(_Local(engine.execute, engine.close).query_raw(PREPARE, new_store()))

    def _held(self, holding: FolderHolding) -> StoreChannel:
        def leave() -> None:
            self.holds = False
            holding.leave()

        self.holds = True
        return _Local(holding.engine.execute, leave)

    def _dial_server(self) -> StoreChannel:
        # Whole answers: one in frames is of use only for results larger than ours.
        raw = BlockingWsSurrealConnection(self.name, streaming=False)
        try:
            if (credentials := _credentials(self.name)) is not None:
                raw.signin({"username": credentials[0], "password": credentials[1]})
            raw.use(NAMESPACE, DATABASE)
        except BaseException:
            with suppress(SurrealError, *_UNREACHABLE):
                raw.close()
            raise
        return raw

    def _drop(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None and self.holds:
            channel.close()
        elif channel is not None:
            with suppress(SurrealError, *_UNREACHABLE):  # it is of no more use, and what it acknowledged is stored
                channel.close()

    def _failed(self, reason: str) -> StoreError:
        if DISK_TROUBLE in reason:
            return StoreDiskError(f"store {self.name}: {reason}; {_DISK_ADVICE}")
        return StoreError(f"store {self.name}: {reason}")

    def _unreachable(self, error: Exception) -> StoreError:
        who = "its server" if self.remote else "the process that holds it"
        return StoreError(
            f"store {self.name} does not answer ({error}): start {who} again if it has ended, end it if it hangs, then "
            "start this program again; what was stored is kept"
        )

    def _cannot_open(self, error: Exception) -> StoreError:
        if self.remote:
            advice = f"is the server running, and are {USER_VARIABLE} and {PASSWORD_VARIABLE} right?"
        elif DISK_TROUBLE in str(error) or (isinstance(error, OSError) and error.errno in DISK_FULL):
            return StoreDiskError(f"store {self.name} cannot be opened: {error}; {_DISK_ADVICE}")
        else:
            advice = "if it was damaged, put back a backup, or move it away and give an empty folder"
        return StoreError(f"store {self.name} cannot be opened: {error}; {advice}")


class _Unreachable(Exception):
    """The database could not be reached; it may answer the next time."""


class _Conflict(Exception):
    """A transaction met another one in the server; it may succeed if it is sent again."""


def _credentials(url: str) -> tuple[str, str] | None:
    """The account in the environment. Raises `StoreError` for half of one, or one in the address."""
    if "@" in urlsplit(url).netloc:
        raise StoreError(
            f"the address of the store holds a user or a password: give it without, and set {USER_VARIABLE} and "
            f"{PASSWORD_VARIABLE} in the environment"
        )
    user, password = os.environ.get(USER_VARIABLE, ""), os.environ.get(PASSWORD_VARIABLE, "")
    if not user and not password:
        return None
    if not user or not password:
        raise StoreError(f"{USER_VARIABLE} and {PASSWORD_VARIABLE} go together: set both or neither")
    return user, password


# A forked process has the memory of its parent and none of its threads, so it finds its own way to the store.
_connections: weakref.WeakSet[Connection] = weakref.WeakSet()
_inherited: list[StoreChannel] = []  # neither used nor closed here: they belong to the parent


def _dial_again() -> None:
    for connection in tuple(_connections):
        connection.forget_inherited()


os.register_at_fork(after_in_child=_dial_again)
