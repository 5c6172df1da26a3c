"""The embedded engine of one database, shared by all of a process: its own stores and the clients of its gateway.

The engine knows a single session and one request runs at a time, so each request is preceded by what makes the session
that of its sender. While the engine works, other threads of the process go on: it does not hold the interpreter's lock.
"""

from __future__ import annotations

import gc
import os
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from surrealdb.data.cbor import decode, encode
from surrealdb_embedded import SyncEmbeddedDB

from backend.store.gateway.rpc_messages import request

NAMESPACE = "cryptosentinel"
DATABASE = "main"
_READER = "gateway_reader"
# The longest seen: some 25 s, of 845 MB whose tables were merged meanwhile on a busy machine.
ENGINE_OPENING_SECONDS = 300.0
# Where the disk is full while a database is made, the engine has sometimes never answered one of its first requests.
ENGINE_ANSWER_SECONDS = 60.0
_FIRST_REQUESTS = 8

# A forked child has none of the engine's threads. To drop an engine of its parent there would wait for them for ever,
# and Python drops whatever it finds to be garbage: so all that the parent had stays.
os.register_at_fork(after_in_child=gc.freeze)

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
        self._database = _opened(url)
        self._on_answer = on_answer
        self._one_at_a_time = threading.Lock()
        self._place: tuple[str | None, str | None] = (None, None)
        self._variables: dict[str, bytes] = {}
        self._reader: UUID | None = None
        self._asked = 0
        self.stuck = False  # it owes an answer that no longer comes

    def close(self) -> None:
        """Close the database, after what it is at; a second call does nothing, nor one when it is stuck."""
        with self._one_at_a_time:
            if not self.stuck:
                self._database.close()

    def reopen(self) -> None:
        """Close a database in a folder and open it again, between two requests: what the engine keeps in memory of all
        that was read grows up to half of the machine's, and it has no other way to let go of it
        (surrealdb-embedded 3.0.0b10). Raises RuntimeError in the engine's words, and is closed then."""
        with self._one_at_a_time:
            self._database.close()
            self._place, self._variables, self._reader = (None, None), {}, None
            self._database = _opened(self._url)

    def execute(self, session: Session, message: bytes) -> bytes:
        """The answer to one request. Raises RuntimeError or ValueError with the engine's words, and `EngineStuck`."""
        with self._one_at_a_time:
            place = (session.namespace, session.database)
            if place != self._place:
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
        """The database's answer. A stuck one is asked nothing more, neither closed nor dropped: that would wait."""
        if self._asked >= _FIRST_REQUESTS and not self.stuck:
            return bytes(self._database.execute(message))
        self._asked += 1
        if not self.stuck:
            try:
                return bytes(_in_time(lambda: self._database.execute(message), ENGINE_ANSWER_SECONDS))
            except TimeoutError:
                self.stuck = True
                _given_up.append(self._database)
        raise EngineStuck(f"the database engine {NO_ANSWER} for {ENGINE_ANSWER_SECONDS:g} seconds")

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
        answer = decode(self._database.execute(_encoded(method, parameters, session)))
        failed = answer.get("error") or (method == "query" and answer["result"][0]["status"] != "OK")
        if failed:
            raise RuntimeError(f"the database offers no account that only reads ({method})")


NO_ANSWER = "has not answered"
_given_up: list[SyncEmbeddedDB] = []


class EngineStuck(RuntimeError):
    """The engine has not opened a database in time, or not answered. It may still be at it: only the end of the process
    ends that."""


def _opened(url: str) -> SyncEmbeddedDB:
    """A database of the engine, opened in a thread that is given up after `ENGINE_OPENING_SECONDS`: once, of thousands,
    an opening did not return (surrealdb-embedded 3.0.0b10; the cause is not known). Raises RuntimeError."""
    database = SyncEmbeddedDB(url)
    try:
        _in_time(database.connect, ENGINE_OPENING_SECONDS)
    except TimeoutError:
        _given_up.append(database)
        raise EngineStuck(f"the database engine has not opened it for {ENGINE_OPENING_SECONDS:g} seconds") from None
    return database


def _in_time(call: Callable[[], Any], seconds: float) -> Any:
    """What `call` returns or raises, in a thread of its own. Raises TimeoutError where that takes longer."""
    ended = threading.Event()
    outcomes: list[Any] = []
    failures: list[Exception] = []

    def work() -> None:
        try:
            outcomes.append(call())
        except (RuntimeError, ValueError, OSError) as error:
            failures.append(error)
        finally:
            ended.set()

    threading.Thread(target=work, name="store engine", daemon=True).start()
    try:
        in_time = ended.wait(seconds)
    except BaseException:  # Ctrl-C: one request at a time, also then
        ended.wait(seconds)
        raise
    if not in_time:
        raise TimeoutError
    if failures:
        raise failures[0]
    return outcomes[0]


def _encoded(method: str, parameters: list[Any], session: UUID | None, identity: Any = "store") -> bytes:
    place = {} if session is None else {"session": session}
    return bytes(encode({"id": identity, "method": method, "params": parameters, **place}))
