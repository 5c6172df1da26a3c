"""The HTTP client under a provider's SDK: limits on what is sent and on how much may come back.

The SDK repeats requests by itself, so limits that hold for every attempt stand here: the rate of requests, the seconds
one may take, the bytes of an answer, and which headers are sent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import httpx2

from cryptosentinel.llm.endpoint.urls import is_loopback

MAX_BODY_BYTES = 4 * 2**20  # an answer that a role may give has some kilobytes; thoughts beside it may be long
_CONNECT_SECONDS = 10.0  # a host that takes longer to be reached is told from one that thinks for long
# What an endpoint needs. The SDK would add what the environment says of organisation, project and further headers.
_HEADERS = frozenset(("host", "accept", "content-type", "content-length", "connection", "user-agent"))


class TooLarge(Exception):
    """An answer of more than `MAX_BODY_BYTES`."""


class Meter(Protocol):
    """Counts what attempts cost."""

    async def hold(self, body: bytes) -> float:
        """Money for one attempt to send `body`, from before it is sent. What it raises ends the attempt."""
        ...

    def settle(self, held: float, answer: bytes | None) -> None:
        """That attempt ended with `answer`; None: with none, though the server may have done its work."""
        ...

    def release(self, held: float) -> None:
        """That attempt cost nothing."""
        ...


async def cancel_others() -> None:
    """Cancel all other tasks of the running loop, and wait for their ends."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def cancel_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Have a loop of another thread cancel all that was handed to it until now; not waited for."""

    def cancel() -> None:
        for task in asyncio.all_tasks(loop):
            task.cancel()

    loop.call_soon_threadsafe(cancel)


class BoundedClient(httpx2.AsyncClient):
    """Sends each request at its time and reads its answer within bounds. Follows no redirect: a key is for one host.

    Args:
        url: the endpoint, checked. Proxies of the environment are not used for this very machine.
        headers: sent with each request beside what HTTP needs, the key among them; nothing else is sent.
        is_final: of a status and a body, whether the SDK may not try again.
        timeout: seconds from sending a request until its whole answer is there.
        per_minute: at most so many requests, evenly spaced; 0 for any number.
        meter: counts what requests with a body cost; None counts nothing.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        timeout: float,
        per_minute: float,
        connections: int,
        is_final: Callable[[int, bytes], bool],
        meter: Meter | None = None,
    ) -> None:
        super().__init__(
            timeout=httpx2.Timeout(timeout, connect=min(_CONNECT_SECONDS, timeout / 2)),
            limits=httpx2.Limits(max_connections=connections, max_keepalive_connections=connections),
            follow_redirects=False,
            trust_env=not is_loopback(url),
        )
        self._own_headers = dict(headers)
        self._is_final = is_final
        self._meter = meter
        self._seconds = timeout
        self._interval = 60.0 / per_minute if per_minute else 0.0
        self._next = 0.0

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send `request`. Raises `httpx2.ReadTimeout` when the whole takes too long, `TooLarge` for too much, and what
        the meter's `hold` raises."""
        headers = {name: value for name, value in request.headers.items() if name.lower() in _HEADERS}
        headers["Accept-Encoding"] = "identity"  # an answer's size is known while it is read
        headers |= self._own_headers
        request.headers = httpx2.Headers(headers)
        meter = self._meter if request.content else None
        if meter is None:
            return await self._exchange(request, options)
        held = await meter.hold(request.content)
        try:
            response = await self._exchange(request, options)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError):
            meter.release(held)
            raise
        except BaseException:  # also where it is cancelled: the request is on its way
            meter.settle(held, None)
            raise
        if response.is_success:
            meter.settle(held, response.content)
        else:
            meter.release(held)
        return response

    async def _exchange(self, request: httpx2.Request, options: Mapping[str, Any]) -> httpx2.Response:
        """Send `request` at its turn, and read the whole answer."""
        await self._turn()
        try:
            async with asyncio.timeout(self._seconds):
                response = await super().send(request, **{**options, "stream": True})
                try:
                    whole = await _read(response, request)
                finally:
                    await response.aclose()
            if self._is_final(whole.status_code, whole.content):
                whole.headers["x-should-retry"] = "false"  # which the SDKs heed
            return whole
        except TimeoutError:
            raise httpx2.ReadTimeout("the whole answer took too long", request=request) from None

    async def _turn(self) -> None:
        """Wait until the next request may go out: a token bucket that holds one."""
        now = time.monotonic()
        start = max(now, self._next)
        self._next = start + self._interval
        if start > now:
            await asyncio.sleep(start - now)


async def _read(response: httpx2.Response, request: httpx2.Request) -> httpx2.Response:
    """`response` with its whole body."""
    body = bytearray()
    async for part in response.aiter_bytes():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise TooLarge
    # The body is decoded already, so the headers that speak of its form on the way are gone.
    headers = [
        (name, value)
        for name, value in response.headers.multi_items()
        if name.lower() not in ("content-encoding", "content-length", "transfer-encoding")
    ]
    return httpx2.Response(response.status_code, headers=headers, content=bytes(body), request=request)
