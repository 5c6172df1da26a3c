"""The store of a folder, served by its holder to the other programs of this user on this machine.

A Unix socket in a private folder (mode 0700) carries requests and answers as bytes, in the database's CBOR. Both sides
prove that they know a key of 32 random bytes, which only this user can read in `FOLDER/socket/address.json`. Messages
are never objects of Python: `send` and `recv` of `multiprocessing.connection` would unpickle, and so run, whatever
arrives.

The socket lies in a temporary folder because its path may have no more than some hundred bytes.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, answer_challenge, deliver_challenge
from pathlib import Path

from backend.store.errors import StoreError

MOST_BYTES = 256 * 2**20  # of one request
OPENING_SECONDS = 20.0  # in which the holder must answer a program that connects
ANSWER_SECONDS = 120.0  # in which it must answer a request
_ENDING_SECONDS = 10.0  # for the requests under way when the holder closes the store
_FOLDER, _FILE = "socket", "address.json"
_PREFIX, _SOCKET = "cs-store-", "s"
_LONGEST_PATH = 60  # bytes of the temporary folder: with our own names the socket's path stays below 100
_DONE, _FAILED = b"+", b"-"

_log = logging.getLogger(__name__)

_Answer = Callable[[bytes], bytes]


class HolderFailed(Exception):
    """The holder could not carry out a request; the message is the engine's."""


@dataclass(frozen=True)
class Address:
    """Where the holder listens, and the key that both sides must know."""

    path: str
    key: bytes = field(repr=False)


class LocalServer:
    """Serves `answer`, which takes a request and may raise StoreError, RuntimeError or ValueError, until `stop`."""

    def __init__(self, folder: Path, answer: _Answer) -> None:
        """Raises `OSError` where there is no place for a socket or its address."""
        self._folder, self._answer = folder, answer
        self._place = _private_folder()
        self._key = secrets.token_bytes(32)
        self._clients: dict[Connection, threading.Thread] = {}
        self._changing = threading.Lock()
        self._stopping = False
        with ExitStack() as undo:
            undo.callback(shutil.rmtree, self._place, ignore_errors=True)
            self._listener = undo.enter_context(Listener(str(self._place / _SOCKET), "AF_UNIX", backlog=64))
            _publish(folder, Address(str(self._place / _SOCKET), self._key))
            undo.pop_all()
        self._thread = threading.Thread(target=self._accept, name="store server", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take no more requests, and answer those under way. A second call does nothing."""
        if self._stopping:
            return
        self._stopping = True
        with suppress(OSError):  # wakes the thread that waits for a client
            Client(str(self._place / _SOCKET), "AF_UNIX").close()
        self._thread.join(_ENDING_SECONDS)
        with suppress(OSError):
            self._listener.close()  # which also removes the socket
        withdraw(self._folder)
        with self._changing:
            clients = dict(self._clients)
        for client in clients:
            with suppress(OSError), socket.socket(fileno=os.dup(client.fileno())) as ours:
                ours.shutdown(socket.SHUT_RD)  # an answer may still go out
        until = time.monotonic() + _ENDING_SECONDS
        for thread in clients.values():
            thread.join(max(0.0, until - time.monotonic()))
        shutil.rmtree(self._place, ignore_errors=True)

    def _accept(self) -> None:
        while not self._stopping:
            try:
                client = self._listener.accept()
            except OSError as error:  # as where this process may open no more files
                _log.warning("store %s: a program could not be served: %s", self._folder, error)
                time.sleep(0.1)
                continue
            thread = threading.Thread(target=self._attend, args=(client,), name="store client", daemon=True)
            with self._changing:
                self._clients[client] = thread
            thread.start()

    def _attend(self, client: Connection) -> None:
        try:
            deliver_challenge(client, self._key)
            answer_challenge(client, self._key)
            while not self._stopping:
                client.send_bytes(self._answered(client.recv_bytes(MOST_BYTES)))
        except AuthenticationError:
            _log.warning("store %s: refused a program that does not know the key", self._folder)
        except (EOFError, OSError) as error:
            _log.debug("store %s: a client has gone: %s", self._folder, error)
        finally:
            with self._changing:
                self._clients.pop(client, None)
            client.close()

    def _answered(self, request: bytes) -> bytes:
        try:
            return _DONE + self._answer(request)
        except (StoreError, RuntimeError, ValueError) as error:
            return _FAILED + str(error).encode(errors="replace")


class LocalClient:
    """A connection to the holder at an address, for one thread at a time.

    Every method raises OSError (a time limit included), EOFError or AuthenticationError if the holder does not answer,
    and is of no use then.
    """

    def __init__(self, address: Address) -> None:
        self._connection = Client(address.path, "AF_UNIX")
        try:
            self._wait(OPENING_SECONDS)
            answer_challenge(self._connection, address.key)
            deliver_challenge(self._connection, address.key)
        except BaseException:
            self.close()
            raise

    def ask(self, request: bytes) -> bytes:
        """The answer to a request. Raises `HolderFailed`, and `StoreError` for a request that is too large."""
        if len(request) > MOST_BYTES:
            raise StoreError(f"a request of {len(request):,} bytes is more than the {MOST_BYTES:,} that a store takes")
        self._connection.send_bytes(request)
        self._wait(ANSWER_SECONDS)
        answer = self._connection.recv_bytes()
        if answer[:1] != _DONE:
            raise HolderFailed(answer[1:].decode(errors="replace"))
        return answer[1:]

    def close(self) -> None:
        """Leave; a second call does nothing."""
        self._connection.close()

    def _wait(self, seconds: float) -> None:
        if not self._connection.poll(seconds):
            raise TimeoutError(f"no answer for {seconds:.0f} seconds")


def find(folder: Path) -> Address | None:
    """The address that is published in a folder; None where there is none. That of a holder that was killed leads
    nowhere, until the next holder replaces it. Raises `StoreError` for a file that this user did not write or that
    others can read.
    """
    path = folder / _FOLDER / _FILE
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _foreign(path, error.strerror) from error
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise _foreign(path, "not a file that only this user can read")
        try:
            found = json.loads(file.read(4096))
            return Address(str(found["path"]), bytes.fromhex(found["key"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            return None


def withdraw(folder: Path) -> None:
    """Remove the address in a folder, and the socket of a holder that was killed. Raises `StoreError` as `find`."""
    address = find(folder)
    if address is not None and (place := Path(address.path).parent).name.startswith(_PREFIX):
        for remove, name in ((os.unlink, Path(address.path)), (os.rmdir, place)):
            with suppress(OSError):
                remove(name)
    (folder / _FOLDER / _FILE).unlink(missing_ok=True)


def _publish(folder: Path, address: Address) -> None:
    """Write the address into the folder, readable by this user alone from the first moment. Raises `OSError`."""
    private = folder / _FOLDER
    private.mkdir(mode=0o700, exist_ok=True)
    os.chmod(private, 0o700)
    unfinished = private / f"{_FILE}.tmp"
    unfinished.unlink(missing_ok=True)
    document = {"path": address.path, "key": address.key.hex()}
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        json.dump(document, file)
    os.replace(unfinished, private / _FILE)


def _private_folder() -> Path:
    """A new folder of this user alone (mode 0700) with a short path. Raises `OSError`."""
    places = (os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp")
    short = [place for place in places if place and len(os.fsencode(place)) <= _LONGEST_PATH]
    for place in short:
        with suppress(OSError):
            return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    raise OSError(f"no folder for temporary files is writable and has a path of {_LONGEST_PATH} bytes or less")


def _foreign(path: Path, what: str | None) -> StoreError:
    return StoreError(
        f"{path} cannot be trusted ({what}): end the program that holds the store, remove the file, start again"
    )
