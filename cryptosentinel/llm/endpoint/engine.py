"""The engine before any endpoint of the OpenAI kind: OpenAI, Anthropic, Google, OpenRouter, Ollama, vLLM and many more.

It turns token ids into messages, and the answer back into ids of the same codec, so the team sees an engine like any
other. An endpoint's own tokens and log-probs are not known: log-probs are 0, so its answers serve backtests and cannot
be trained on. No endpoint promises the same answer twice: a recording (`llm/recording.py`) makes a run repeatable.

The SDK repeats a request after 408, 409, 429, 5xx, a broken connection or a timeout, with growing pauses.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import httpx2
import openai

from cryptosentinel.llm.chat_format import ChatFormat, ChatMessages
from cryptosentinel.llm.endpoint.adaptation import Adaptation, Refusal
from cryptosentinel.llm.endpoint.http import BoundedClient, CostLimit
from cryptosentinel.llm.endpoint.messages import Answer, Garbled, described, model_names, read_answer, to_messages
from cryptosentinel.llm.endpoint.providers import OWN_KEY, check_url, is_secret, read_key
from cryptosentinel.llm.engine import (
    NOTHING,
    Completion,
    LoopThread,
    Request,
    Sampling,
    Usage,
    all_answers,
    failed_completion,
)
from cryptosentinel.protocol.untrusted import clean
from simulator.errors import RunFailed, UserError

THOUGHT_TOKENS = 8192  # the room of a model that thinks, beside that of its answer
RETRIES = 4  # further attempts after a passing failure: the pauses add up to some fifteen seconds
CUT_OFF_RETRIES = 2  # of an answer that was cut off, each time with twice the room
_REASON_CHARS = 200  # of an endpoint's words about a refusal
_PROBE_TOKENS = 16
_KEPT_TURNS = 2048  # of which parts are sent back as they came
_SEEDS = 2**31 - 1  # more than that is refused by some


class Failed(Exception):
    """A request that got no answer for good; the next one may."""


class Unreachable(Exception):
    """The endpoint cannot be reached."""


class EndpointEngine:
    """Answers each request by a chat completion; a `StreamingEngine`.

    Args:
        codec: the team's; any will do, as it only carries text.
        url: base of the endpoint, as `http://localhost:11434/v1`.
        model: its name there.
        key_variable: environment variable that holds the key; "" for an endpoint without one.
        concurrency: requests under way at a time, pauses before another attempt included.
        timeout: seconds for one attempt, from sending it to its whole answer, and the longest `Retry-After`.
        retries: further attempts after a passing failure.
        extra_body: further fields of each request.
        cost_limit: on the money for its requests; None: any amount.

    Raises:
        UserError: a URL that cannot be used, no model, a key that is missing or cannot be sent.
    """

    name = "openai_api"

    def __init__(
        self, codec: ChatFormat, url: str, model: str, *, key_variable: str = "",
        concurrency: int = 8, timeout: float = 120.0, retries: int = RETRIES,
        extra_body: Mapping[str, Any] | None = None, cost_limit: CostLimit | None = None,
    ) -> None:  # fmt: skip
        if not model:
            raise UserError("the endpoint's model has no name: give it as the endpoint spells it")
        self._codec = codec
        self._url = check_url(url)
        self._model = model
        self._key_variable = key_variable
        self._key = read_key(key_variable, self._url)
        self._attempts = f"in {retries + 1} attempts" if retries else "in one attempt"
        self._timeout = timeout
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        http = BoundedClient(self._url, headers, timeout=timeout, connections=concurrency)
        self._cost_limit = cost_limit
        # The client below it sends the key; the one that the SDK knows goes nowhere.
        self._sdk = openai.AsyncOpenAI(
            base_url=self._url, api_key="unused", max_retries=retries, timeout=http.timeout, http_client=http
        )
        self._slots = asyncio.Semaphore(concurrency)
        self._extra = dict(extra_body or {})
        self._adaptation = Adaptation(chosen=frozenset(self._extra))
        self._thinks = bool({"thinking", "reasoning", "reasoning_effort"} & set(self._extra))
        self._growth = 1  # of the room of an answer: as much as the last one that was cut off needed
        self._kept: dict[bytes, Mapping[str, Any]] = {}
        self._listed: list[str] = []  # its list of models
        self.latest: Answer | None = None  # how it wrote its latest answer
        self._loop = LoopThread(self.name, self._sdk.close)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r}, {self._model!r})"

    @property
    def notes(self) -> tuple[str, ...]:
        """What this endpoint refuses or does differently, and the adaptation; a sentence each."""
        return tuple(f"{self._model} at {self._url}: {note}" for note in self._adaptation.notes)

    def policy_version(self, role: str) -> str:
        """The model's name: only the endpoint knows its weights."""
        return f"openai:{self._model}"

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """All answers, in the order of the requests. Raises what `submit`'s futures raise."""
        return all_answers(self, requests)

    def submit(self, request: Request) -> Future[Completion]:
        """Start to answer. What fails for this request alone is its completion's `failure`.

        The future raises `UserError` where no request will be answered: the endpoint refuses the key or a setting of
        the user, does not know the model, redirects elsewhere, or has no credit left, and where the limit on costs is
        reached; and `RunFailed` where it cannot be reached.
        """
        return self._loop.start(self._complete(request))

    def cancel_pending(self) -> None:
        """Cancel all that is under way."""
        self._loop.cancel_pending()

    def check(self) -> None:
        """Ask for the list of models, and where that lacks the model, for a few tokens.

        Raises `UserError` if the endpoint cannot be reached or used.
        """
        try:
            self._loop.wait(self._check())
        except Unreachable as error:
            raise UserError(f"{error}: check the URL, and that the server runs") from None
        except Failed as error:
            raise UserError(f"{self._url} gives no answer: {error}; check the URL and the model") from None

    def close(self) -> None:
        """End the connections and the thread. What is under way is cancelled; no request can follow."""
        self._loop.close()

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
            ids.pop()  # the end of turn, which the model did not write
        elif answer.kept:
            turns = [*self._codec.messages(request.ids), {"role": "assistant", "content": text}]
            self._kept[_names(turns)[-1]] = answer.kept
            if len(self._kept) > _KEPT_TURNS:
                del self._kept[next(iter(self._kept))]
        return Completion(tuple(ids), (0.0,) * len(ids), answer.finished, _sum(spent, seconds))

    async def _whole_answer(self, request: Request, spent: list[Usage]) -> Answer:
        """The answer. One that was cut off, or that is nothing but a thought, is asked again with more room, and its
        usage stays in `spent`."""
        growth = self._growth
        for attempt in range(CUT_OFF_RETRIES + 1):
            room = self._room(request, growth)
            if self._cost_limit is not None:
                self._cost_limit.check()
            answer = self._read(await self._post(request, room), request)
            length = len(answer.text.encode("utf-8", "replace"))
            # Where the endpoint does not count, the codec's own tokens stand for its: with bytes, rather too many.
            spent.append(answer.usage(len(request.ids), length + answer.finished))
            if self._cost_limit is not None:
                self._cost_limit.add(spent[-1])
            self.latest = answer
            if answer.calls > 1:
                self._adaptation.note("its model made several calls in one answer: the first counts")
            if answer.form == "text" and request.tools and "tools" not in self._adaptation.refused:
                self._adaptation.note("its server left the call in the text of an answer: it is read there")
            self._thinks |= answer.thought  # its thoughts get room of their own from now on
            if answer.finished and not answer.only_thought:
                self._growth = max(growth, self._growth)
                return answer
            if self._room(request, growth) <= room:
                growth *= 2
            if self._room(request, growth) <= room:  # the endpoint gives no more
                break
            if attempt < CUT_OFF_RETRIES:
                what = "held only a thought" if answer.only_thought else f"was cut off at {room:,} tokens"
                self._adaptation.note(f"an answer {what} and was asked again with more room")
        if answer.only_thought:
            raise Failed(f"the model only reasoned, and gave no answer and no call, in {len(spent)} answers")
        return answer

    def _room(self, request: Request, growth: int) -> int:
        """How many tokens an answer may have, its thoughts included."""
        room = growth * (request.sampling.max_tokens + (THOUGHT_TOKENS if self._thinks else 0))
        return min(room, self._adaptation.cap) if self._adaptation.cap else room

    async def _post(self, request: Request, room: int) -> bytes:
        """The answer's body. What the endpoint refuses by name is adapted, and remembered for the session."""
        turns = self._codec.messages(request.ids)
        while True:
            sent = self._body(turns, request)
            sent[self._adaptation.limit_name] = min(room, self._adaptation.cap) if self._adaptation.cap else room
            try:
                return await self._ask("/chat/completions", sent)
            except Refusal as refusal:
                left = self._adaptation.room_left(refusal, sent)
                room = left or room  # of this request alone: the next one may be shorter
                if left == 0 or (left is None and not self._adaptation.learn(refusal, sent)):
                    raise self._describe_refusal(refusal) from None

    def _body(self, turns: ChatMessages, request: Request) -> dict[str, Any]:
        """The request as the endpoint takes it, but for the limit of its answer."""
        if not request.ids:  # the check's
            return {"model": self._model, "messages": [{"role": "user", "content": "ping"}]}
        refused = self._adaptation.refused
        kept = [self._kept.get(name, {}) for name in _names(turns)] if self._kept else [{} for _ in turns]
        as_text = bool(request.tools) and "tools" in refused
        messages = to_messages(turns, kept, as_text=as_text)
        if as_text:
            messages[0]["content"] += f"\n\n{described(request.tools)}"
        body = {
            "model": self._model,
            "messages": messages,
            "temperature": request.sampling.temperature,
            "seed": request.seed % _SEEDS,
        }
        if request.tools and not as_text:
            body |= {"tools": list(request.tools), "parallel_tool_calls": False, "tool_choice": "required"}
        return {name: value for name, value in body.items() if name not in refused} | self._extra

    async def _check(self) -> None:
        try:
            names = model_names(await self._ask("/models"))
        except Refusal as refusal:
            if refusal.status == 401 or 300 <= refusal.status < 400:
                raise self._describe_refusal(refusal) from None
            names = None  # not every endpoint has a list, or shows it to every key
        except Failed:
            names = None
        self._listed = names or []
        # Google lists its models as the second; an endpoint may take more names than it lists.
        if not {self._model, f"models/{self._model}"} & {*self._listed}:
            probe = Request("", (), Sampling(), 0)
            self._read(await self._post(probe, _PROBE_TOKENS), probe)

    async def _ask(self, path: str, body: dict[str, Any] | None = None) -> bytes:
        """The body of the response to one exchange, with all attempts. Raises `Refusal`, `Failed`, `Unreachable`."""
        try:
            if body is None:
                return (await self._sdk.get(path, cast_to=httpx2.Response)).content
            return (await self._sdk.post(path, cast_to=httpx2.Response, body=body)).content
        except openai.APIConnectionError as error:
            cause = error.__cause__
            if isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.ProxyError):
                raise Unreachable(f"{self._url} cannot be reached ({self._shown(str(cause))})") from None
            if isinstance(error, openai.APITimeoutError):
                raise Failed(f"timed out: no answer within {self._timeout:g} s {self._attempts}") from None
            raise Failed(f"the connection broke off {self._attempts}") from None
        except openai.APIStatusError as error:
            raise _refusal(error) from None

    def _read(self, body: bytes, request: Request) -> Answer:
        try:
            return read_answer(body, request.tools)
        except Garbled as error:
            raise Failed(f"the answer is not a chat completion but {self._shown(str(error))}") from None

    def _describe_refusal(self, refusal: Refusal) -> UserError | Failed:
        """A refusal in words: what ends the run, or only the request."""
        status, reason = refusal.status, self._shown(refusal.reason)
        if 300 <= status < 400:
            target = self._shown(refusal.location or "nowhere")
            return UserError(f"{self._url} redirects to {target}, where no key is sent: give the address itself")
        if status in (401, 403) and not self._key:
            return UserError(
                f"{self._url} needs a key ({status}: {reason}): set engine.kind to its provider and export that one's "
                f"key, or export the key of an endpoint of your own as {OWN_KEY}"
            )
        if status in (401, 403):
            return UserError(
                f"{self._url} refuses the key ({status}: {reason}): check the environment variable "
                f"{self._key_variable}, and what its key may do"
            )
        spent = refusal.code in ("insufficient_quota", "billing_error") or "credit balance is too low" in refusal.text
        if status == 402 or spent:
            return UserError(f"{self._url} has no credit left ({status}: {reason}): look at the account there")
        if status == 404:
            has = f"; it lists {self._shown(', '.join(self._listed[:20]))}" if self._listed else ""
            return UserError(
                f"{self._url} does not know the model {self._model!r} ({status}: {reason}): check its name, and the "
                f"URL, which mostly ends in /v1{has}"
            )
        return Failed(f"refused with status {status}: {reason}")

    def _shown(self, text: str) -> str:
        """Text of an endpoint for people: one short line without the key."""
        return self._hidden(clean(self._hidden(text), _REASON_CHARS))

    def _hidden(self, text: str) -> str:
        return text.replace(self._key, "[key]") if self._key else text


def _refusal(error: openai.APIStatusError) -> Refusal:
    text, body = error.response.text, error.body
    if isinstance(body, list) and body:  # as Google wraps it
        body = body[0].get("error") if isinstance(body[0], dict) else None
    if isinstance(body, dict):
        body = next((body[name] for name in ("message", "detail", "error") if isinstance(body.get(name), str)), None)
    said = body if isinstance(body, str) else text
    page = said[:200].lstrip().lower().startswith(("<!doctype", "<html"))
    return Refusal(
        status=error.status_code,
        text=text,
        reason="a web page" if page else said or "no reason given",
        param=error.param if isinstance(error.param, str) else "",
        code=error.code if isinstance(error.code, str) else "",
        location=error.response.headers.get("location", ""),
    )


def _sum(spent: Sequence[Usage], seconds: float) -> Usage:
    """The usage of all answers to one request together; all but the first are further requests."""
    return replace(sum(spent, NOTHING), seconds=seconds, retried=max(0, len(spent) - 1))


def _names(turns: ChatMessages) -> list[bytes]:
    """By turn, a hash of the conversation up to it."""
    names: list[bytes] = []
    name = b""
    for turn in turns:
        said = f"{turn['role']}\0{turn['content']}".encode("utf-8", "replace")
        name = hashlib.blake2b(name + said, digest_size=16).digest()
        names.append(name)
    return names
