"""A connection to the database: the embedded engine, or a server that may go away for a while.

One request runs at a time, so no transaction meets another one. Whether a request whose answer got lost was carried out
cannot be known, so it is sent again; hence every statement given to `query` must do no harm when it runs twice.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any
from urllib.parse import urlsplit

from surrealdb import BlockingEmbeddedSurrealConnection, BlockingWsSurrealConnection
from surrealdb.errors import SurrealError, TransportError, UnexpectedResponseError
from websockets.exceptions import ConnectionClosed, WebSocketException

from backend.store.errors import StoreError

NAMESPACE = "cryptosentinel"
DATABASE = "main"
USER_VARIABLE = "CRYPTOSENTINEL_STORE_USER"
PASSWORD_VARIABLE = "CRYPTOSENTINEL_STORE_PASSWORD"
PATIENCE = 90.0

# The way to a server is broken; everything else that the SDK raises is an answer.
_UNREACHABLE = (TransportError, UnexpectedResponseError, OSError, WebSocketException)
# What the SDK raises in all: RuntimeError comes from the embedded engine, where the SDK does not translate it.
_FAILURES = (SurrealError, RuntimeError, OSError, WebSocketException)
_TRY_AGAIN = "can be retried"  # so a server ends its message about transactions that met

_TOO_LARGE = 1009  # the WebSocket's code

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 3.0
_DISK_ADVICE = "is the disk full? Free some space and start again: what was stored until now is still there"

_log = logging.getLogger(__name__)


class Connection:
    """Raises `StoreError` from every method; `name` is how messages call the database.

    `patience`: for how many seconds a server that does not answer is tried again. It does not hold for the first
    contact, which is made on construction and at once tells of a wrong address.
    """

    def __init__(self, url: str, name: str, patience: float = PATIENCE) -> None:
        self.name = name
        self.remote = url.startswith(("ws://", "wss://"))
        self._url = url
        self._patience = patience
        self._identity: str | None = None
        self._one_at_a_time = threading.Lock()
        self._closed = threading.Event()
        self._down_since: float | None = None  # on the monotonic clock
        self._raw: BlockingWsSurrealConnection | None = None
        if self.remote:
            _credentials(url)
        try:
            self._raw = self._dial()
        except _FAILURES as error:
            raise self._cannot_open(error) from error

    def close(self) -> None:
        """Close the connection; a second call does nothing. A request that waits for the server waits no more."""
        self._closed.set()
        with self._one_at_a_time:
            self._drop()

    def remember(self, identity: str) -> None:
        """From now on refuse to go on with a store of another identity, should another answer at this address."""
        self._identity = identity

    def query(self, text: str, parameters: dict[str, Any] | None = None) -> Any:
        """Result of the last statement.

        A server that does not answer is tried again until the patience ends. The SDK's own `query` would not notice
        that any statement but the first one failed.
        """
        with self._one_at_a_time:
            pause = _FIRST_PAUSE
            while True:
                if self._closed.is_set():
                    raise StoreError(f"store {self.name} is closed")
                try:
                    return self._once(text, parameters)
                except _Again as error:
                    self._wait(error, pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _once(self, text: str, parameters: dict[str, Any] | None) -> Any:
        try:
            if self._raw is None:
                self._raw = self._dial()
                self._recognise()
            response = self._raw.query_raw(text, parameters)
        except _FAILURES as error:
            if self.remote:
                self._drop()
                closed = error if isinstance(error, ConnectionClosed) else error.__cause__
                if isinstance(closed, ConnectionClosed) and closed.rcvd is not None and closed.rcvd.code == _TOO_LARGE:
                    raise StoreError(f"store {self.name}: a record is larger than the server takes") from error
                if isinstance(error, _UNREACHABLE):
                    raise _Again(str(error) or type(error).__name__) from error
            raise self._failed(self._words(error)) from error
        except BaseException:  # Ctrl-C: an answer may still come, and the next request would take it for its own
            if self.remote:
                self._drop()
            raise
        self._down_since = None
        return self._result(response)

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

    def _wait(self, reason: _Again, pause: float) -> None:
        """Wait for the next try, or give up: the outage is everybody's, so its time is not counted anew per request."""
        now = time.monotonic()
        if self._down_since is None:
            self._down_since = now
            if not isinstance(reason, _Busy):  # which is over at once, nearly always
                _log.warning("store %s: %s; trying again for up to %.0f seconds", self.name, reason, self._patience)
        left = self._down_since + self._patience - now
        if left <= 0:
            raise StoreError(
                f"store {self.name} has not answered for {now - self._down_since:.0f} seconds ({reason}): start its "
                "server again, then this program; what it had stored is kept"
            )
        self._closed.wait(min(pause, left))

    def _recognise(self) -> None:
        """Whether it is still the same store: another one would take our records without a word."""
        if self._identity is None or self._raw is None:
            return
        response = self._raw.query_raw(
            "IF (INFO FOR DB).tables.store { SELECT VALUE identity FROM ONLY store:schema } ELSE { NONE }"
        )
        if self._result(response) != self._identity:
            self._drop()
            raise StoreError(
                f"store {self.name}: another store answers at this address than before; start the server with the "
                "folder that it had, or start this program again"
            )

    def _dial(self) -> BlockingWsSurrealConnection:
        """A connection that has signed in where it must and uses our database."""
        raw: BlockingWsSurrealConnection
        if self.remote:
            # Whole answers, as the gateway gives: an answer in frames is of use only for results larger than ours.
            raw = BlockingWsSurrealConnection(self._url, streaming=False)
        else:
            raw = BlockingEmbeddedSurrealConnection(self._url)
            raw.connect()
        try:
            if self.remote and (credentials := _credentials(self._url)) is not None:
                raw.signin({"username": credentials[0], "password": credentials[1]})
            raw.use(NAMESPACE, DATABASE)
        except BaseException:
            _close(raw)
            raise
        return raw

    def _drop(self) -> None:
        raw, self._raw = self._raw, None
        if raw is not None:
            _close(raw)

    def _failed(self, reason: str) -> StoreError:
        advice = f"; {_DISK_ADVICE}" if "IO error" in reason else ""
        return StoreError(f"store {self.name}: {reason}{advice}")

    def _words(self, error: Exception) -> str:
        """What the engine itself says, without the SDK's introduction."""
        return str(error if self.remote or error.__cause__ is None else error.__cause__)

    def _cannot_open(self, error: Exception) -> StoreError:
        if self.remote:
            advice = f"is the server running, and are {USER_VARIABLE} and {PASSWORD_VARIABLE} right?"
        elif "IO error" in str(error):
            advice = _DISK_ADVICE
        else:
            advice = "if it was damaged, move it away and give an empty folder"
        return StoreError(f"store {self.name} cannot be opened: {self._words(error)}; {advice}")


class _Again(Exception):
    """The request may succeed if it is sent again."""


class _Busy(_Again):
    """It met another one in the server."""


def environment_credentials() -> tuple[str, str] | None:
    """User and password from the environment, None where neither is set. Raises `StoreError` for one without the
    other."""
    user, password = os.environ.get(USER_VARIABLE, ""), os.environ.get(PASSWORD_VARIABLE, "")
    if not user and not password:
        return None
    if not user or not password:
        raise StoreError(f"{USER_VARIABLE} and {PASSWORD_VARIABLE} go together: set both or neither")
    return user, password


def _credentials(url: str) -> tuple[str, str] | None:
    if "@" in urlsplit(url).netloc:
        raise StoreError(
            f"the address of the store holds a user or a password: give it without, and set {USER_VARIABLE} and "
            f"{PASSWORD_VARIABLE} in the environment"
        )
    return environment_credentials()


def _close(raw: BlockingWsSurrealConnection) -> None:
    try:
        raw.close()
    except _FAILURES as error:  # it is of no more use, and what it had acknowledged is stored
        _log.debug("closing the connection: %s", error)
