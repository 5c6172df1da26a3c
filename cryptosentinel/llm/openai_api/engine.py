"""The engine behind any endpoint of the OpenAI kind: Ollama, vLLM's server, commercial ones.

`messages.py` turns token ids into messages, and the answer back into ids of the same codec. So the team sees an engine
like any other. An endpoint's own tokens and log-probs are not known: log-probs are 0, so its answers serve backtests
and cannot be trained on. A seed is passed on, but no endpoint promises the same answer twice: a cassette
(`cryptosentinel.llm.cassette`) makes a run repeatable.

The SDK asks again after 408, 409, 429, 5xx, a broken connection or a timeout, with growing pauses, or as long as
`Retry-After` says where that is at most two minutes (a longer one ends the request).
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import httpx2
import openai

from cryptosentinel.llm.chat_format import ChatFormat
from cryptosentinel.llm.engine import Completion, Request, Usage, all_answers, failed_completion
from cryptosentinel.llm.openai_api.http import MAX_BODY_BYTES, BoundedClient, TooLarge, check_url
from cryptosentinel.llm.openai_api.messages import Answer, Garbled, model_names, read_answer, to_messages
from cryptosentinel.protocol.untrusted import clean
from simulator.errors import RunFailed, UserError

_T = TypeVar("_T")

_REASON_CHARS = 200  # of what an endpoint says about a refusal
_SECRET_CHARS = 8  # a shorter key, like the "none" that local servers ask for, is no secret
_SEED_BITS = 31  # more than that is refused by some
# Refused parameters without which the meaning stays: several calls are refused by `tool_calls.parse`, too.
_DISPENSABLE = ("parallel_tool_calls", "seed")
_PROBE_TOKENS = 16


class _Failed(Exception):
    """A request that got no answer for good; the next one may."""


class _Unreachable(Exception):
    """Nobody listens, or no way leads there."""


class OpenAIEngine:
    """Answers each request by a chat completion; a `StreamingEngine`.

    Args:
        codec: the team's; any will do, as it only carries text.
        url: base of the endpoint, as `http://localhost:11434/v1`.
        model: its name there.
        key_variable: environment variable that holds the key; "" for an endpoint without one.
        concurrency: requests under way at a time, pauses before another attempt included.
        requests_per_minute: at most so many, attempts counted; 0 for any number.
        timeout: seconds for one attempt, from sending it to its whole answer.
        retries: further attempts after a passing failure.

    Raises:
        UserError: a URL that cannot be used, no model, a key that is not there or cannot be sent.
    """

    name = "openai_api"

    def __init__(
        self,
        codec: ChatFormat,
        url: str,
        model: str,
        *,
        key_variable: str = "",
        concurrency: int = 8,
        requests_per_minute: float = 0.0,
        timeout: float = 120.0,
        retries: int = 4,
    ) -> None:
        if not model:
            raise UserError("the endpoint's model has no name: give it as the endpoint spells it")
        self._codec = codec
        self._url = check_url(url)
        self._model = model
        self._key_variable = key_variable
        self._key = _key_from(key_variable)
        self._timeout = timeout
        self._retries = retries
        http = BoundedClient(
            self._url, self._key, timeout=timeout, per_minute=requests_per_minute, connections=concurrency
        )
        # The client below it sends the key; what the SDK thinks the key is goes nowhere.
        self._sdk = openai.AsyncOpenAI(
            base_url=self._url, api_key="unused", max_retries=retries, timeout=http.timeout, http_client=http
        )
        self._slots = asyncio.Semaphore(concurrency)
        self._refused: set[str] = set()  # parameters that this endpoint does not take
        self._listed: list[str] = []  # models that it says it has
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"OpenAIEngine({self._url!r}, {self._model!r})"

    def policy_version(self, role: str) -> str:
        """`openai:MODEL`: which weights that names is the endpoint's affair."""
        return f"openai:{self._model}"

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """All answers, in the order of the requests. Raises what `submit`'s futures raise."""
        return all_answers(self.submit, requests)

    def submit(self, request: Request) -> Future[Completion]:
        """Start to answer. What fails for this request alone is its completion's `failure`.

        The future raises `UserError` where no request will be answered: the endpoint refuses the key, does not know
        the model, redirects elsewhere, or says that nothing is left to spend; and `RunFailed` where it cannot be
        reached.
        """
        return self._start(self._complete(request))

    def check(self) -> None:
        """Ask for the list of models, and where that does not name the model, for a few tokens.

        Raises `UserError` if the endpoint cannot be reached or used.
        """
        try:
            self._start(self._check()).result()
        except _Unreachable as error:
            raise UserError(f"{error}: check the URL, and that the server runs") from None
        except _Failed as error:
            raise UserError(f"{self._url} gives no answer: {error}; check the URL and the model") from None

    def close(self) -> None:
        """End the connections and the thread. What is under way is cancelled; nothing can be asked afterwards."""
        with self._starting:
            loop, self._loop = self._loop, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(self._end(), loop).result()
            loop.call_soon_threadsafe(loop.stop)

    def _start(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Run `work` on the engine's own thread, which lives as long as the program."""
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_serve, args=(self._loop,), name=self.name, daemon=True).start()
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._sdk.close()

    async def _complete(self, request: Request) -> Completion:
        async with self._slots:
            began = time.perf_counter()
            try:
                answer = self._read(await self._post(self._body(request)))
            except _Failed as error:
                return failed_completion(str(error), Usage(seconds=time.perf_counter() - began))
            except _Unreachable as error:
                raise RunFailed(f"{error}: start the server or restore the connection, and run again") from None
            seconds = time.perf_counter() - began
        text = answer.text.replace(self._key, "[key]") if len(self._key) >= _SECRET_CHARS else answer.text
        ids = self._codec.encode_assistant(text)
        if not answer.finished:
            ids.pop()  # the end of turn, which was not said
        # Where the endpoint does not count, the codec's own tokens stand for its: with bytes, rather too many.
        usage = Usage(
            prompt=len(request.ids) if answer.prompt is None else answer.prompt,
            cached=answer.cached,
            sampled=len(ids) if answer.sampled is None else answer.sampled,
            seconds=seconds,
        )
        return Completion(tuple(ids), (0.0,) * len(ids), answer.finished, usage)

    def _body(self, request: Request) -> dict[str, Any]:
        """The request in the endpoint's words, as if it took every parameter."""
        body: dict[str, Any] = {
            "model": self._model,
            "messages": to_messages(self._codec.messages(request.ids)),
            "temperature": request.sampling.temperature,
            "max_tokens": request.sampling.max_tokens,
            "seed": _folded(request.seed),
        }
        if request.tools:
            body |= {"tools": list(request.tools), "parallel_tool_calls": False}
            if request.sampling.constrained:
                body["tool_choice"] = "required"
        return body

    async def _post(self, body: dict[str, Any]) -> bytes:
        """The answer's body. A parameter that the endpoint refuses by name is left out from then on."""
        while True:
            sent = {name: value for name, value in body.items() if name not in self._refused}
            if "max_tokens" in self._refused:
                sent["max_completion_tokens"] = body["max_tokens"]
            try:
                return await self._ask("POST", "/chat/completions", sent)
            except openai.APIStatusError as error:
                refused = _refused_parameter(error, sent)
                if refused is None:
                    raise self._describe_refusal(error) from None
                self._refused.add(refused)

    async def _check(self) -> None:
        try:
            names = model_names(await self._ask("GET", "/models"))
        except openai.APIStatusError as error:
            if error.status_code == 401 or 300 <= error.status_code < 400:
                raise self._describe_refusal(error) from None
            names = None  # not every endpoint has a list, or shows it to every key
        except _Failed:
            names = None
        self._listed = names or []
        if self._model not in self._listed:  # it may go by more names than are listed
            probe = [{"role": "user", "content": "ping"}]
            self._read(await self._post({"model": self._model, "messages": probe, "max_tokens": _PROBE_TOKENS}))

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        """One exchange with all its attempts. Raises `openai.APIStatusError`, `_Failed`, `_Unreachable`."""
        try:
            if method == "GET":
                response = await self._sdk.get(path, cast_to=httpx2.Response)
            else:
                response = await self._sdk.post(path, cast_to=httpx2.Response, body=body)
        except openai.APIConnectionError as error:
            cause = error.__cause__
            if isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.ProxyError):
                raise _Unreachable(f"{self._url} cannot be reached ({self._shown(str(cause))})") from None
            attempts = f"in {self._retries + 1} attempts" if self._retries else "in one attempt"
            if isinstance(error, openai.APITimeoutError):
                raise _Failed(f"timed out: no answer within {self._timeout:g} s {attempts}") from None
            raise _Failed(f"the connection broke off {attempts}") from None
        except TooLarge:
            raise _Failed(f"the answer is larger than {MAX_BODY_BYTES // 2**20} MiB") from None
        return response.content

    def _read(self, body: bytes) -> Answer:
        try:
            return read_answer(body)
        except Garbled as error:
            raise _Failed(f"the answer is no chat completion but {self._shown(str(error))}") from None

    def _describe_refusal(self, error: openai.APIStatusError) -> UserError | _Failed:
        """A refusal in words: what ends the run, or only the request."""
        status, reason = error.status_code, self._shown(_reason(error))
        if 300 <= status < 400:
            target = self._shown(error.response.headers.get("location", "nowhere"))
            return UserError(f"{self._url} redirects to {target}, where no key is sent: give the address itself")
        if status in (401, 403):
            if not self._key:
                return UserError(f"{self._url} wants a key ({status}: {reason}): name the environment variable with it")
            return UserError(
                f"{self._url} refuses the key ({status}: {reason}): check the environment variable "
                f"{self._key_variable}, and what its key may do"
            )
        if status == 402 or error.code == "insufficient_quota":
            return UserError(f"{self._url} has nothing left to spend ({status}: {reason}): look at the account there")
        if status == 404:
            has = f"; it lists {self._shown(', '.join(self._listed[:20]))}" if self._listed else ""
            return UserError(
                f"{self._url} does not know the model {self._model!r} ({status}: {reason}): check its name, and the "
                f"URL, which mostly ends in /v1{has}"
            )
        return _Failed(f"refused with status {status}: {reason}")

    def _shown(self, text: str) -> str:
        """Text of an endpoint for people: one short line without the key."""
        return self._hidden(clean(self._hidden(text), _REASON_CHARS))

    def _hidden(self, text: str) -> str:
        return text.replace(self._key, "[key]") if self._key else text


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


def _key_from(variable: str) -> str:
    """The key that the environment holds. Raises `UserError`, which does not show it."""
    if not variable:
        return ""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise UserError(
            f"the environment variable {variable}, which should hold the endpoint's key, is not set: export it, or "
            "name none for an endpoint without a key"
        )
    if not (key.isascii() and key.isprintable()):
        raise UserError(f"the environment variable {variable} holds signs that no key has: set it anew")
    return key


def _folded(seed: int) -> int:
    """All bits of a seed in as many as every endpoint takes."""
    folded = 0
    while seed:
        folded ^= seed & (2**_SEED_BITS - 1)
        seed >>= _SEED_BITS
    return folded


def _refused_parameter(error: openai.APIStatusError, sent: dict[str, Any]) -> str | None:
    """The parameter that an endpoint does not take, where the request has the same meaning without it."""
    if error.status_code not in (400, 422):
        return None
    text = error.response.text
    if "max_tokens" in sent and "max_completion_tokens" in text:
        return "max_tokens"
    return next((name for name in _DISPENSABLE if name in sent and re.search(rf"\b{name}\b", text)), None)


def _reason(error: openai.APIStatusError) -> str:
    """What an endpoint says about its refusal, as it says it."""
    body = error.body
    if isinstance(body, dict):
        body = next((body[name] for name in ("message", "detail", "error") if isinstance(body.get(name), str)), None)
    text = body if isinstance(body, str) else error.response.text
    if text[:200].lstrip().lower().startswith(("<!doctype", "<html")):
        return "a web page"
    return text or "no reason given"
