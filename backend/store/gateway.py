"""The store of a folder, served to several processes: the embedded engine behind a WebSocket.

Clients speak the protocol of a SurrealDB server (sub-protocol `cbor`, one request and one answer a message), so an SDK
needs not know the difference. The engine takes these very messages, so most pass through unread; what concerns one
client alone (sign-in, its database, its variables) is kept here, because the engine knows a single session. Requests
run one at a time, so no transaction meets another one and has to be sent again.

Not offered, and answered with an error: live queries, sign-up, and transactions over several requests.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import logging
import secrets
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path

from surrealdb_embedded import SyncEmbeddedDB
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from backend.store.connection import PASSWORD_VARIABLE, USER_VARIABLE, environment_credentials
from backend.store.errors import StoreError
from backend.store.lock import FolderLock
from backend.store.rpc_messages import Malformed, engine_failed, failure, parsed, request, success, where_to
from backend.store.store import Store, folder_url
from simulator.errors import RunFailed

MOST_BYTES = 32 * 1024 * 1024  # of one message
MOST_BYTES_UNKNOWN = 64 * 1024  # of one message of who has yet to sign in
MOST_CLIENTS = 64
SIGN_IN_SECONDS = 10.0  # from connecting to having signed in
REFUSAL_SECONDS = 0.5  # what a wrong password costs who tries it
PARTING_SECONDS = 10.0  # for requests under way when the gateway is told to stop

_TO_ENGINE = frozenset({
    "query", "select", "create", "insert", "insert_relation", "update", "upsert", "merge", "patch", "delete", "relate",
    "run", "version", "ping", "info",
})  # fmt: skip
_SILENT = logging.getLogger("cryptosentinel.gateway.websockets")  # a port scan is not worth a traceback
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


@dataclass(eq=False)
class _Session:
    """What one client has said about itself. `variables` holds its `let` requests by name."""

    signed_in: bool
    namespace: str | None = None
    database: str | None = None
    variables: dict[str, bytes] = field(default_factory=dict)


class _Engine:
    """The embedded engine, one request at a time, each in the session of its client.

    The engine's blocking interface in a thread of its own: what its asynchronous one left behind could abort the
    process when the interpreter ended (SDK 2.0.0; not tried again on 3.0).
    """

    def __init__(self, database: SyncEmbeddedDB) -> None:
        self._database = database
        self._thread = ThreadPoolExecutor(1, "store engine")
        self._one_at_a_time = asyncio.Lock()
        self._place: tuple[str | None, str | None] = (None, None)
        self._variables: dict[str, bytes] = {}

    async def close(self) -> None:
        """Close the database, after what it is at."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._database.close)
        self._thread.shutdown()

    async def run(self, session: _Session, message: bytes) -> bytes:
        """The answer to one message. Raises RuntimeError or ValueError with the engine's own words."""
        async with self._one_at_a_time:
            place = (session.namespace, session.database)
            if place != self._place:
                await self._execute(request("use", [*place]))
                self._place = place
            if session.variables != self._variables:
                for name in self._variables:
                    await self._execute(request("unset", [name]))
                for let in session.variables.values():
                    await self._execute(let)
                self._variables = dict(session.variables)
            return await self._execute(message)

    async def _execute(self, message: bytes) -> bytes:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._database.execute, message)


class Gateway:
    """Serves an open database until `stop`, and closes it.

    `credentials` are those that a client must sign in with, None if it need not; `say` takes a line for the operator.
    """

    def __init__(
        self, database: SyncEmbeddedDB, credentials: tuple[str, str] | None, say: Callable[[str], None]
    ) -> None:
        self._engine = _Engine(database)
        self._credentials = credentials
        # Three parts, as SDKs expect of a token.
        self._token = ".".join(secrets.token_urlsafe(24) for _ in range(3))
        self._say = say
        self._clients = 0
        self._under_way = 0
        self._idle = asyncio.Event()
        self._stop = asyncio.Event()
        self._broken: str | None = None

    def stop(self) -> None:
        """Take no more requests, and end when those under way are answered."""
        self._stop.set()

    async def serve(self, host: str, port: int, started: Callable[[int], None]) -> None:
        """Serve until `stop`, calling `started` with the port once clients may come, and close the database.

        Raises `StoreError` if the port cannot be had, `RunFailed` if the database cannot go on.
        """
        try:
            await self._serve(host, port, started)
        finally:
            await self._engine.close()

    async def _serve(self, host: str, port: int, started: Callable[[int], None]) -> None:
        try:
            server = await serve(
                self._attend, host, port,
                subprotocols=[Subprotocol("cbor")], max_size=self._most_bytes(self._credentials is None),
                max_queue=1, compression=None, process_request=self._admit, logger=_SILENT,
            )  # fmt: skip
        except OSError as error:
            raise StoreError(_port_trouble(host, port, error)) from error
        started(next(iter(server.sockets)).getsockname()[1])
        await self._stop.wait()
        await self._part(server)
        if self._broken is not None:
            raise RunFailed(
                f"the store stopped: {self._broken}; is the disk full? Free some space and start it again: what was "
                "acknowledged is stored, and clients repeat the rest"
            )

    async def _part(self, server: Server) -> None:
        server.close(close_connections=False)
        if self._under_way:
            self._say(f"stopping: {self._under_way} requests under way")
            self._idle.clear()
            try:
                async with asyncio.timeout(PARTING_SECONDS):
                    await self._idle.wait()
            except TimeoutError:
                self._say(f"{self._under_way} requests did not end within {PARTING_SECONDS:.0f} seconds")
        for connection in tuple(server.connections):
            await connection.close(1001, "the store stops")
        await server.wait_closed()

    def _admit(self, connection: ServerConnection, asked: Request) -> Response | None:
        """A response in place of the WebSocket for who may not come in."""
        if "Origin" in asked.headers:
            # A page in this machine's browser could otherwise reach a store that asks for no password.
            return connection.respond(HTTPStatus.FORBIDDEN, "The store serves no web pages.\n")
        if asked.path != "/rpc":
            return connection.respond(HTTPStatus.NOT_FOUND, "The store is at /rpc, for clients of SurrealDB.\n")
        if self._clients >= MOST_CLIENTS:
            self._say(f"refused a client: there are {self._clients} already")
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "The store has too many clients.\n")
        return None

    async def _attend(self, connection: ServerConnection) -> None:
        """Answer one client until it leaves."""
        session = _Session(signed_in=self._credentials is None)
        self._clients += 1
        try:
            while not self._stop.is_set():
                async with asyncio.timeout(None if session.signed_in else SIGN_IN_SECONDS):
                    message = await connection.recv()
                if isinstance(message, str):
                    await connection.close(1003, "this store takes CBOR only")
                    return
                with self._counted():
                    await connection.send(await self._answer(session, message))
                    if not session.signed_in:
                        await connection.close(1008, "not signed in")
                        return
                connection.protocol.max_message_size = self._most_bytes(session.signed_in)
        except TimeoutError:
            await connection.close(1008, f"sign in within {SIGN_IN_SECONDS:.0f} seconds")
        except ConnectionClosed as closed:
            if closed.sent is not None and closed.sent.code == 1009:
                most = self._most_bytes(session.signed_in)
                self._say(f"a client sent a message of more than {most} bytes and was disconnected")
        finally:
            self._clients -= 1

    def _most_bytes(self, signed_in: bool) -> int:
        return MOST_BYTES if signed_in else MOST_BYTES_UNKNOWN

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    async def _answer(self, session: _Session, message: bytes) -> bytes:
        try:
            method = where_to(message)
            if session.signed_in and method in _TO_ENGINE:
                answer = await self._engine.run(session, message)
                if (trouble := engine_failed(answer)) is not None:
                    self._broken = trouble
                    self.stop()
                return answer
            if method == "ping":
                return success(message, None)
            return await self._about_the_session(session, method, message)
        except Malformed as error:
            return failure(None, str(error))
        except (RuntimeError, ValueError) as error:
            return failure(message, str(error))

    async def _about_the_session(self, session: _Session, method: str, message: bytes) -> bytes:
        parameters = parsed(message)
        match (method, parameters):
            case ("signin", [{"user": str(user), "pass": str(password)}]):
                return await self._signed_in(session, message, self._fits(user, password), self._token)
            case ("authenticate", [str(token)]):
                return await self._signed_in(session, message, self._is_token(token), None)
            case ("invalidate", _):
                session.signed_in = self._credentials is None
                return success(message, None)
        if not session.signed_in:
            return failure(message, "sign in before any other request")
        match (method, parameters):
            case ("use", [str() | None as namespace, str() | None as database]):
                session.namespace, session.database = namespace, database
                return success(message, None)
            case ("let", [str(name), _]):
                session.variables[name] = message
                return success(message, None)
            case ("unset", [str(name)]):
                session.variables.pop(name, None)
                return success(message, None)
        return failure(message, f"this store does not offer '{method}' with these parameters")

    async def _signed_in(self, session: _Session, message: bytes, right: bool, token: str | None) -> bytes:
        session.signed_in = session.signed_in or right
        if right:
            return success(message, token)
        await asyncio.sleep(REFUSAL_SECONDS)
        if self._credentials is None:
            return failure(
                message,
                f"this store was started without {USER_VARIABLE} and {PASSWORD_VARIABLE} and takes no sign-in: leave "
                "them out here, or set them there",
            )
        self._say("refused a client: wrong user or password")
        return failure(message, "wrong user or password")

    def _fits(self, user: str, password: str) -> bool:
        if self._credentials is None:
            return False
        # Both are compared, each in constant time, so that the time tells nothing about either.
        fits = [_same(given, wanted) for given, wanted in zip((user, password), self._credentials, strict=True)]
        return all(fits)

    def _is_token(self, token: str) -> bool:
        return self._credentials is not None and _same(token, self._token)


def serve_store(folder: Path, host: str, port: int, say: Callable[[str], None]) -> None:
    """Serve the store in `folder` (made if absent) until SIGINT or SIGTERM.

    Clients must sign in with the environment's CRYPTOSENTINEL_STORE_USER and _PASSWORD where these are set; on another
    host than this machine's own they must be. Raises `StoreError` for a folder or a port in use, a store that cannot be
    opened, or missing credentials; `RunFailed` if the database cannot go on.
    """
    credentials = environment_credentials()
    if credentials is None and not _is_local(host):
        raise StoreError(
            f"--host {host} can be reached from other machines: set {USER_VARIABLE} and {PASSWORD_VARIABLE} in the "
            "environment, or serve 127.0.0.1"
        )
    lock = FolderLock(folder.absolute())
    try:
        Store.prepare(folder)
        asyncio.run(_serve(folder, host, port, credentials, say))
    finally:
        lock.release()


async def _serve(
    folder: Path, host: str, port: int, credentials: tuple[str, str] | None, say: Callable[[str], None]
) -> None:
    database = SyncEmbeddedDB(folder_url(folder))
    database.connect()
    gateway = Gateway(database, credentials, say)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, gateway.stop)
    who = "clients sign in" if credentials else "no sign-in"

    def started(actual: int) -> None:
        say(f"store {folder}: listening on ws://{f'[{host}]' if ':' in host else host}:{actual} ({who})")

    await gateway.serve(host, port, started)
    say(f"store {folder}: stopped, everything is written")


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode(errors="replace"))


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _port_trouble(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use: choose another one with --port, or stop what uses it"
    reason = error.strerror or str(error)
    return f"port {port} of {host} cannot be opened ({reason}): choose another --port or --host"
