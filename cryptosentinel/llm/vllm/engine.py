"""The engine in front of a vLLM server: one base model, an adapter per role, token ids in and out.

The server is one that `server.VllmServer` started, or any other that serves the same folder with

    --enable-lora --logprobs-mode processed_logprobs --structured-outputs-config '{"backend": "guidance"}'

and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1. A request's seed decides its tokens as far as the server computes the same
logits: what else is in the batch and in its prefix cache can change their last bits.

A turn that may begin with a thought is asked for in parts (`llm.turn`): what opens a thought, the thought, and, once it
is closed, the answer with the whole of its own room and its grammar. The server has the earlier parts in its cache.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from cryptosentinel.llm.chat_format import ChatFormat
from cryptosentinel.llm.engine import Completion, Request, Usage, all_answers, failed_completion
from cryptosentinel.llm.grammar import grammar
from cryptosentinel.llm.turn import TurnState, turn_of
from cryptosentinel.llm.vllm.client import (
    KEY_VARIABLE,
    PLAIN_SAMPLING,
    SERVER_RETRIES,
    Refused,
    Unanswered,
    VllmClient,
    check_server,
)
from simulator.errors import RunFailed, UserError

# What vLLM samples at without changing it, 0 (greedy) apart.
COLDEST, HOTTEST = 0.01, 2.0
_SEED_STEP = 0x9E3779B97F4A7C15  # so that no two parts of a turn have seeds that are near each other
_NEVER = -100.0  # a bias that keeps a token from being sampled


class VllmEngine:
    """Streams requests to the vLLM server at `url`, which serves the base model under the name `model`, or
    as its only one where that is empty.

    `codec` and `vocab_size` (the model's number of embeddings) must be those of the folder that it serves. `timeout_s`,
    `retries` and `trouble` are `VllmClient`'s. `positions` is how many tokens a conversation may have there.

    All roles answer with the base model, whose policy version is `version`, or, once `publish` has given one an
    adapter, each with an adapter of its own. Both at once would be wrong: on a CPU, vLLM 0.32 adds an adapter to
    requests of the base model that share a batch with it (its pull request 48421 fixes that). So engines that share a
    server take turns too.

    The constructor asks the server what it is. Raises `UserError` for one that is not there, serves another model or
    tokenizer, or whose log-probs are not those of the distribution that it samples from.
    """

    name = "vllm"

    def __init__(
        self,
        codec: ChatFormat,
        url: str,
        model: str,
        vocab_size: int,
        *,
        version: str = "base",
        timeout_s: float = 600.0,
        retries: int = SERVER_RETRIES,
        trouble: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._codec = codec
        self._version = version
        self._current: dict[str, str] = {}  # by role, the version that answers
        self._previous: dict[str, str] = {}  # and the one before
        self._of_base = 0  # requests of the base model that are under way
        self._lock = threading.Lock()  # of the adapters
        self._publishing = threading.Lock()
        self._order = asyncio.Lock()  # loading and unloading one after the other, in the order they were decided
        self._folders: dict[str, Path] = {}  # of the versions that were published
        self._grammars: dict[str, str] = {}
        self._client = VllmClient(url, timeout_s=timeout_s, retries=retries, trouble=trouble)
        try:
            self._model, self.positions = self._client.wait(check_server(self._client, codec, model, vocab_size))
        except BaseException:
            self._client.close()
            raise

    def policy_version(self, role: str) -> str:
        """The version of the adapter that answers for `role` from now on, or the base model's."""
        with self._lock:
            return self._current.get(role, self._version)

    def publish(self, role: str, version: str, folder: Path) -> None:
        """Answer the requests for `role` that are submitted from now on with the PEFT adapter in `folder`.

        `version` names its content: another content must have another name, and the same one is loaded once for all
        roles that use it. Requests under way end as they began. A version is unloaded when it is not a role's, nor was
        just before; a request that still needs it loads it from `folder` again. A server elsewhere must see the folder
        at the same path. Raises `UserError` for an adapter that the server cannot load, `ValueError` for a first
        adapter while the base model is answering.
        """
        if version == self._model:
            raise ValueError(f"the version '{version}' is the name of the base model")
        if not (folder / "adapter_config.json").is_file():
            raise UserError(f"{folder} holds no adapter_config.json, so it is not an adapter: give a PEFT folder")
        with self._publishing:
            if self._of_base:
                raise ValueError(f"{role} gets an adapter while requests of the base model are under way")
            if version not in self._folders:
                self._client.wait(self._load(version, folder.resolve()))
            with self._lock:
                self._folders[version] = folder.resolve()
                before = self._current.get(role, version)
                if before != version:
                    self._previous[role] = before
                self._current[role] = version
                for stale in self._folders.keys() - {*self._current.values(), *self._previous.values()}:
                    del self._folders[stale]
                    self._client.start(self._forget(stale))

    def submit(self, request: Request) -> Future[Completion]:
        """Start to answer. The future raises `RunFailed` when the server is gone.

        Raises `ValueError` for an empty prompt, `max_tokens` < 1, a constrained request without tools, or a role
        without an adapter where another has one, `UserError` for a conversation longer than the server allows or a
        temperature that it would change.
        """
        body = self._body(request)
        with self._lock:
            version = self._current.get(request.role)
            if self._current and version is None:
                raise ValueError(f"{request.role} has no adapter although other roles have: publish one for it first")
            folder = None if version is None else self._folders[version]
            self._of_base += version is None
        future = self._client.start(self._answer(request, body | {"model": version or self._model}, folder))
        if version is None:
            future.add_done_callback(self._base_ended)
        return future

    def cancel_pending(self) -> None:
        """Cancel all that is under way."""
        self._client.cancel_pending()

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Continue every request; the answers come in the order of the requests. Raises as `submit` and its future."""
        return all_answers(self, requests)

    def close(self) -> None:
        """Give up what is under way, take our adapters off the server if it is there, and end the connection."""
        with self._lock:
            loaded, self._folders = sorted(self._folders), {}
        there: bool = self._client.wait(self._client.healthy())
        if there:
            for version in loaded:
                self._client.wait(self._forget(version))
        self._client.close()

    def _body(self, request: Request) -> dict[str, Any]:
        sampling = request.sampling
        if not request.ids or sampling.max_tokens < 1 or (sampling.constrained and not request.tools):
            raise ValueError(
                f"a request needs ids, max_tokens >= 1 and, where it is constrained, tools; "
                f"got {len(request.ids)} ids, {len(request.tools)} tools and {sampling}"
            )
        if sampling.temperature != 0 and not COLDEST <= sampling.temperature <= HOTTEST:
            raise UserError(
                f"vLLM samples at temperature 0 or {COLDEST} to {HOTTEST}, not {sampling.temperature}: choose another"
            )
        length = len(request.ids) + sampling.room
        if length > self.positions:
            raise UserError(
                f"a conversation of {request.role} may grow to {length} tokens, but the server at {self._client.url} "
                f"takes {self.positions}: lower max_tokens or the number of turns, or start it with a larger "
                "--max-model-len"
            )
        body: dict[str, Any] = {
            "prompt": list(request.ids),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "seed": request.seed,
            "stop_token_ids": sorted(self._codec.ends),
            "logprobs": 0,  # of the sampled token and no other
            **PLAIN_SAMPLING,
        }
        if sampling.constrained:
            body["structured_outputs"] = {"grammar": self._grammar(request)}
        return body

    def _grammar(self, request: Request, lead: str = "", opening: tuple[int, ...] = ()) -> str:
        key = json.dumps([request.tools, lead, opening])
        if key not in self._grammars:
            self._grammars[key] = grammar(request.tools, self._codec, lead, opening)
        return self._grammars[key]

    async def _answer(self, request: Request, body: dict[str, Any], folder: Path | None) -> Completion:
        """The answer to a request, in as many parts as it takes."""
        if self._codec.thoughts is None or request.sampling.thinking_tokens == 0:
            return await self._answer_part(request, body, folder)
        began, turn = time.perf_counter(), turn_of(request, self._codec)
        cached: int | None = None
        while not turn.done:
            if turn.next_forced is not None:
                turn.take(turn.next_forced, 0.0)
                continue
            prompt = request.ids + tuple(turn.ids)
            asked = {name: one for name, one in (body | self._part(turn, prompt)).items() if one is not None}
            part = await self._answer_part(replace(request, ids=prompt), asked, folder)
            if part.failure is not None:
                usage = Usage(len(request.ids), cached or 0, len(turn.ids), time.perf_counter() - began, turn.thought)
                return failed_completion(part.failure, usage)
            cached = part.usage.cached if cached is None else cached
            phase = turn.phase
            if phase == "opening" and request.sampling.constrained and not turn.would_open(part.ids):
                turn.begin_answer()  # with the grammar from its beginning
                continue
            for token, logp in zip(part.ids, part.logps, strict=True):
                turn.take(token, logp)
        usage = Usage(len(request.ids), cached or 0, len(turn.ids), time.perf_counter() - began, turn.thought)
        return replace(turn.completion(), usage=usage)

    def _part(self, turn: TurnState, prompt: tuple[int, ...]) -> dict[str, Any]:
        """What the request for the next part of a turn says otherwise than that for the whole."""
        thoughts, request = turn.thoughts, turn.request
        assert thoughts is not None
        ends = sorted(self._codec.ends)
        # Each part has a seed of its own, or an answer would be drawn by the numbers that drew its thought.
        part: dict[str, Any] = {
            "prompt": list(prompt),
            "max_tokens": turn.room,
            "seed": (request.seed + _SEED_STEP * len(turn.ids)) % 2**63,
            "stop_token_ids": [*ends, thoughts.closing] if turn.phase == "thought" else ends,
        }
        if request.sampling.constrained:
            if turn.phase == "thought":
                part |= {"structured_outputs": None, "logit_bias": {str(end): _NEVER for end in ends}}
            else:
                led = turn.phase == "answer" and turn.thought > 0 and turn.forced == 0
                opening = thoughts.opening if turn.phase == "opening" else ()
                lead = thoughts.lead if led else ""
                part["structured_outputs"] = {"grammar": self._grammar(request, lead, opening)}
        return part

    async def _answer_part(self, request: Request, body: dict[str, Any], folder: Path | None) -> Completion:
        began = time.perf_counter()
        try:
            document = await self._ask(body, folder)
        except Unanswered as error:
            return failed_completion(str(error), Usage(seconds=time.perf_counter() - began))
        except (Refused, UserError) as refusal:
            if isinstance(refusal, UserError) or refusal.status in (401, 403, 404):
                raise RunFailed(
                    f"the vLLM server at {self._client.url} no longer serves '{body['model']}' to us ({refusal}): "
                    f"check its adapters and the key in {KEY_VARIABLE}, and start again"
                ) from None
            usage = Usage(seconds=time.perf_counter() - began)
            return failed_completion(f"the vLLM server refused the request: {refusal}", usage)
        return self._completion(request, document, time.perf_counter() - began)

    async def _ask(self, body: dict[str, Any], folder: Path | None) -> dict[str, Any]:
        """The server's document; an adapter that someone else has unloaded is loaded once more from `folder`."""
        try:
            return await self._client.post("/v1/completions", body)
        except Refused as refusal:
            if refusal.status != 404 or folder is None:
                raise
            await self._load(body["model"], folder)
            return await self._client.post("/v1/completions", body)

    def _completion(self, request: Request, document: dict[str, Any], seconds: float) -> Completion:
        """The server's answer as ours; what is not as it should be makes it a failure."""
        try:
            (choice,) = document["choices"]
            ids = tuple(int(token) for token in choice["token_ids"])
            logps = tuple(map(float, choice["logprobs"]["token_logprobs"]))
            used = document["usage"]
            cached = (used.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            usage = Usage(int(used["prompt_tokens"]), int(cached), len(ids), seconds)
        except (KeyError, TypeError, ValueError, AttributeError):
            usage = Usage(seconds=seconds)
            return failed_completion("the vLLM server's answer lacks token ids, log-probs or usage", usage)
        if usage.prompt != len(request.ids):
            return failed_completion(f"the vLLM server read {usage.prompt} tokens of {len(request.ids)}", usage)
        if not ids or len(ids) != len(logps) or choice.get("finish_reason") not in ("stop", "length"):
            return failed_completion(
                f"the vLLM server ended with {choice.get('finish_reason')!r} after {len(ids)} tokens and "
                f"{len(logps)} log-probs",
                usage,
            )
        return Completion(ids, logps, ids[-1] in self._codec.ends, usage)

    def _base_ended(self, future: Future[Completion]) -> None:
        with self._lock:
            self._of_base -= 1

    async def _load(self, version: str, folder: Path) -> None:
        async with self._order:
            try:
                await self._client.command("/v1/load_lora_adapter", {"lora_name": version, "lora_path": str(folder)})
            except (Refused, Unanswered) as error:
                if version in await self._served():  # by an earlier run, or by a try whose answer was lost
                    return
                raise UserError(
                    f"the vLLM server at {self._client.url} cannot load the adapter in {folder} ({error}): it must see "
                    "that folder, allow adapters of its rank (--max-lora-rank) and their loading at run time "
                    "(VLLM_ALLOW_RUNTIME_LORA_UPDATING=1)"
                ) from None

    async def _served(self) -> set[str]:
        return {str(card.get("id")) for card in (await self._client.get("/v1/models")).get("data") or []}

    async def _forget(self, version: str) -> None:
        async with self._order:
            try:
                await self._client.command("/v1/unload_lora_adapter", {"lora_name": version})
            except (Refused, Unanswered, RunFailed):
                return  # an adapter too many costs memory only; a server that is gone is told by the next request
