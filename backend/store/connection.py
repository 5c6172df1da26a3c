"""A connection to the database: held by this process, by another process of this machine, or a server's.

A folder is held by one process at a time, and which one that is may change at any time: each new try finds out anew,
and takes the folder over where nobody holds it (`holding.py`). Whether a request whose answer got lost was carried out
cannot be known, so it is sent again; hence every statement given to `query` must do no harm when it runs twice.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from surrealdb import BlockingWsSurrealConnection
from surrealdb.errors import SurrealError, TransportError, UnexpectedResponseError
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from backend.store.errors import StoreDiskError, StoreError
from backend.store.folder_swap import DATABASE_FOLDER
from backend.store.gateway import address
from backend.store.gateway.answers import decoded_answer
from backend.store.gateway.cbor_writer import encoded
from backend.store.gateway.client import GatewayClient, SignInRefused
from backend.store.gateway.credentials import PASSWORD_VARIABLE, USER_VARIABLE, environment_account
from backend.store.gateway.engine import DATABASE, NAMESPACE, Session, StoreEngine
from backend.store.gateway.host import Listen
from backend.store.gateway.rpc_messages import DISK_TROUBLE, only_result, query
from backend.store.holding import LOCKED, FolderHolding, hold
from backend.store.integrity.snapshot import DatabaseSnapshot
from backend.store.lock import FolderHeld
from backend.store.sharing.bucket import BucketObjects
from backend.store.sharing.objects import OBJECTS_FOLDER, ObjectFolder, ObjectStore, RemoteObjects

PATIENCE = 90.0
HOLDER_PATIENCE = 30.0  # seconds in which a process that holds a folder must answer who comes to use it

# The way to a server is broken; everything else that the SDK raises is an answer.
_UNREACHABLE = (TransportError, UnexpectedResponseError, OSError, WebSocketException)
# What the SDK raises in all: RuntimeError comes from the embedded engine.
_FAILURES = (SurrealError, RuntimeError, OSError, WebSocketException)
_TOO_MANY = "it has too many clients"
_TRY_AGAIN = "can be retried"  # so a server ends its message about transactions that met

_TOO_LARGE = 1009  # the WebSocket's code

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 3.0
_FIRST_PAUSE_FOLDER = 0.02  # a holder that ends is gone in milliseconds
_UNNOTICED = 2.0  # seconds for a folder to pass from one process to the next without a warning
_DISK_ADVICE = "is the disk full? Free some space and start again: what was stored until now is still there"

_log = logging.getLogger(__name__)

AnswerT = TypeVar("AnswerT")
ResultT = TypeVar("ResultT")


class StoreChannel(Protocol):
    """A way to the database, in use by one thread at a time."""

    def query_raw(self, text: str, parameters: dict[str, Any], /) -> dict[str, Any]:
        """The answer to statements, with the result of each or an error."""

    def query_encoded(self, text: str, parameters: dict[str, Any], /) -> bytes:
        """The same answer in CBOR."""

    def snapshot(self) -> str | None:
        """The text of a snapshot of the database's files, None where the other side takes none."""

    def close(self) -> None:
        """Leave; a second call does nothing."""


class _OwnEngine:
    """An engine of this process."""

    def __init__(
        self, engine: StoreEngine, leave: Callable[[], None], take_snapshot: Callable[[], str] | None = None
    ) -> None:
        self._engine = engine
        self._leave = leave
        self._take_snapshot = take_snapshot
        self._session = Session(NAMESPACE, DATABASE)

    def query_raw(self, text: str, parameters: dict[str, Any], /) -> dict[str, Any]:
        """See `StoreChannel`."""
        answer = decoded_answer(self.query_encoded(text, parameters))
        return answer if isinstance(answer, dict) else {}

    def query_encoded(self, text: str, parameters: dict[str, Any], /) -> bytes:
        """See `StoreChannel`. A parameter may be `Encoded`."""
        return self._engine.execute(self._session, query(text, parameters))

    def snapshot(self) -> str | None:
        """See `StoreChannel`. A database in memory has no files."""
        return None if self._take_snapshot is None else self._take_snapshot()

    def close(self) -> None:
        """See `StoreChannel`."""
        leave, self._leave = self._leave, _nothing
        leave()


class ServerChannel(BlockingWsSurrealConnection):
    """A server of SurrealDB, reached over the network."""

    def query_encoded(self, text: str, parameters: dict[str, Any], /) -> bytes:
        """See `StoreChannel`. The SDK has decoded what the server encoded."""
        return encoded(self.query_raw(text, parameters))

    def snapshot(self) -> str | None:
        """See `StoreChannel`. Its files are another machine's."""
        return None


class Connection:
    """Raises `StoreError` from every method; `name` is how messages call the database.

    `where` is a folder, `mem://` or the address of a server. `patience`: for how many seconds a server, or the process
    that holds the folder, is tried again when it does not answer. It does not hold for the first contact with a server,
    which at once tells of a wrong address. `prepare` is called each time that this process has opened the database
    itself, before others may use it. `reads_only` asks the process that holds the folder for no more than to read.
    `listen` is for who serves a folder on purpose: it then never uses that of another process. `exclusive` is for who
    must have a folder alone: nobody is served meanwhile.
    """

    def __init__(
        self,
        where: str | Path,
        patience: float = PATIENCE,
        prepare: Callable[[Connection], None] | None = None,
        listen: Listen | None = None,
        say: Callable[[str], None] | None = None,
        reads_only: bool = False,
        exclusive: bool = False,
    ) -> None:
        self.name = url = str(where)
        self.remote = url.startswith(("ws://", "wss://"))
        self.folder: Path | None = None
        if not self.remote and url != "mem://":
            if "://" in url:
                raise StoreError(f"store {url}: give a folder, 'mem://' or the 'ws://' address of a server")
            self.folder = Path(where).absolute()
        self.holding: FolderHolding | None = None
        self._url = url
        self._patience = patience
        self._prepare = prepare
        self._listen = listen
        self._say = say
        self._reads_only = reads_only
        self._exclusive = exclusive
        self._identity: str | None = None
        self._one_at_a_time = threading.RLock()  # `prepare` asks while it is held
        self._closed = threading.Event()
        self._down_since: float | None = None  # on the monotonic clock
        self._warned = False
        self._channel: StoreChannel | None = None
        if self.remote:
            _credentials(url)
        _connections.add(self)
        self._first_contact()

    @property
    def keeps_files(self) -> bool:
        """Whether there is a place for files: not with a store in memory."""
        return self.folder is not None or self.remote

    @cached_property
    def objects(self) -> ObjectStore:
        """Where the contents of the files of runs are. Raises `StoreError` for a store in memory."""
        if self.keeps_files and (bucket := self.bucket()) is not None:
            return BucketObjects(bucket, self._patience)
        if self.folder is not None:
            return ObjectFolder(self.folder / OBJECTS_FOLDER)
        if self.remote:
            return RemoteObjects(self._url, environment_account(), NAMESPACE, DATABASE, self._patience)
        raise StoreError(f"store {self.name} keeps no files: give a folder")

    def bucket(self) -> str | None:
        """The bucket in which the files of runs lie; None where they lie beside the database."""
        (bucket,) = self.query("SELECT VALUE bucket FROM store:schema") or (None,)
        return None if bucket is None else str(bucket)

    @property
    def holds(self) -> bool:
        """Whether the database is open in this process, at the moment."""
        return isinstance(self._channel, _OwnEngine)

    def close(self) -> None:
        """Close the connection; a second call does nothing. A request that waits for the server waits no more."""
        self._closed.set()
        with self._one_at_a_time:
            self._drop()
            objects = self.__dict__.get("objects")
            if isinstance(objects, RemoteObjects):
                objects.close()

    def forget_inherited(self) -> None:
        """Begin anew in a process that was forked off: the channel belongs to its parent."""
        self._one_at_a_time = threading.RLock()
        self.holding = None
        if self._channel is not None:
            _inherited.append(self._channel)
            self._channel = None

    def remember(self, identity: str) -> None:
        """From now on refuse to go on with a store of another identity, should another answer at this address."""
        self._identity = identity

    def query(self, text: str, parameters: dict[str, Any] | None = None) -> Any:
        """Result of the last statement.

        A server or holder that does not answer is tried again until the patience ends. The SDK's own `query` would not
        notice that any statement but the first one failed.
        """
        return self._asked(lambda channel: channel.query_raw(text, parameters or {}), self._result)

    def query_encoded(self, text: str, parameters: dict[str, Any] | None = None) -> bytes:
        """Result of the only statement in CBOR, as the database encoded it: much cheaper than its values, which Python
        decodes slowly. A server's result is encoded by the SDK, whose bytes for the same values are others.

        Where the database is open in this process, a parameter may be `Encoded`.
        """

        def result(answer: bytes) -> bytes:
            found = only_result(answer)
            return encoded(self._result(decoded_answer(answer))) if found is None else found

        return self._asked(lambda channel: channel.query_encoded(text, parameters or {}), result)

    def snapshot(self) -> DatabaseSnapshot | None:
        """The files of the database as they are at this moment, for who copies them. None for a server's, for one in
        memory, and where another process holds the folder for a program that may write: open it with `reads_only`."""
        text = self._asked(lambda channel: channel.snapshot(), lambda found: found)
        return None if text is None or self.folder is None else DatabaseSnapshot.from_text(self.folder, text)

    def release_memory(self) -> None:
        """Let the engine forget what it keeps of all that was read, where this process has a folder's database open."""
        self._with_engine(StoreEngine.reopen)

    def release_merged(self) -> None:
        """Let it forget what it has merged, if it has; takes next to no time otherwise."""
        self._with_engine(StoreEngine.forget_merged)

    def _with_engine(self, act: Callable[[StoreEngine], object]) -> None:
        with self._one_at_a_time:
            if self.holding is not None and self.holds:
                try:
                    act(self.holding.engine)
                except RuntimeError as error:
                    raise self._cannot_open(error) from error

    def _asked(self, send: Callable[[StoreChannel], AnswerT], result: Callable[[AnswerT], ResultT]) -> ResultT:
        with self._one_at_a_time:
            pause = _FIRST_PAUSE if self.folder is None else _FIRST_PAUSE_FOLDER
            while True:
                if self._closed.is_set():
                    raise StoreError(f"store {self.name} is closed")
                try:
                    return result(self._once(send))
                except _Again as error:
                    self._wait(error, pause, self._patience)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _first_contact(self) -> None:
        pause = _FIRST_PAUSE_FOLDER
        while True:
            try:
                self._channel = self._dial()
                self._down_since, self._warned = None, False
                return
            except _Again as error:
                self._wait(error, pause, min(self._patience, HOLDER_PATIENCE))
            except _FAILURES as error:
                if not _is_full(error):
                    raise self._cannot_open(error) from error
                self._wait(_Full(_TOO_MANY), pause, min(self._patience, HOLDER_PATIENCE))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _once(self, send: Callable[[StoreChannel], AnswerT]) -> AnswerT:
        try:
            if self._channel is None:
                self._channel = self._dial()
                self._recognise()
            answer = send(self._channel)
        except _FAILURES as error:
            if not self.holds:
                self._drop()
                closed = error if isinstance(error, ConnectionClosed) else error.__cause__
                if isinstance(closed, ConnectionClosed) and closed.rcvd is not None and closed.rcvd.code == _TOO_LARGE:
                    raise StoreError(f"store {self.name}: a record is larger than the server takes") from error
                if _is_full(error):
                    raise _Full(_TOO_MANY) from error
                if isinstance(error, _UNREACHABLE):
                    raise _Again(str(error) or type(error).__name__) from error
            raise self._failed(str(error)) from error
        except BaseException:  # Ctrl-C: an answer may still come, and the next request would take it for its own
            if not self.holds:
                self._drop()
            raise
        self._down_since, self._warned = None, False
        return answer

    def _result(self, response: dict[str, Any]) -> Any:
        if "result" not in response:
            error = response.get("error")
            raise self._failed(str(error.get("message", error) if isinstance(error, dict) else error))
        failures = [str(statement["result"]) for statement in response["result"] if statement["status"] != "OK"]
        if failures:
            # The other statements of a failed transaction only say that they were not executed.
            reason = next((text for text in failures if "not executed" not in text), failures[0])
            if any(_TRY_AGAIN in text for text in failures):
                raise _Busy(reason)
            raise self._failed(reason)
        return response["result"][-1]["result"]

    def _wait(self, reason: _Again, pause: float, patience: float) -> None:
        """Wait for the next try, or give up: the outage is everybody's, so its time is not counted anew per request."""
        now = time.monotonic()
        if self._down_since is None:
            self._down_since = now
        elapsed = now - self._down_since
        # A transaction that met another is over at once, nearly always, and so is the change of a folder's holder.
        quiet = isinstance(reason, _Busy) or (self.folder is not None and elapsed < _UNNOTICED)
        if not quiet and not self._warned:
            self._warned = True
            _log.warning("store %s: %s; trying again for up to %.0f seconds", self.name, reason, patience)
        if elapsed >= patience:
            raise self._given_up(reason, elapsed)
        self._closed.wait(min(pause, patience - elapsed))

    def _given_up(self, reason: _Again, elapsed: float) -> StoreError:
        if isinstance(reason, _Full):
            return StoreError(
                f"store {self.name}: {reason}, and for {elapsed:.0f} seconds none has left: end some of the programs "
                "that use it, or let the process that serves it open more files (ulimit -n)"
            )
        if not isinstance(reason, _Held):
            return StoreError(
                f"store {self.name} has not answered for {elapsed:.0f} seconds ({reason}): start its server again, "
                "then this program; what it had stored is kept"
            )
        end = f"end it (kill {reason.holder.process})" if reason.holder.process else "end it"
        return StoreError(
            f"store {self.name} is in use by {reason.holder}, and has not answered for {elapsed:.0f} seconds "
            f"({reason}): wait if that one is at work on opening it, else {end}; what it had stored is kept"
        )

    def _recognise(self) -> None:
        """Whether it is still the same store: another one would take our records without a word."""
        if self._identity is None or self._channel is None:
            return
        response = self._channel.query_raw(
            "IF (INFO FOR DB).tables.store { SELECT VALUE identity FROM ONLY store:schema } ELSE { NONE }", {}
        )
        if self._result(response) != self._identity:
            self._drop()
            raise StoreError(
                f"store {self.name}: another store answers at this address than before; start the server with the "
                "folder that it had, or start this program again"
            )

    def _dial(self) -> StoreChannel:
        """A channel that uses our database, signed in where it must be."""
        if self.remote:
            return self._dial_server()
        if self.folder is None:
            engine = StoreEngine(self._url)
            channel = _OwnEngine(engine, engine.close)
            try:
                self._open_own(channel)
            except BaseException:
                channel.close()
                raise
            return channel
        try:
            return self._hold(self.folder)
        except FolderHeld as held:
            if self._exclusive:
                raise StoreError(f"{held}: end that one first") from held
            if self._listen is not None:
                raise StoreError(
                    f"{held}: programs on this machine reach the store through that one, as --store {self.name}; to "
                    "serve it here, end that one first"
                ) from held
            return self._dial_holder(self.folder, held)

    def _hold(self, folder: Path) -> StoreChannel:
        def prepare(holding: FolderHolding) -> None:
            self._open_own(_OwnEngine(holding.engine, _nothing))

        try:
            self.holding = holding = hold(folder, folder_url(folder), prepare, self._listen, self._say, self._exclusive)
        except RuntimeError as error:
            if LOCKED in str(error):
                raise _Again("another process has the database open") from error
            raise
        return _OwnEngine(holding.engine, holding.leave, lambda: holding.snapshot().text())

    def _open_own(self, channel: StoreChannel) -> None:
        """Prepare a database that this process has just opened."""
        self._channel = channel
        try:
            self._recognise()
            if self._prepare is not None:
                self._prepare(self)
        finally:
            self._channel = None

    def _dial_holder(self, folder: Path, held: FolderHeld) -> StoreChannel:
        """A channel to the process that holds the folder."""
        found = address.find(folder, held.holder.launch)
        if found is None:
            raise _Held(held, "it does not serve it yet") from held
        try:
            return GatewayClient(found.url, found.reader if self._reads_only else found.writer, NAMESPACE, DATABASE)
        except (SignInRefused, OSError, WebSocketException, ValueError) as error:
            raise _Held(held, _TOO_MANY if _is_full(error) else str(error) or type(error).__name__) from error

    def _dial_server(self) -> StoreChannel:
        # Whole answers, as the gateway gives: an answer in frames is of use only for results larger than ours.
        raw = ServerChannel(self._url, streaming=False)
        try:
            if (credentials := _credentials(self._url)) is not None:
                raw.signin({"username": credentials[0], "password": credentials[1]})
            raw.use(NAMESPACE, DATABASE)
        except BaseException:
            _close(raw)
            raise
        return raw

    def _drop(self) -> None:
        channel, self._channel = self._channel, None
        self.holding = None
        if channel is not None:
            _close(channel)

    def _failed(self, reason: str) -> StoreError:
        if DISK_TROUBLE in reason:
            return StoreDiskError(f"store {self.name}: {reason}; {_DISK_ADVICE}")
        return StoreError(f"store {self.name}: {reason}")

    def _cannot_open(self, error: Exception) -> StoreError:
        if self.remote:
            advice = (
                f"is the server running, and are {USER_VARIABLE} and {PASSWORD_VARIABLE} right? A store that a program "
                "of this machine has in a folder is reached by the name of that folder, without either"
            )
        elif DISK_TROUBLE in str(error):
            return StoreDiskError(f"store {self.name} cannot be opened: {error}; {_DISK_ADVICE}")
        else:
            advice = "if it was damaged, put back a backup, or move it away and give an empty folder"
        return StoreError(f"store {self.name} cannot be opened: {error}; {advice}")


class _Again(Exception):
    """The request may succeed if it is sent again."""


class _Busy(_Again):
    """It met another one in the server."""


class _Full(_Again):
    """The store has as many clients as it takes."""


class _Held(_Again):
    """The process that holds the folder could not be reached."""

    def __init__(self, held: FolderHeld, reason: str) -> None:
        super().__init__(reason)
        self.holder = held.holder


def folder_url(folder: str | Path) -> str:
    """The address by which the embedded engine opens a folder. Raises `StoreError` for a path that it would misread."""
    path = Path(folder).absolute() / DATABASE_FOLDER
    if "?" in str(path):  # it would open the folder whose name ends there, which other stores may share
        raise StoreError(f"store {folder}: the engine cannot use a path with '?' in it ({path}); choose another folder")
    return f"surrealkv://{path}"


def _is_full(error: BaseException | None) -> bool:
    """Whether a gateway has refused a connection because it has too many: not for who asks or how."""
    while error is not None:
        if isinstance(error, InvalidStatus):
            return error.response.status_code == HTTPStatus.SERVICE_UNAVAILABLE
        error = error.__cause__ or error.__context__
    return False


def _credentials(url: str) -> tuple[str, str] | None:
    if "@" in urlsplit(url).netloc:
        raise StoreError(
            f"the address of the store holds a user or a password: give it without, and set {USER_VARIABLE} and "
            f"{PASSWORD_VARIABLE} in the environment"
        )
    account = environment_account()
    return None if account is None else (account.user, account.password)


def _close(channel: StoreChannel) -> None:
    try:
        channel.close()
    except _FAILURES as error:  # it is of no more use, and what it had acknowledged is stored
        _log.debug("closing the connection: %s", error)


def _nothing() -> None:
    pass


# A forked process has the memory of its parent and none of its threads, so it finds its own way to the store.
_connections: weakref.WeakSet[Connection] = weakref.WeakSet()
_inherited: list[StoreChannel] = []  # neither used nor closed here: they belong to the parent


def _dial_anew() -> None:
    for connection in tuple(_connections):
        connection.forget_inherited()


os.register_at_fork(after_in_child=_dial_anew)
