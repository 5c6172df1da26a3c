"""An engine before an endpoint: one exchange, its failures, what the endpoint refuses, and room for whole answers.

What differs between APIs is in two packages: `openai_api` and `anthropic_api` turn token ids into messages, and the
answer back into ids of the same codec. So the team sees an engine like any other. An endpoint's own tokens and
log-probs are not known: log-probs are 0, so its answers serve backtests and cannot be trained on. No endpoint promises
the same answer twice: a cassette (`cryptosentinel.llm.cassette`) makes a run repeatable.

The SDKs ask again after 408, 409, 429, 5xx, a broken connection or a timeout, with growing pauses, or as long as
`Retry-After` says where that is at most two minutes (a longer one ends the request).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import httpx2

from cryptosentinel.llm.chat_format import ChatFormat, ChatMessages
from cryptosentinel.llm.endpoint.adaptation import (
    STRUCTURED_LEVELS,
    Adaptation,
    Refusal,
    Structured,
    UserSettingRefused,
    is_final,
)
from cryptosentinel.llm.endpoint.answer import Answer, Dialect, Garbled, model_names
from cryptosentinel.llm.endpoint.cost_limit import CostLimit, CostLimitReached
from cryptosentinel.llm.endpoint.http import MAX_BODY_BYTES, BoundedClient, TooLarge, cancel_others, cancel_tasks
from cryptosentinel.llm.endpoint.keys import is_secret, read_key
from cryptosentinel.llm.endpoint.urls import check_url
from cryptosentinel.llm.engine import NOTHING, Completion, Request, Sampling, Usage, all_answers, failed_completion
from cryptosentinel.protocol.untrusted import clean
from simulator.errors import RunFailed, UserError

_T = TypeVar("_T")

_REASON_CHARS = 200  # of what an endpoint says about a refusal
_PROBE_TOKENS = 16
_KEPT_TURNS = 2048  # of which parts are sent back as they came
# What models are told that call no tools of the API. The form is the one that answers are read in.
_TEXT_CALLS = (
    "Answer with exactly one function call and nothing else, in this form:\n"
    '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)
_JSON_CALLS = 'Answer with one JSON object and nothing else: {"name": <function-name>, "arguments": <args-json-object>}'


class Failed(Exception):
    """A request that got no answer for good; the next one may."""


class Unreachable(Exception):
    """Nobody listens, or no way leads there."""


CUT_OFF_RETRIES = 2  # of an answer that was cut off, each time with twice the room


@dataclass(frozen=True)
class EndpointSettings:
    """How an endpoint is asked.

    Attributes:
        concurrency: requests under way at a time, pauses before another attempt included.
        requests_per_minute: at most so many, attempts counted; 0 for any number.
        timeout: seconds for one attempt, from sending it to its whole answer.
        retries: further attempts after a passing failure.
        structured: how an answer is made a call; one that is refused gives way to the next of `STRUCTURED_LEVELS`.
        thinking_tokens: tokens that a model which thinks has for its thoughts, beside those of its answer.
        reasoning_effort, extra_body: of the request; empty sends nothing.
    """

    concurrency: int = 8
    requests_per_minute: float = 0.0
    timeout: float = 120.0
    retries: int = 4
    structured: Structured = STRUCTURED_LEVELS[0]
    thinking_tokens: int = 8192
    reasoning_effort: str = ""
    extra_body: Mapping[str, Any] = field(default_factory=dict)


class EndpointEngine(ABC):
    """Answers each request by one message of an endpoint; a `StreamingEngine`.

    Args:
        codec: the team's; any will do, as it only carries text.
        url: base of the endpoint, as `http://localhost:11434/v1`.
        model: its name there.
        key_variable: environment variable that holds the key; "" for an endpoint without one.
        newer_limit: whether the limit of an answer is called `max_completion_tokens` there.
        cost_limit: what its requests may cost; None: anything.

    Raises:
        UserError: a URL that cannot be used, no model, a key that is not there, cannot be sent or is for another
            provider.
    """

    name: str
    _prefix: str  # of policy versions
    _path: str  # of a request
    _models_path = "/models"

    def __init__(
        self,
        codec: ChatFormat,
        url: str,
        model: str,
        *,
        key_variable: str = "",
        newer_limit: bool = False,
        settings: EndpointSettings | None = None,
        cost_limit: CostLimit | None = None,
    ) -> None:
        if not model:
            raise UserError("the endpoint's model has no name: give it as the endpoint spells it")
        self._codec = codec
        self._url = check_url(url)
        self._model = model
        self._key_variable = key_variable
        self._key = read_key(key_variable, self._url)
        self._settings = settings = settings or EndpointSettings()
        self._http = BoundedClient(
            self._url,
            self._headers(self._key),
            timeout=settings.timeout,
            per_minute=settings.requests_per_minute,
            connections=settings.concurrency,
            is_final=is_final,
            meter=None if cost_limit is None else _AnswerMeter(cost_limit, self._read_answer),
        )
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._adaptation = Adaptation(
            limit_name="max_completion_tokens" if newer_limit else "max_tokens",
            structured=settings.structured,
            chosen=frozenset({*self._effort(), *settings.extra_body}),
        )
        told = {"thinking", "reasoning"} & {*settings.extra_body}
        self._thinks = bool(told) or settings.reasoning_effort not in ("", "none", "minimal")
        self._growth = 1  # of the room of an answer: what the last one that was cut off needed
        self._kept: OrderedDict[bytes, Mapping[str, Any]] = OrderedDict()
        self._listed: list[str] = []  # models that it says it has
        self._dialect = Dialect()
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r}, {self._model!r})"

    @property
    def notes(self) -> tuple[str, ...]:
        """What this endpoint refuses or does otherwise, and how that was met; a sentence each."""
        return tuple(f"{self._model} at {self._url}: {note}" for note in self._adaptation.notes)

    @property
    def dialect(self) -> Dialect:
        """How its latest answer was written."""
        return self._dialect

    def policy_version(self, role: str) -> str:
        """Which weights the model's name means is the endpoint's affair."""
        return f"{self._prefix}:{self._model}"

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """All answers, in the order of the requests. Raises what `submit`'s futures raise."""
        return all_answers(self, requests)

    def submit(self, request: Request) -> Future[Completion]:
        """Start to answer. What fails for this request alone is its completion's `failure`.

        The future raises `UserError` where no request will be answered: the endpoint refuses the key or a setting of
        the user, does not know the model, redirects elsewhere, or says that nothing is left to spend, and where the
        limit on costs is reached; and `RunFailed` where it cannot be reached.
        """
        return self._start(self._complete(request))

    def cancel_pending(self) -> None:
        """Cancel all that is under way."""
        loop = self._loop  # not under the lock: whoever was interrupted may hold it
        if loop is not None:
            cancel_tasks(loop)

    def check(self) -> None:
        """Ask for the list of models, and where that does not name the model, for a few tokens.

        Raises `UserError` if the endpoint cannot be reached or used.
        """
        try:
            self._start(self._check()).result()
        except Unreachable as error:
            raise UserError(f"{error}: check the URL, and that the server runs") from None
        except Failed as error:
            raise UserError(f"{self._url} gives no answer: {error}; check the URL and the model") from None

    def close(self) -> None:
        """End the connections and the thread. What is under way is cancelled; nothing can be asked afterwards."""
        with self._starting:
            loop, self._loop = self._loop, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(self._end(), loop).result()
            loop.call_soon_threadsafe(loop.stop)

    @abstractmethod
    def _headers(self, key: str) -> dict[str, str]:
        """The headers of each request, with the key where that is not ""."""

    @abstractmethod
    def _effort(self) -> dict[str, Any]:
        """The parameters that `reasoning_effort` sets."""

    @abstractmethod
    def _body(self, turns: ChatMessages, request: Request, kept: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The request in the API's words, but for the limit of its answer. `kept` is by turn what came with it."""

    @abstractmethod
    def _read_answer(self, body: bytes) -> Answer:
        """The answer in the body of a response. Raises `Garbled`."""

    @abstractmethod
    async def _exchange(self, method: str, path: str, body: dict[str, Any] | None) -> httpx2.Response:
        """One exchange through the SDK, with all its attempts. Raises `Refusal`, `Failed`, `Unreachable`."""

    @abstractmethod
    async def _close_sdk(self) -> None:
        """End its connections."""

    def _start(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Run `work` on the engine's own thread, which lives as long as the program."""
        with self._starting:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                threading.Thread(target=_serve, args=(loop,), name=self.name, daemon=True).start()
                self._loop = loop  # not before its thread runs, or `close` would wait for it for ever
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _end(self) -> None:
        await cancel_others()
        await self._close_sdk()

    async def _complete(self, request: Request) -> Completion:
        async with self._slots:
            began = time.perf_counter()
            spent: list[Usage] = []  # of every answer that came, also of those that were cut off
            try:
                answer = await self._whole_answer(request, spent)
            except Failed as error:
                return failed_completion(str(error), _sum(spent, time.perf_counter() - began))
            except Unreachable as error:
                raise RunFailed(f"{error}: start the server or restore the connection, and run again") from None
            seconds = time.perf_counter() - began
        text = answer.text.replace(self._key, "[key]") if is_secret(self._key) else answer.text
        ids = self._codec.encode_assistant(text)
        if not answer.finished:
            ids.pop()  # the end of turn, which was not said
        elif answer.kept:
            self._keep([*self._codec.messages(request.ids), {"role": "assistant", "content": text}], answer)
        return Completion(tuple(ids), (0.0,) * len(ids), answer.finished, _sum(spent, seconds))

    async def _whole_answer(self, request: Request, spent: list[Usage]) -> Answer:
        """The answer. One that was cut off is asked again with more room, and what it took stays in `spent`."""
        growth = self._growth
        turns = self._codec.messages(request.ids)
        body = self._body(turns, request, self._kept_of(turns))
        for attempt in range(CUT_OFF_RETRIES + 1):
            room = self._room(request, growth)
            answer = self._read(await self._post(body, request, room))
            length = len(answer.text.encode("utf-8", "replace"))
            # Where the endpoint does not count, the codec's own tokens stand for its: with bytes, rather too many.
            spent.append(answer.usage(len(request.ids), length + answer.finished))
            self._dialect = answer.dialect
            if answer.dialect.calls > 1:
                self._adaptation.note("its model made several calls in one answer: the first counts")
            if answer.thought and not self._thinks:
                self._thinks = True  # its thoughts get room of their own from now on
            if answer.finished:
                self._growth = max(growth, self._growth)
                return answer
            if self._room(request, growth) <= room:
                growth *= 2
            if self._room(request, growth) <= room:  # the endpoint gives no more
                return answer
            if attempt < CUT_OFF_RETRIES:
                self._adaptation.note(f"an answer was cut off at {room:,} tokens and asked again with more room")
        return answer

    def _room(self, request: Request, growth: int) -> int:
        """How many tokens an answer may have, its thoughts included."""
        room = growth * (request.sampling.max_tokens + (self._settings.thinking_tokens if self._thinks else 0))
        return min(room, self._adaptation.cap) if self._adaptation.cap else room

    async def _post(self, body: dict[str, Any], request: Request, room: int) -> bytes:
        """The answer's body. What the endpoint refuses by name is adapted, and remembered for the session."""
        while True:
            sent = self._adapted(body, request)
            most = min(room, self._adaptation.cap) if self._adaptation.cap else room
            sent[self._adaptation.limit_name] = most
            try:
                return await self._ask("POST", self._path, sent)
            except Refusal as refusal:
                left = self._adaptation.room_left(refusal, sent)
                if left:
                    room = left  # of this request alone: the next one may be shorter
                elif left == 0 or not self._learns(refusal, sent):
                    raise self._describe_refusal(refusal) from None

    def _learns(self, refusal: Refusal, sent: Mapping[str, Any]) -> bool:
        try:
            return self._adaptation.learn(refusal, sent)
        except UserSettingRefused as error:
            name = "reasoning_effort" if error.parameter in self._effort() else ""
            key = f"engine.{name}" if name else f"engine.extra_body.{error.parameter}"
            raise UserError(
                f"{self._url} refuses what {key} sets ({refusal.status}: {self._shown(refusal.reason)}): change it, or "
                "leave it out"
            ) from None

    def _adapted(self, body: dict[str, Any], request: Request) -> dict[str, Any]:
        """The request as the endpoint takes it, but for the limit of its answer."""
        settings = self._settings
        sent = self._adaptation.taken(body)
        sent |= self._effort()
        sent |= settings.extra_body
        return self._with_tools(sent, request, self._adaptation.structured) if request.tools else sent

    @abstractmethod
    def _with_tools(self, body: dict[str, Any], request: Request, level: Structured) -> dict[str, Any]:
        """The request with its tools, in the way of `level`."""

    async def _check(self) -> None:
        try:
            names = model_names(await self._ask("GET", self._models_path))
        except Refusal as refusal:
            if refusal.status == 401 or 300 <= refusal.status < 400:
                raise self._describe_refusal(refusal) from None
            names = None  # not every endpoint has a list, or shows it to every key
        except Failed:
            names = None
        self._listed = names or []
        known = {self._model, f"models/{self._model}"}  # the second is how Google lists them
        if not known & {*self._listed}:  # it may go by more names than are listed
            probe = Request("", (), Sampling(), 0)
            body = {"model": self._model, "messages": [{"role": "user", "content": "ping"}]}
            self._read(await self._post(body, probe, _PROBE_TOKENS))

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        """The body of the response to one exchange. Raises what `_exchange` raises."""
        try:
            return (await self._exchange(method, path, body)).content
        except TooLarge:
            raise Failed(f"the answer is larger than {MAX_BODY_BYTES // 2**20} MiB") from None
        except CostLimitReached as error:
            raise _too_dear(error) from None

    def _read(self, body: bytes) -> Answer:
        try:
            return self._read_answer(body)
        except Garbled as error:
            raise Failed(f"the answer is no chat completion but {self._shown(str(error))}") from None

    def _broken(self, error: Exception, timed_out: bool) -> Failed | Unreachable | UserError:
        """A connection error of the SDK in words."""
        cause = error.__cause__
        if isinstance(cause, CostLimitReached):  # an SDK may wrap what it does not know
            return _too_dear(cause)
        if isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.ProxyError):
            return Unreachable(f"{self._url} cannot be reached ({self._shown(str(cause))})")
        retries = self._settings.retries
        attempts = f"in {retries + 1} attempts" if retries else "in one attempt"
        if timed_out:
            return Failed(f"timed out: no answer within {self._settings.timeout:g} s {attempts}")
        return Failed(f"the connection broke off {attempts}")

    def _describe_refusal(self, refusal: Refusal) -> UserError | Failed:
        """A refusal in words: what ends the run, or only the request."""
        status, reason = refusal.status, self._shown(refusal.reason)
        if 300 <= status < 400:
            target = self._shown(refusal.location or "nowhere")
            return UserError(f"{self._url} redirects to {target}, where no key is sent: give the address itself")
        if status in (401, 403):
            if not self._key:
                return UserError(
                    f"{self._url} wants a key ({status}: {reason}): name the environment variable with it in "
                    "engine.key_variable"
                )
            return UserError(
                f"{self._url} refuses the key ({status}: {reason}): check the environment variable "
                f"{self._key_variable}, and what its key may do"
            )
        spent = refusal.code in ("insufficient_quota", "billing_error") or "credit balance is too low" in refusal.text
        if status == 402 or spent:
            return UserError(f"{self._url} has nothing left to spend ({status}: {reason}): look at the account there")
        if status == 404:
            has = f"; it lists {self._shown(', '.join(self._listed[:20]))}" if self._listed else ""
            return UserError(
                f"{self._url} does not know the model {self._model!r} ({status}: {reason}): check its name, and the "
                f"URL{self._url_hint}{has}"
            )
        return Failed(f"refused with status {status}: {reason}")

    _url_hint = ""  # how a URL of this API mostly looks

    def _kept_of(self, turns: ChatMessages) -> list[Mapping[str, Any]]:
        """By turn, what came with it and is to be sent back; empty for most."""
        return [self._kept.get(name, {}) for name in _names(turns)] if self._kept else [{} for _ in turns]

    def _keep(self, turns: ChatMessages, answer: Answer) -> None:
        self._kept[_names(turns)[-1]] = answer.kept
        while len(self._kept) > _KEPT_TURNS:
            self._kept.popitem(last=False)

    def _shown(self, text: str) -> str:
        """Text of an endpoint for people: one short line without the key."""
        return self._hidden(clean(self._hidden(text), _REASON_CHARS))

    def _hidden(self, text: str) -> str:
        return text.replace(self._key, "[key]") if self._key else text


class _AnswerMeter:
    """The `Meter` of a client whose answers `read` reads."""

    def __init__(self, limit: CostLimit, read: Callable[[bytes], Answer]) -> None:
        self._limit = limit
        self._read = read

    async def hold(self, body: bytes) -> float:
        return await self._limit.hold(body)

    def settle(self, held: float, answer: bytes | None) -> None:
        self._limit.settle(held, None if answer is None else self._stated(answer))

    def release(self, held: float) -> None:
        self._limit.settle(held, NOTHING)

    def _stated(self, body: bytes) -> Usage | None:
        """What the answer states that it took; None where it does not."""
        try:
            answer = self._read(body)
        except Garbled:
            return None
        return None if answer.prompt is None or answer.sampled is None else answer.usage(0, 0)


def _too_dear(error: CostLimitReached) -> UserError:
    return UserError(
        f"{error}: allow more with -s budget.max_cost=..., in the currency of the prices, or any amount with 0; a "
        "backtest with --record keeps its answers, and the same command then goes on without paying for them again"
    )


def described_tools(request: Request, level: Structured) -> str:
    """What a prompt says of the tools where the API takes none: their schemas, and how a call is written."""
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in request.tools)
    return f"# Functions\n\n{listed}\n\n{_JSON_CALLS if level == 'json_schema' else _TEXT_CALLS}"


def reason_of(body: object, text: str) -> str:
    """What an endpoint says about its refusal, as it says it; `body` is its JSON, `text` all of it."""
    if isinstance(body, list) and body:  # as Google wraps it
        body = body[0].get("error") if isinstance(body[0], dict) else None
    if isinstance(body, dict):
        body = next((body[name] for name in ("message", "detail", "error") if isinstance(body.get(name), str)), None)
    said = body if isinstance(body, str) else text
    if said[:200].lstrip().lower().startswith(("<!doctype", "<html")):
        return "a web page"
    return said or "no reason given"


def _sum(spent: Sequence[Usage], seconds: float) -> Usage:
    """What all answers to one request took together; all but the first are further requests."""
    return replace(sum(spent, NOTHING), seconds=seconds, retried=max(0, len(spent) - 1))


def _names(turns: ChatMessages) -> list[bytes]:
    """By turn, what the conversation up to it is known by."""
    names: list[bytes] = []
    name = b""
    for turn in turns:
        said = f"{turn['role']}\0{turn['content']}".encode("utf-8", "replace")
        name = hashlib.blake2b(name + said, digest_size=16).digest()
        names.append(name)
    return names


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()
