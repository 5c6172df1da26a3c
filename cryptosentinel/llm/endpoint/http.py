"""The HTTP client under the SDK, and the limit on what a program's requests cost.

The SDK repeats requests by itself, so what must hold for every attempt is here: the headers that are sent, the seconds
that it may take, and the money that it may cost. The most that an attempt can cost is held before it is sent: each byte
of the request counts as a token that is read, and the answer as long as the request allows. The usage that the answer
states replaces that; an attempt without an answer, or without a usage, stays at the most.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2

from cryptosentinel.llm.endpoint.adaptation import LIMITS, is_final
from cryptosentinel.llm.endpoint.messages import Garbled, parse_body, read_answer
from cryptosentinel.llm.endpoint.providers import is_loopback
from cryptosentinel.llm.engine import NOTHING, Usage

_CONNECT_SECONDS = 10.0  # a host that cannot be reached is told from a slow one
# What an endpoint needs. The SDK would add what the environment holds of organization, project and further headers.
_HEADERS = frozenset(("host", "accept", "content-type", "content-length", "connection", "user-agent"))
_LONGEST_ANSWER = 131_072  # tokens, where a request has no limit: the longest that a provider of the table gives
_ADDED_TOKENS = 1_000  # what a provider itself may put before a prompt, such as how tools are called
_PAUSE_SECONDS = 0.05
_SDK_WAITS = 120.0  # seconds of Retry-After that the SDK obeys by itself


class CostLimitReached(Exception):
    """The next request could pass the limit."""


@dataclass
class RequestCosts:
    """Money: `spent` for what is over, `held` for what is under way."""

    spent: float = 0.0
    held: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)


PROGRAM_COSTS = RequestCosts()  # of all engines of a program


class CostLimit:
    """At most `most` money for the requests of this program. `price_of` gives the money for an answer's usage, in the
    same currency; `costs` is the account, the program's where it is left out."""

    def __init__(self, most: float, price_of: Callable[[Usage], float], costs: RequestCosts | None = None) -> None:
        self.most = most
        self._price_of = price_of
        self._costs = PROGRAM_COSTS if costs is None else costs

    def worst_case(self, body: bytes) -> float:
        """The most that a request with this JSON body can cost."""
        document = json.loads(body)
        sampled = max((document[name] for name in LIMITS if name in document), default=_LONGEST_ANSWER)
        return self._price_of(Usage(prompt=len(body) + _ADDED_TOKENS, sampled=sampled))

    async def hold(self, body: bytes) -> float:
        """Hold the money for one attempt, and return the amount. Waits while attempts that are under way may leave
        enough. Raises `CostLimitReached` where they cannot."""
        amount, costs = self.worst_case(body), self._costs
        while True:
            with costs.lock:
                if costs.spent + costs.held + amount <= self.most:
                    costs.held += amount
                    return amount
                if costs.spent + amount > self.most:
                    raise CostLimitReached(
                        f"the requests of this program have cost {costs.spent:.4g} of at most {self.most:g}, and the "
                        f"next one may cost {amount:.4g}"
                    )
            await asyncio.sleep(_PAUSE_SECONDS)

    def settle(self, held: float, usage: Usage | None) -> None:
        """End the hold of one attempt: it took `usage`, or the most where that is not known (None)."""
        paid = held if usage is None else self._price_of(usage)
        with self._costs.lock:
            self._costs.held -= held
            self._costs.spent += paid


class BoundedClient(httpx2.AsyncClient):
    """Sends each request and reads its answer within bounds. Follows no redirect: a key is for one host.

    Args:
        url: the endpoint, checked. Proxies of the environment are not used for this machine.
        headers: sent with each request beside what HTTP needs, the key among them; nothing else is sent.
        timeout: seconds from sending a request until its whole answer is there.
        cost_limit: on requests with a body; None: any amount.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str], *, timeout: float, connections: int,
        cost_limit: CostLimit | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            timeout=httpx2.Timeout(timeout, connect=min(_CONNECT_SECONDS, timeout / 2)),
            limits=httpx2.Limits(max_connections=connections, max_keepalive_connections=connections),
            follow_redirects=False,
            trust_env=not is_loopback(url),
        )
        self._own_headers, self._cost_limit, self._seconds = dict(headers), cost_limit, timeout

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send `request`. Raises `httpx2.ReadTimeout` when the whole takes too long, and `CostLimitReached`."""
        headers = {name: value for name, value in request.headers.items() if name.lower() in _HEADERS}
        request.headers = httpx2.Headers(headers | self._own_headers)
        limit = self._cost_limit if request.content else None
        held = 0.0 if limit is None else await limit.hold(request.content)
        usage: Usage | None = None  # unknown, also where it is cancelled: the request is on its way
        try:
            async with asyncio.timeout(self._seconds):
                response = await super().send(request, **{**options, "stream": False})
            response.status_code = _real_status(response)
            usage = _stated(response.content) if response.is_success else NOTHING
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError):
            usage = NOTHING
            raise
        except TimeoutError:
            raise httpx2.ReadTimeout("the whole answer took too long", request=request) from None
        finally:
            if limit is not None:
                limit.settle(held, usage)
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


def _stated(body: bytes) -> Usage | None:
    """The usage that the answer states; None where it states none."""
    try:
        answer = read_answer(body)
    except Garbled:
        return None
    return None if answer.prompt is None or answer.sampled is None else answer.usage(0, 0)
