"""The mock exchange as a server: REST and WebSocket on one port, in Binance's format, with faults.

Requests go to `/api/v3/…` (spot) and `/fapi/v1/…` (USD-M futures). A socket whose path names `fstream` or `fapi` is of
futures; its streams are asked for by SUBSCRIBE.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from heapq import merge
from http import HTTPStatus
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from simulator.live.feed import Clock
from simulator.market.market import Market
from tests.loop_clock import LoopClock
from tests.mock_binance.answers import TICKS, Answers, RefusedRequest
from tests.mock_binance.faults import FaultDraws, Faults

_OPENING = 30.0  # seconds
_CATCHING_UP = 50  # moments that are played without a pause before others may run
_SILENT = logging.getLogger("cryptosentinel.mock_exchange.websockets")  # a client that goes away is part of the play
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False

# Fields that a malformed message has instead of what they should hold.
_NONSENSE: tuple[Any, ...] = ("NaN", "-1", None, "1e400", "not a number", [], {"p": 1})


@dataclass(eq=False)
class _Client:
    """One open socket."""

    socket: ServerConnection
    swap: bool
    draw: random.Random
    streams: set[str] = field(default_factory=set)
    waiting: deque[str] = field(default_factory=deque)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    hung: bool = False


class MockExchange:
    """Plays `market` from `clock`'s now on; what lies before is history. Use it as `async with`.

    Attributes:
        draws: what was done to whom, by fault.
        ended: set when the market's last bar has closed.
    """

    def __init__(self, market: Market, clock: LoopClock, faults: Faults | None = None) -> None:
        self.answers = Answers(market)
        self.faults = faults or Faults()
        self.draws = FaultDraws(self.faults, clock.now(), self.answers.end)
        self.ended = asyncio.Event()
        self._clock = clock
        self._recorded = dict[str, Any]()
        self._port = 0
        self._clients: list[_Client] = []
        self._opened = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def __aenter__(self) -> Self:
        self._server = await serve(
            self._attend,
            "127.0.0.1",
            self._port,
            process_request=self._request,
            compression=None,
            ping_interval=None,
            close_timeout=0.5,
            logger=_SILENT,
        )
        self._port = next(iter(self._server.sockets)).getsockname()[1]
        self._start(self._play())
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.disconnect()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    def now(self) -> int:
        """The exchange's own clock, ms, with its error."""
        return self._clock.now() + self.faults.clock_error

    def disconnect(self) -> None:
        """End every socket without a word."""
        for client in list(self._clients):
            client.socket.transport.abort()

    def record(self, path: str, document: Any) -> None:
        """Serve `document` at `path` from now on as it is; None: what is made again."""
        if document is None:
            self._recorded.pop(path, None)
        else:
            self._recorded[path] = document

    def send_to_all(self, text: str) -> None:
        """Send a text to every open socket, whatever it is."""
        for client in self._clients:
            self._put(client, text)

    def hang(self) -> None:
        """Let every open socket fall silent: it stays open, sends nothing and reads nothing."""
        for client in self._clients:
            client.hung = True
            client.socket.transport.pause_reading()

    def _start(self, job: Any) -> None:
        task = asyncio.ensure_future(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # REST

    async def _request(self, socket: ServerConnection, request: Request) -> Response | None:
        """Answers what is no opening of a WebSocket."""
        parts = urlsplit(request.path)
        now = self._clock.now()
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return _response(socket, 503, b"maintenance") if self.draws.in_maintenance(now) else None
        refusal = self.draws.refusal(now)
        if refusal is not None:
            status, wait = refusal
            code, words = (-1003, "Too many requests.") if status in (418, 429) else (-1000, "Not now.")
            return _response(socket, status, json.dumps({"code": code, "msg": words}).encode(), wait)
        if parts.path in self._recorded:
            return _response(socket, 200, json.dumps(self._recorded[parts.path]).encode())
        try:
            document = self.answers.answer(parts.path, dict(parse_qsl(parts.query)), self.now())
        except RefusedRequest as error:
            return _response(socket, 400, json.dumps({"code": error.code, "msg": str(error)}).encode())
        if document is None:
            return _response(socket, 404, b'{"code": -1, "msg": "no such path"}')
        return _response(socket, 200, json.dumps(document).encode())

    # Sockets

    async def _attend(self, socket: ServerConnection) -> None:
        """One socket from its opening to its end."""
        path = socket.request.path if socket.request else ""
        self._opened += 1
        client = _Client(socket, swap="fstream" in path or "fapi" in path, draw=self.draws.messages(self._opened))
        self._clients.append(client)
        sender = asyncio.create_task(self._send(client))
        try:
            async for text in socket:
                self._put(client, json.dumps(self._obey(client, text)))
        except ConnectionClosed:
            pass
        finally:
            sender.cancel()
            self._clients.remove(client)

    def _obey(self, client: _Client, text: str | bytes) -> dict[str, Any]:
        """What a client's message does, and its answer."""
        asked = json.loads(text)
        unknown = [name for name in asked["params"] if not self.answers.knows(name)]
        if asked["method"] != "SUBSCRIBE" or unknown:
            return {"error": {"code": 2, "msg": f"Invalid request: {asked}"}, "id": asked["id"]}
        client.streams |= set(asked["params"])
        return {"result": None, "id": asked["id"]}

    def _put(self, client: _Client, text: str) -> None:
        client.waiting.append(text)
        client.wake.set()

    async def _send(self, client: _Client) -> None:
        with suppress(ConnectionClosed):
            while True:
                await client.wake.wait()
                client.wake.clear()
                while client.waiting and not client.hung:
                    await client.socket.send(client.waiting.popleft())

    # The play

    async def _play(self) -> None:
        """Let everything happen at its time, until the market ends."""
        since = self._clock.now()
        done = 0
        for time, what, bar, place in merge(self._market_moments(since), self._fault_moments()):
            if time > self._clock.now():
                await self._clock.sleep((time - self._clock.now()) / 1000)
                done = 0
            elif done >= _CATCHING_UP:
                await asyncio.sleep(0)
                done = 0
            done += 1
            if what in ("disconnects", "hangs"):
                self.draws.injected[what] += bool(self._clients)
                self.hang() if what == "hangs" else self.disconnect()
            elif what == "tick" and not self.draws.in_maintenance(time):
                self._say(bar, place)
        self.ended.set()

    def _market_moments(self, since: int) -> Iterator[tuple[int, str, int, int]]:
        answers = self.answers
        for bar in range(max(0, answers.bar_at(since)), len(answers.market)):
            for place in range(TICKS):
                if answers.tick_time(bar, place) > since:
                    yield answers.tick_time(bar, place), "tick", bar, place
        yield answers.end, "end", 0, 0

    def _fault_moments(self) -> Iterator[tuple[int, str, int, int]]:
        broken = [(time, "disconnects", 0, 0) for time in self.draws.disconnects]
        broken += [(start, "disconnects", 0, 0) for start, _ in self.faults.maintenance]
        return iter(sorted(broken + [(time, "hangs", 0, 0) for time in self.draws.hangs]))

    def _say(self, bar: int, place: int) -> None:
        for client in self._clients:
            for stream in sorted(client.streams):
                data = self.answers.best(stream, bar, place, self.faults.clock_error, client.swap)
                if data is not None:
                    self._deliver(client, data)

    def _deliver(self, client: _Client, data: dict[str, Any]) -> None:
        """Put a message in the way to a client, or what a fault makes of it."""
        fault = self.draws.message(client.draw)
        if fault != "dropped":
            self._put(client, json.dumps(_malformed(data, client.draw) if fault == "malformed" else data))


def _response(socket: ServerConnection, status: int, body: bytes, retry_after: int | None = None) -> Response:
    response = socket.respond(HTTPStatus(status), "")
    response.body = body
    for name in ("Content-Type", "Content-Length"):
        del response.headers[name]
    response.headers["Content-Type"] = "application/json;charset=UTF-8"
    response.headers["Content-Length"] = str(len(body))
    if retry_after is not None:
        response.headers["Retry-After"] = str(retry_after)
    return response


def _malformed(data: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """`data` with nonsense in the place of one number or text."""
    return data | {draw.choice([name for name in data if name != "e"]): draw.choice(_NONSENSE)}


@contextmanager
def serving_exchange(
    market: Market, clock: Clock, *, speed: float = 1.0, faults: Faults | None = None
) -> Iterator[MockExchange]:
    """An exchange that plays `market` at a free port of this machine for the time of a block, in an event loop and a
    thread of its own.

    `clock` is shared with who listens, and runs `speed` times as fast as real time. Only `url` and `draws`
    of the exchange are to be read from outside its thread.
    """
    loop = asyncio.new_event_loop()
    opened: Future[tuple[MockExchange, asyncio.Event]] = Future()

    async def serve_until_done() -> None:
        done = asyncio.Event()
        try:
            async with MockExchange(market, LoopClock(clock, speed), faults) as exchange:
                opened.set_result((exchange, done))
                await done.wait()
        except BaseException as error:
            if not opened.done():
                opened.set_exception(error)
            raise

    def run() -> None:
        try:
            loop.run_until_complete(serve_until_done())
        finally:
            loop.close()

    thread = threading.Thread(target=run, name="mock-exchange", daemon=True)
    thread.start()
    exchange, done = opened.result(_OPENING)
    try:
        yield exchange
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join(_OPENING)
