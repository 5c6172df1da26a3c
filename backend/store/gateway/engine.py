"""The embedded engine of one database, shared by all of a process: its own stores and the clients of its gateway.

The engine knows a single session and one request runs at a time, so each request is preceded by what makes the session
that of its sender. It holds the interpreter's lock while it works (surrealdb-embedded 3.0.0b10, tried): meanwhile no
other thread of the process goes on, and no time limit and no Ctrl-C is noticed. So no request may take long, and none
may be made that the engine never answers.
"""

from __future__ import annotations

import ctypes
import gc
import os
import secrets
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID, uuid4

from surrealdb.data.cbor import decode
from surrealdb_embedded import SyncEmbeddedDB

from backend.store.gateway.cbor_writer import encoded
from backend.store.gateway.rpc_messages import DISK_TROUBLE, request

NAMESPACE = "cryptosentinel"
DATABASE = "main"
_READER = "gateway_reader"
_FOLDER = "surrealkv://"
_TABLES = "sstables"  # the folder of a database in which the engine has its tables
LARGE_TABLE = 32_000_000  # bytes, which the engine merges in half a second
_OPENINGS_TO_MERGE = 4  # it merges when it finds so many new tables, and each opening leaves a small one
_MOST_OPENINGS = 12  # to merge in: 840 MB took two, and then the four in which nothing moves
_ROOM = 200_000  # bytes; all that a new store defines takes 40 kB
_DEFINITIONS = (b"DEFINE ", b"REMOVE ")
HUNG_SECONDS = 120.0  # after which an opening hangs; 200,000 trajectories open in less than one
# Arguments: seconds, what to say, whom to end. Its input is a pipe that ends when the opening has, or we have.
_WATCHDOG = """exec 3<&0 4>&2 2> /dev/null
sleep "$1" & alarm=$!
{ cat <&3 > /dev/null; kill "$alarm"; } &
if wait "$alarm"; then printf '%s\\n' "$2" >&4; kill -KILL "$3"; fi"""

# A forked child has none of the engine's threads. To drop an engine of its parent there would wait for them for ever,
# and Python drops whatever it finds to be garbage: so all that the parent had stays.
os.register_at_fork(after_in_child=gc.freeze)

DoneT = TypeVar("DoneT")
# Is called with each request that the engine has answered and with the answer, before its sender gets it.
OnAnswer = Callable[[bytes, bytes], None]


@dataclass(eq=False)
class Session:
    """Where one user of the engine is, and its variables: its `let` requests by name."""

    namespace: str | None = None
    database: str | None = None
    variables: dict[str, bytes] = field(default_factory=dict)


class StoreEngine:
    """An open engine. Its methods may be called from any thread; `execute` runs one request at a time.

    All that is written to the database passes `execute`, whoever wrote it: `on_answer` sees every request there.
    """

    def __init__(self, url: str, on_answer: OnAnswer | None = None) -> None:
        """Open the database at `url`, as `surrealkv:///folder`. Raises RuntimeError in the engine's words."""
        self._url = url
        self._folder = Path(url.removeprefix(_FOLDER)) if url.startswith(_FOLDER) else None
        self._tables = self._tables_there()  # that the database was opened with
        self._written: set[str] = set()  # tables that were new at the last closing
        self._database = self._opened()
        self._on_answer = on_answer
        self._one_at_a_time = threading.Lock()
        self._place: tuple[str | None, str | None] = (None, None)
        self._variables: dict[str, bytes] = {}
        self._reader: UUID | None = None

    def close(self) -> None:
        """Close the database, after what it is at; a second call does nothing.

        Who has written much also has it merged. The engine writes what is new into one table when it is closed, and
        merges it at a later opening, with three small ones or, of 840 MB, alone and twice (surrealdb-embedded 3.0.0b10,
        tried: 8 s and 1.2 GB each time). That would be somebody's who only wants to look.
        """
        with self._one_at_a_time:
            self._database.close()
            self._note_written()
            if self._large_tables() & self._written:
                self._merge()

    def _merge(self) -> None:
        """Open the closed database and close it again until the engine has no more to merge: it may move a large table
        from level to level, with each opening one."""
        openings = unchanged = 0
        while unchanged < _OPENINGS_TO_MERGE and openings < _MOST_OPENINGS and self._room_to_merge():
            before = self._large_tables()
            trim_memory()  # of what the last opening has merged
            try:
                self._database = self._opened()
            except RuntimeError:
                return  # it was closed in order: what is wrong now concerns who opens it next
            self._database.close()
            openings += 1
            unchanged = unchanged + 1 if self._large_tables() == before else 0

    def _note_written(self) -> None:
        """Remember which tables the opening that has just ended has left."""
        self._written |= self._tables_there() - self._tables

    def _room_to_merge(self) -> bool:
        """Whether the disk could hold all tables once more: the engine writes the merged ones before they go."""
        if self._folder is None:
            return False
        with os.scandir(self._folder / _TABLES) as entries:
            return sum(entry.stat().st_size for entry in entries) < shutil.disk_usage(self._folder).free

    def _large_tables(self) -> set[str]:
        if self._folder is None:
            return set()
        with suppress(FileNotFoundError), os.scandir(self._folder / _TABLES) as entries:
            return {entry.name for entry in entries if entry.stat().st_size > LARGE_TABLE}
        return set()

    def reopen(self) -> None:
        """Close a database in a folder and open it again, between two requests: what the engine keeps in memory of all
        that was read grows up to half of the machine's, and it has no other way to let go of it
        (surrealdb-embedded 3.0.0b10). Raises RuntimeError in the engine's words, and is closed then."""
        self.while_closed(trim_memory)

    def forget_merged(self) -> bool:
        """Open a database in a folder anew if the engine has merged its tables since it was opened, and whether it
        had. It merges them when it finds four new ones, and what it has merged, which is nearly all of the database,
        stays in memory until it is closed (surrealdb-embedded 3.0.0b10, tried: 82 MB, for a table of 82). Raises as
        `reopen` does. Takes a look at a folder where nothing was merged."""
        with self._one_at_a_time:
            merged = not self._tables <= self._tables_there()
        if merged:
            self.reopen()
            trim_memory()  # a closed engine frees some of it only a moment later
        return merged

    def _tables_there(self) -> set[str]:
        if self._folder is None:
            return set()
        with suppress(FileNotFoundError):  # a new database has none
            return set(os.listdir(self._folder / _TABLES))
        return set()

    def while_closed(self, act: Callable[[], DoneT]) -> DoneT:
        """Do something with the files of a database in a folder, between two requests: it is closed before and opened
        again after. Raises as `reopen` and `act` do."""
        with self._one_at_a_time:
            self._database.close()
            self._note_written()
            self._place, self._variables, self._reader = (None, None), {}, None
            try:
                return act()
            finally:
                self._tables = self._tables_there()
                self._database = self._opened()

    def _opened(self) -> SyncEmbeddedDB:
        """The database, open. Raises RuntimeError; see `ended_after` for an opening that does not end."""
        with ended_after(HUNG_SECONDS, self._folder) if self._folder and self._tables else nullcontext():
            database = SyncEmbeddedDB(self._url)
            database.connect()
        return database

    def execute(self, session: Session, message: bytes) -> bytes:
        """The answer to one request. Raises RuntimeError or ValueError with the engine's words."""
        with self._one_at_a_time:
            place = (session.namespace, session.database)
            if place != self._place:
                self._require_room()  # the engine makes a database where there is none yet
                self._answer(request("use", [*place]))
                self._place = place
            if session.variables != self._variables:
                for name in self._variables:
                    self._answer(request("unset", [name]))
                for let in session.variables.values():
                    self._answer(let)
                self._variables = dict(session.variables)
            answer = self._answer(message)
            if self._on_answer is not None:
                self._on_answer(message, answer)
            return answer

    def _answer(self, message: bytes) -> bytes:
        if any(word in message for word in _DEFINITIONS):
            self._require_room()
        return bytes(self._database.execute(message))

    def _require_room(self) -> None:
        """Raises RuntimeError where the disk is full. The engine says so of records that it cannot write, but never
        answers a request that makes or changes a definition then (surrealdb-embedded 3.0.0b10, tried)."""
        if self._folder is None:
            return
        try:
            with tempfile.TemporaryFile(dir=self._folder.parent) as file:
                os.posix_fallocate(file.fileno(), 0, _ROOM)
        except OSError as error:
            raise RuntimeError(f"{DISK_TROUBLE}: {error.strerror}") from error

    def read(self, text: str, parameters: dict[str, Any], identity: Any = "store") -> bytes:
        """The answer to statements that may only look at our database. The engine itself refuses all else to them, as
        they run in a session of a user of the database with the role VIEWER. `identity` is
        that of the sender's request. Raises as `execute` does."""
        with self._one_at_a_time:
            if self._reader is None:
                self._reader = self._viewer_session()
            return bytes(self._database.execute(_encoded("query", [text, parameters], self._reader, identity)))

    def _viewer_session(self) -> UUID:
        """A second session, signed in with a password that nobody learns and that no longer holds after this launch."""
        session, password = uuid4(), secrets.token_urlsafe(32)
        self._place = (NAMESPACE, DATABASE)
        self._require("use", [*self._place])
        self._require("query", [f"DEFINE USER OVERWRITE {_READER} ON DATABASE PASSWORD '{password}' ROLES VIEWER", {}])
        self._require("attach", [], session)
        self._require("signin", [{"NS": NAMESPACE, "DB": DATABASE, "user": _READER, "pass": password}], session)
        return session

    def _require(self, method: str, parameters: list[Any], session: UUID | None = None) -> None:
        answer = decode(self._answer(_encoded(method, parameters, session)))
        error = answer.get("error")
        if error is None and method == "query" and answer["result"][0]["status"] != "OK":
            error = answer["result"][0]["result"]
        if error is not None:
            reason = error.get("message", error) if isinstance(error, dict) else error
            raise RuntimeError(f"the database offers no account that only reads ({method}: {reason})")


@contextmanager
def ended_after(seconds: float, folder: Path) -> Iterator[None]:
    """End this process with one sentence if what is done meanwhile with the database in `folder` takes longer than
    `seconds`. Once in many thousand openings the engine never returned (surrealdb-embedded 3.0.0b10, with four tables;
    its threads all waited), with the interpreter's lock held: no thread of ours goes on then, and no Ctrl-C is noticed.
    SIGKILL, as nothing else reaches such a process; a store survives it at any moment. Takes some milliseconds."""
    sentence = (
        f"the database in {folder} did not open within {seconds:g} s: its engine hangs, which is very rare. "
        "This process was ended; nothing that was stored is lost. Start it again"
    )
    command = ["sh", "-c", _WATCHDOG, "watchdog", str(seconds), sentence, str(os.getpid())]
    # In a session of its own: a Ctrl-C in the terminal would end it, and not us.
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as watchdog:
        assert watchdog.stdin is not None
        with watchdog.stdin:
            yield


def _encoded(method: str, parameters: list[Any], session: UUID | None, identity: Any = "store") -> bytes:
    place = {} if session is None else {"session": session}
    return encoded({"id": identity, "method": method, "params": parameters, **place})


def trim_memory() -> None:
    """Give the machine what the C library keeps of freed memory. It holds most of what a closed engine has freed: 250
    MB where 85 are in use. Other libraries than glibc have no such call."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
