"""The HTTP client under the SDK, and the limit on what a program's requests cost.

The SDK repeats requests by itself, so what must hold for every attempt is here: the headers that are sent, the seconds
that it may take, and the status that it really has.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2

from cryptosentinel.llm.endpoint.adaptation import is_final
from cryptosentinel.llm.endpoint.messages import Garbled, parse_body
from cryptosentinel.llm.endpoint.providers import is_loopback
from cryptosentinel.llm.engine import Usage
from simulator.errors import UserError

_CONNECT_SECONDS = 10.0  # a host that cannot be reached is told from a slow one
# What an endpoint needs. The SDK would add what the environment holds of organization, project and further headers.
_HEADERS = frozenset(("host", "accept", "content-type", "content-length", "connection", "user-agent"))
_SDK_WAITS = 120.0  # seconds of Retry-After that the SDK obeys by itself


@dataclass
class RequestCosts:
    """Money `spent` for the answers so far."""

    spent: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)


PROGRAM_COSTS = RequestCosts()  # of all engines of a program


class CostLimit:
    """At most `most` money for the answers of this program, but for those under way when it is reached. `price_of`
    gives the money for an answer's usage, in the same currency; `costs` is the account, the program's where it is left
    out."""

    def __init__(self, most: float, price_of: Callable[[Usage], float], costs: RequestCosts | None = None) -> None:
        self.most = most
        self._price_of = price_of
        self._costs = PROGRAM_COSTS if costs is None else costs

    def check(self) -> None:
        """Raise `UserError` where the limit is reached."""
        if self._costs.spent >= self.most:
            raise UserError(
                f"the answers of this program have cost {self._costs.spent:.4g} of at most {self.most:g}: allow more "
                "with -s budget.max_cost=..., in the currency of the prices, or any amount with 0; a backtest with "
                "--record keeps its answers, and the same command then continues without paying for them again"
            )

    def add(self, usage: Usage) -> None:
        """Book the usage of one answer."""
        with self._costs.lock:
            self._costs.spent += self._price_of(usage)


class BoundedClient(httpx2.AsyncClient):
    """Sends each request and reads its answer within bounds. Follows no redirect: a key is for one host.

    Args:
        url: the endpoint, checked. Proxies of the environment are not used for this machine.
        headers: sent with each request beside what HTTP needs, the key among them; nothing else is sent.
        timeout: seconds from sending a request until its whole answer is there.
    """

    def __init__(self, url: str, headers: Mapping[str, str], *, timeout: float, connections: int) -> None:
        super().__init__(
            timeout=httpx2.Timeout(timeout, connect=min(_CONNECT_SECONDS, timeout / 2)),
            limits=httpx2.Limits(max_connections=connections, max_keepalive_connections=connections),
            follow_redirects=False,
            trust_env=not is_loopback(url),
        )
        self._own_headers, self._seconds = dict(headers), timeout

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send `request`. Raises `httpx2.ReadTimeout` when the whole takes too long."""
        headers = {name: value for name, value in request.headers.items() if name.lower() in _HEADERS}
        request.headers = httpx2.Headers(headers | self._own_headers)
        try:
            async with asyncio.timeout(self._seconds):
                response = await super().send(request, **{**options, "stream": False})
        except TimeoutError:
            raise httpx2.ReadTimeout("the whole answer took too long", request=request) from None
        response.status_code = _real_status(response)
        return await self._retry_after(response)

    async def _retry_after(self, response: httpx2.Response) -> httpx2.Response:
        """`response`, whose `Retry-After` is obeyed up to the timeout: what the SDK would not wait for is waited for
        here, and what is longer than the timeout, or a refusal, is not tried again."""
        try:
            seconds = float(response.headers.get("retry-after", "0"))
        except ValueError:  # a date, which the SDK reads
            seconds = 0.0
        if is_final(response.status_code, response.content) or seconds > self._seconds:
            response.headers["x-should-retry"] = "false"  # which the SDK follows
        elif seconds > _SDK_WAITS and response.status_code in (408, 409, 429, 500, 502, 503, 504):
            await asyncio.sleep(seconds)
            del response.headers["retry-after"]
        return response


def _real_status(response: httpx2.Response) -> int:
    """The status of a response: routers such as OpenRouter put an error of their upstream into an HTTP 200."""
    status = response.status_code
    if status != 200 or b'"error"' not in response.content[:4096]:
        return status
    try:
        document = parse_body(response.content)
    except Garbled:
        return status
    error = document.get("error")
    code = error.get("code") if isinstance(error, dict) and not document.get("choices") else None
    code = int(code) if isinstance(code, str) and code.isdigit() else code
    return code if isinstance(code, int) and 400 <= code < 600 else status
