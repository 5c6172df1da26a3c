"""A store, served to several programs: the engine of a process behind a WebSocket.

Clients speak the protocol of a SurrealDB server (sub-protocol `cbor`, one request and one answer a message), so an SDK
needs not know the difference. The engine takes these very messages, so most pass through unread; what concerns one
client alone (sign-in, its database, its variables) is kept here. Nothing but `ping` is answered before a sign-in.

Not offered, and answered with an error: live queries, sign-up, and transactions over several requests.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import logging
import re
import resource
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from backend.store.errors import StoreError
from backend.store.gateway import engine
from backend.store.gateway.credentials import GatewayAccount
from backend.store.gateway.engine import Session, StoreEngine
from backend.store.gateway.rpc_messages import (
    NOT_OFFERED,
    Malformed,
    engine_failed,
    failure,
    id_of,
    parsed,
    success,
    where_to,
)  # fmt: skip
from simulator.errors import RunFailed

MOST_BYTES = 32 * 1024 * 1024  # of one message
MOST_BYTES_UNKNOWN = 64 * 1024  # of one message of who has yet to sign in
MOST_CLIENTS = 4096  # a process that may open fewer files takes fewer clients
FILES_BESIDE = 200  # open files that a process needs besides those of its clients
MOST_UNKNOWN = 256  # connections that have yet to sign in; they take no place of a client
MOST_UNDER_WAY = 256 * 1024 * 1024  # bytes of requests and answers at once, before further requests wait
TAKING_SECONDS = 120.0  # for a client to take an answer; it holds memory until then
OPENING_SECONDS = 5.0  # for a connection to become a WebSocket
SIGN_IN_SECONDS = 10.0  # from connecting to having signed in
REFUSAL_SECONDS = 0.5  # between two wrong passwords, whoever tries them
PARTING_SECONDS = 10.0  # for requests under way when the gateway is told to stop
CLOSING_SECONDS = 2.0  # for a client to hear that the gateway closes

_TO_ENGINE = frozenset({
    "query", "select", "create", "insert", "insert_relation", "update", "upsert", "merge", "patch", "delete", "relate",
    "version", "ping", "info",
})  # fmt: skip
_ABOUT_SIGN_IN = frozenset({"signin", "authenticate", "invalidate"})
# The engine refuses a reader what changes anything, but some of it without a word. Hence this, which also refuses the
# word inside a text; and what would keep others waiting.
_CHANGES = re.compile(
    r"\b(create|insert|update|upsert|delete|relate|define|remove|alter|rebuild|access|eval|live|kill|sleep)\b|\bfor\s*\$",
    re.I,
)
_SILENT = logging.getLogger("cryptosentinel.gateway.websockets")  # a port scan is not worth a traceback
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False

ObjectCalls = Callable[[Any], bytes | bool | None]  # answers a call about files, see `backend.store.sharing.objects`

pause = asyncio.sleep  # a name of its own, which a test can watch


@dataclass(eq=False)
class _Client:
    """What one client has said about itself; `account` is None before it has signed in."""

    account: GatewayAccount | None = None
    session: Session = field(default_factory=Session)


class Gateway:
    """Serves an engine until `stop`; the engine stays open.

    `accounts` are those by which clients may sign in; `say` takes a line for the operator; `objects` answers who sends
    or wants files of runs, where there is a place for them. `on_snapshot` links the database's files for a program of
    this machine and returns where: only who came by an account that reads, which is in a file of this machine, may ask
    for it.
    """

    def __init__(
        self,
        engine: StoreEngine,
        accounts: Sequence[GatewayAccount],
        say: Callable[[str], None],
        objects: ObjectCalls | None = None,
        on_snapshot: Callable[[], str] | None = None,
    ) -> None:
        self._engine = engine
        self._objects = objects
        self._on_snapshot = on_snapshot
        self._file_thread = ThreadPoolExecutor(1, "store files")  # files keep no request of the engine waiting
        # The engine's blocking interface in a thread of its own: what its asynchronous one left behind could abort the
        # process when the interpreter ended (SDK 2.0.0; not tried again on 3.0).
        self._thread = ThreadPoolExecutor(1, "store engine")
        # Three parts each, as SDKs expect of a token.
        self._tokens = {account: ".".join(secrets.token_urlsafe(24) for _ in range(3)) for account in accounts}
        self._say = say
        self._clients = 0
        self._unknown = 0
        self._under_way = 0
        self._bytes_under_way = 0
        self._room = asyncio.Event()
        self._idle = asyncio.Event()
        self._stop = asyncio.Event()
        self._refusing = asyncio.Lock()
        self._broken: str | None = None

    def stop(self) -> None:
        """Take no more requests, and end when those under way are answered."""
        self._stop.set()

    async def serve(self, host: str, port: int, started: Callable[[int], None]) -> None:
        """Serve until `stop`, calling `started` with the port once clients may come.

        Raises `StoreError` if the port cannot be had, `RunFailed` if the database cannot go on.
        """
        try:
            await self._serve(host, port, started)
        finally:
            self._thread.shutdown()
            self._file_thread.shutdown()

    async def _serve(self, host: str, port: int, started: Callable[[int], None]) -> None:
        try:
            server = await serve(
                self._attend, host, port,
                subprotocols=[Subprotocol("cbor")], max_size=MOST_BYTES_UNKNOWN,
                open_timeout=OPENING_SECONDS, close_timeout=CLOSING_SECONDS,
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
        # Side by side: one that does not listen any more must not keep the others, nor the holder of the store.
        await asyncio.gather(*(one.close(1001, "the store stops") for one in tuple(server.connections)))
        with suppress(TimeoutError):  # of one that has not even asked properly yet
            async with asyncio.timeout(CLOSING_SECONDS):
                await server.wait_closed()

    def _admit(self, connection: ServerConnection, asked: Request) -> Response | None:
        """A response in place of the WebSocket for who may not come in."""
        if "Origin" in asked.headers:
            # A page in this machine's browser could otherwise try passwords here; no program of ours sends this.
            return connection.respond(HTTPStatus.FORBIDDEN, "The store serves no web pages.\n")
        if asked.path != "/rpc":
            return connection.respond(HTTPStatus.NOT_FOUND, "The store is at /rpc, for clients of SurrealDB.\n")
        if self._clients >= most_clients() or self._unknown >= MOST_UNKNOWN:
            self._say(f"refused a client: {self._clients} are signed in, {self._unknown} have yet to sign in")
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "The store has too many clients.\n")
        return None

    async def _attend(self, connection: ServerConnection) -> None:
        """Answer one client until it leaves."""
        client, known = _Client(), False
        self._unknown += 1
        try:
            while not self._stop.is_set():
                async with asyncio.timeout(None if known else SIGN_IN_SECONDS):
                    message = await connection.recv()
                if isinstance(message, str):
                    await connection.close(1003, "this store takes CBOR only")
                    return
                with self._counted():
                    await self._answer_in_room(connection, client, message)
                if client.account is None:
                    await connection.close(1008, "not signed in")
                    return
                if not known:
                    known, self._unknown, self._clients = True, self._unknown - 1, self._clients + 1
                    connection.protocol.max_message_size = MOST_BYTES
        except TimeoutError:
            why = "answers are to be taken" if known else f"sign in within {SIGN_IN_SECONDS:.0f} seconds"
            await connection.close(1008, why)
        except ConnectionClosed as closed:
            if closed.sent is not None and closed.sent.code == 1009:
                most = MOST_BYTES if known else MOST_BYTES_UNKNOWN
                self._say(f"a client sent a message of more than {most} bytes and was disconnected")
        finally:
            if known:
                self._clients -= 1
            else:
                self._unknown -= 1

    async def _answer_in_room(self, connection: ServerConnection, client: _Client, message: bytes) -> None:
        """Answer once there is room for it: however many clients ask at once, memory is bounded. Raises `TimeoutError`
        for a client that does not take its answer."""
        while self._bytes_under_way > MOST_UNDER_WAY:
            self._room.clear()
            await self._room.wait()
        size = len(message)
        self._bytes_under_way += size
        try:
            answer = await self._answer(client, message)
            size += len(answer)
            self._bytes_under_way += len(answer)
            async with asyncio.timeout(TAKING_SECONDS):
                await connection.send(answer)
        finally:
            self._bytes_under_way -= size
            self._room.set()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    async def _answer(self, client: _Client, message: bytes) -> bytes:
        try:
            method = where_to(message)
            if client.account is not None and client.account.reads_only and method not in _ABOUT_SIGN_IN:
                return await self._answer_reader(method, message)
            if client.account is not None and method in _TO_ENGINE:
                answer = await self._executed(client.session, message)
                if (trouble := engine_failed(answer)) is not None:
                    self._broken = trouble
                    self.stop()
                return answer
            if client.account is not None and method == "object" and self._objects is not None:
                return await asyncio.get_running_loop().run_in_executor(
                    self._file_thread, _answer_about_files, self._objects, message
                )
            if method == "ping":
                return success(message, None)
            return await self._about_the_session(client, method, message)
        except Malformed as error:
            return failure(None, str(error))
        except (RuntimeError, ValueError, StoreError) as error:
            return failure(message, str(error))

    async def _answer_reader(self, method: str, message: bytes) -> bytes:
        """The answer to an account that only reads. Its request is made anew here: it could name another's session."""
        match (method, parsed(message)):
            case ("ping", _) | ("use", [engine.NAMESPACE, engine.DATABASE]):
                return success(message, None)
            case ("snapshot", []) if self._on_snapshot is not None:
                found = await asyncio.get_running_loop().run_in_executor(self._thread, self._on_snapshot)
                return success(message, found)
            case ("query", [str(text), *rest]) if not rest or isinstance(rest[0], dict):
                if (word := _CHANGES.search(text)) is not None:
                    return failure(message, f"this account only reads, and the statement says '{word[0]}'")
                parameters, identity = rest[0] if rest else {}, id_of(message)
                # The answer may be long and goes out as it is.
                return await asyncio.get_running_loop().run_in_executor(
                    self._thread, self._engine.read, text, parameters, identity
                )
        return failure(message, f"this account only reads: '{method}' {NOT_OFFERED} with these parameters")

    async def _executed(self, session: Session, message: bytes) -> bytes:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._engine.execute, session, message)

    async def _about_the_session(self, client: _Client, method: str, message: bytes) -> bytes:
        parameters = parsed(message)
        match (method, parameters):
            case ("signin", [{"user": str(user), "pass": str(password)}]):
                return await self._signed_in(client, message, self._account_of(user, password))
            case ("authenticate", [str(token)]):
                return await self._signed_in(client, message, self._account_by_token(token))
            case ("invalidate", _):
                client.account = None
                return success(message, None)
        if client.account is None:
            return failure(message, "sign in before any other request")
        match (method, parameters):
            case ("use", [str() | None as namespace, str() | None as database]):
                client.session.namespace, client.session.database = namespace, database
                return success(message, None)
            case ("let", [str(name), _]):
                client.session.variables[name] = message
                return success(message, None)
            case ("unset", [str(name)]):
                client.session.variables.pop(name, None)
                return success(message, None)
        return failure(message, f"this store does not offer '{method}' with these parameters")

    async def _signed_in(self, client: _Client, message: bytes, account: GatewayAccount | None) -> bytes:
        if account is not None:
            client.account = account
            return success(message, self._tokens[account])
        client.account = None
        async with self._refusing:  # one at a time over all connections, so that more of them try no more
            await pause(REFUSAL_SECONDS)
        self._say("refused a client: wrong user or password")
        return failure(message, "wrong user or password")

    def _account_of(self, user: str, password: str) -> GatewayAccount | None:
        # All are compared, each in constant time, so that the time tells nothing about any.
        fits = [_same(user, one.user) & _same(password, one.password) for one in self._tokens]
        return next((one for one, fit in zip(self._tokens, fits, strict=True) if fit), None)

    def _account_by_token(self, token: str) -> GatewayAccount | None:
        fits = [_same(token, one) for one in self._tokens.values()]
        return next((one for one, fit in zip(self._tokens, fits, strict=True) if fit), None)


def _answer_about_files(objects: ObjectCalls, message: bytes) -> bytes:
    try:
        return success(message, objects(parsed(message, MOST_BYTES)))
    except StoreError as error:
        return failure(message, str(error))


def most_clients() -> int:
    """How many may be signed in at once: no more than this process may open files for."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CLIENTS if files == resource.RLIM_INFINITY else min(MOST_CLIENTS, max(1, files - FILES_BESIDE))


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode(errors="replace"))


def _port_trouble(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use: choose another one with --port, or stop what uses it"
    reason = error.strerror or str(error)
    return f"port {port} of {host} cannot be opened ({reason}): choose another --port or --host"
