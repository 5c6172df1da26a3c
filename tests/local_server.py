"""HTTP servers on this machine, for the doubles of other programs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class QuietHandler(BaseHTTPRequestHandler):
    """Prints nothing. Connections are kept, and each answer leaves at once."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body leave together

    def answer(
        self, status: int, body: bytes, kind: str = "application/json", length: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Send `body`, of which the headers say that it is `length` bytes long; a shorter one ends the connection."""
        self.send_response(status)
        said = {"Content-Type": kind, "Content-Length": str(len(body) if length is None else length), **(headers or {})}
        for name, value in said.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()
        self.close_connection |= length is not None

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away in mid-answer is part of the play; anything else is printed."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler], ended: threading.Event | None = None) -> Iterator[str]:
    """The address of a server at a free port, for the time of a block, at whose end `ended` is set."""
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        if ended is not None:
            ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
