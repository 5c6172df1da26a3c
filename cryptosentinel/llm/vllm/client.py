"""HTTP to one vLLM server: retries, and what counts as the server's end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any

from openai import APIConnectionError, APIStatusError, AsyncOpenAI, DefaultAsyncHttpxClient, Timeout

from cryptosentinel.llm.endpoint.providers import check_url, is_loopback
from cryptosentinel.llm.loop import LoopThread
from simulator.errors import RunFailed

KEY_VARIABLE = "VLLM_API_KEY"  # vLLM's own name for the key that a server asks for
_CONNECT_S = 10.0
_AGAIN = frozenset({408, 409, 425, 429})  # refusals that another try can mend, beside all 5xx
_LONGEST_REASON = 500  # characters of a server's words that go into a message


class Refused(Exception):
    """The server will not do it, however often it is asked. `status` is HTTP's."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Unanswered(Exception):
    """No usable answer after all tries, although the server is there."""


class VllmClient(LoopThread):
    """Requests to the vLLM server at `url`, such as `http://127.0.0.1:8000`.

    A request that meets a refused or broken connection, a timeout, HTTP 429 or 5xx, or an answer that is no JSON is
    tried again `retries` times, after `pause_s` seconds, twice that, and so on. `timeout_s` bounds one try, waiting in
    the server's queue included. `trouble` says, where the server is a process of ours, how it ended, or None. The key
    that the server asks for is in the environment's VLLM_API_KEY; no message holds it.

    Raises `UserError` for a url that cannot be one.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 600.0,
        retries: int = 5,
        pause_s: float = 0.5,
        trouble: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.url = check_url(url).removesuffix("/v1")
        self._retries = retries
        self._pause_s = pause_s
        self._trouble = trouble
        self._key = os.environ.get(KEY_VARIABLE, "")
        self._http = AsyncOpenAI(
            base_url=self.url,
            api_key=self._key or "none",  # without one the library would send OPENAI_API_KEY
            max_retries=0,
            http_client=DefaultAsyncHttpxClient(
                timeout=Timeout(timeout_s, connect=_CONNECT_S),
                follow_redirects=False,  # a key is for one host
                trust_env=not is_loopback(self.url),  # a proxy of the environment does not lead to this machine
            ),
        )
        self._http.organization = self._http.project = None  # nor would it keep what else it finds there
        super().__init__("vllm-client", self._http.close)

    async def get(self, path: str) -> Any:
        """The document at `path`; raises as `post` does."""
        return await self._try(lambda: self._http.get(path, cast_to=object))

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """The server's answer to `body`, a JSON document.

        Raises `Refused` for a request that it will not answer, `Unanswered` where all tries failed and the server is
        in health, `RunFailed` where it is not.
        """
        return await self._try(lambda: self._http.post(path, cast_to=object, body=body))

    async def command(self, path: str, body: dict[str, Any]) -> None:
        """Have the server do something. Raises as `post` does; HTTP 500 is not tried again: it says why."""
        await self._try(lambda: self._http.post(path, cast_to=str, body=body), is_command=True)

    async def healthy(self) -> bool:
        """Whether the server says that its engine is in health."""
        try:
            await self._http.get("/health", cast_to=str, options={"timeout": _CONNECT_S})
        except (APIConnectionError, APIStatusError):
            return False
        return True

    async def _try(self, ask: Callable[[], Coroutine[Any, Any, Any]], is_command: bool = False) -> Any:
        reason = ""
        for attempt in range(self._retries + 1):
            if attempt:
                await asyncio.sleep(self._pause_s * 2 ** (attempt - 1))
            try:
                document = await ask()
            except APIStatusError as error:
                reason = self._describe_error(error)
                status = error.status_code
                if (status < 500 and status not in _AGAIN) or (is_command and status == 500):
                    raise Refused(status, reason) from None
            except APIConnectionError as error:
                reason = f"{error} {error.__cause__ or ''}".strip()
            except ValueError as error:
                reason = f"an answer that is no JSON: {error}"
            else:
                if is_command or isinstance(document, dict):
                    return document
                reason = "an answer that is no JSON"
            self.raise_if_ended()
        if not await self.healthy():
            self.raise_if_ended()
            raise RunFailed(
                f"the vLLM server at {self.url} is gone after {self._retries + 1} tries ({reason}): "
                "start it again, then the run"
            )
        raise Unanswered(f"no answer from the vLLM server after {self._retries + 1} tries: {reason}")

    def raise_if_ended(self) -> None:
        """Raise `RunFailed` where the server was a process of ours and has ended."""
        trouble = self._trouble()
        if trouble is not None:
            raise RunFailed(trouble)

    def _describe_error(self, error: APIStatusError) -> str:
        """The server's own words where it has some, without the key."""
        words = error.body.get("message") if isinstance(error.body, dict) else None
        reason = f"HTTP {error.status_code}: {words or error.response.reason_phrase}"
        return (reason.replace(self._key, "***") if self._key else reason)[:_LONGEST_REASON]
