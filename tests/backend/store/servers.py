"""A double of a SurrealDB server for the tests: the embedded engine behind a WebSocket, in a thread."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

from surrealdb.data.cbor import decode, encode
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve
from websockets.typing import Subprotocol

from backend.store.engine import DatabaseEngine

ROOT = Path(__file__).resolve().parents[3]
USER, PASSWORD = "trader", "correct horse"
CREDENTIALS = {"CRYPTOSENTINEL_STORE_USER": USER, "CRYPTOSENTINEL_STORE_PASSWORD": PASSWORD}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(**more: str) -> dict[str, str]:
    """The environment of a process of a test, without an account unless one is given."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CRYPTOSENTINEL_STORE")}
    return {**kept, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), **more}


class ServerThread:
    """A server of one database, which wants a sign-in first. `requests` counts what it has answered."""

    def __init__(self, port: int = 0, url: str = "mem://") -> None:
        self._engine = DatabaseEngine(url)
        self.requests = 0
        self._open: set[ServerConnection] = set()
        self._server = serve(self._attend, "127.0.0.1", port, subprotocols=[Subprotocol("cbor")], max_size=None)
        self.port = self._server.socket.getsockname()[1]
        self.url = f"ws://127.0.0.1:{self.port}"
        self._thread = Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        for connection in tuple(self._open):
            connection.close()
        self._thread.join()
        self._engine.close()

    def _attend(self, connection: ServerConnection) -> None:
        known = False
        self._open.add(connection)
        try:
            while True:
                message = connection.recv()
                assert isinstance(message, bytes)
                request = decode(message)
                if request["method"] == "signin":
                    known = request["params"][0] == {"user": USER, "pass": PASSWORD}
                    connection.send(encode({"id": request["id"], "result": "token"} if known else _refusal(request)))
                elif known:
                    self.requests += 1
                    connection.send(self._engine.execute(message))
                else:
                    connection.send(encode(_refusal(request)))
        except ConnectionClosed:
            self._open.discard(connection)


def _refusal(request: dict[str, object]) -> dict[str, object]:
    return {"id": request["id"], "error": {"code": -32000, "message": "sign in with the right password"}}


@contextmanager
def server_thread(port: int = 0, url: str = "mem://") -> Iterator[ServerThread]:
    server = ServerThread(port, url)
    try:
        yield server
    finally:
        server.stop()
