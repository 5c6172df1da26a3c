"""The engine that runs models in this process, one set of weights per role: those of the Llama family by the project's
own decoder (`llama.py`), any other causal language model by the library's (`fallback.py`), at its speed.

A request's tokens depend on its own ids, settings and seed alone. The one way in which a batch can be felt is float
rounding: matrix products of another shape, or a prompt read in two parts, may differ in the last bits of the logits
(about 1e-6), so a token can change when its uniform number falls that close to a border of the CDF: about once in a
million tokens.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from llguidance import LLMatcher
from transformers import PreTrainedConfig

from cryptosentinel.llm.architecture import describe_architecture, vocabulary_of
from cryptosentinel.llm.chat_format import ChatFormat
from cryptosentinel.llm.engine import Completion, Request, Usage
from cryptosentinel.llm.grammar import Grammars
from cryptosentinel.llm.local.decoding import Prompt, decode
from cryptosentinel.llm.local.fallback import LibraryDecoder
from cryptosentinel.llm.local.families import why_not
from cryptosentinel.llm.local.llama import LlamaDecoder, Unread
from cryptosentinel.llm.local.prefix_cache import KVCache, PrefixCache, common_length
from cryptosentinel.llm.turn import turn_of
from simulator.errors import UserError

_log = logging.getLogger(__name__)
_Part = tuple[list[tuple[int, ...]], Unread]  # the rows' whole conversations, and what is to be read of them
_WORTH_READING_FIRST = 256  # tokens that need not be read again: for fewer, another prefill costs more
_PREFILL_TOKENS = 8192  # at most this many tokens in one prefill, which bounds its activations


class LocalEngine:
    """Batched sampling from one model per role.

    `weights` maps each role to a state in Hugging Face's names, LoRA already merged; they are copied as `dtype` to
    `device`, and what is equal in several roles is held once. `slow` says why the project's own decoder does not
    compute this architecture, where that is so; it is logged. Where a request's sampling is `constrained`, its turn is
    one call that its `tools` allow (see `grammar.py`); `max_tokens` may still cut it short. `max_rows` bounds a decode
    batch. `prefix_cache_mb` bounds, per role, the memory for what earlier turns of conversations computed; 0 turns this
    off. Every `set_weights` empties it, for all roles, so that what follows does not depend on what came before.
    """

    name = "local"

    def __init__(
        self,
        codec: ChatFormat,
        config: PreTrainedConfig,
        weights: Mapping[str, Mapping[str, torch.Tensor]],
        *,
        version: str = "base",
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        max_rows: int = 128,
        prefix_cache_mb: int = 256,
    ) -> None:
        self._vocabulary = vocabulary_of(config)
        if codec.vocab_size > self._vocabulary:
            raise UserError(
                f"the tokenizer has {codec.vocab_size} tokens, the model only {self._vocabulary}: "
                "they do not belong together"
            )
        self.slow = why_not(config)
        if self.slow is not None:
            _log.warning("%s", fallback_note(config, self.slow))
        self._codec = codec
        self._config = config
        self._device = torch.device(device)
        self._dtype = dtype
        self._max_rows = max_rows
        self._cache_bytes = prefix_cache_mb * 2**20
        self._models: dict[str, LlamaDecoder | LibraryDecoder] = {}
        self._versions: dict[str, str] = {}
        self._prefixes: dict[str, PrefixCache] = {}
        self._grammars: Grammars | None = None  # made when first asked for: a large vocabulary takes a second
        given: list[tuple[str, Mapping[str, torch.Tensor]]] = []
        for role, state in weights.items():
            twin = next((other for other, held in given if held is state), None)
            self.set_weights(role, state, version) if twin is None else self._answer_as(role, twin, version)
            given.append((role, state))

    def set_weights(self, role: str, state: Mapping[str, torch.Tensor], version: str) -> None:
        """Answer for `role` with these weights from now on. Raises `UserError` if they do not fit or are not finite."""
        with torch.inference_mode():
            kind: Any = LlamaDecoder if self.slow is None else LibraryDecoder
            self._models[role] = kind(self._config, state, self._device, list(self._models.values()), self._dtype)
        self._versions[role] = version
        self._prefixes[role] = PrefixCache(self._cache_bytes)
        self.forget()

    def _answer_as(self, role: str, twin: str, version: str) -> None:
        """Answer for `role` with the very weights of another one: they are read once."""
        self._models[role], self._versions[role] = self._models[twin], version
        self._prefixes[role] = PrefixCache(self._cache_bytes)

    def forget(self) -> None:
        """Empty the prefix caches: from here on, log-probs are to the bit those of an engine made again.

        Reading a prompt in two parts rounds differently from reading it in one. A caller that promises equal bits (a
        training that resumes) calls this wherever it may be resumed.
        """
        for prefixes in self._prefixes.values():
            prefixes.clear()

    def policy_version(self, role: str) -> str:
        """The version that `set_weights` gave. Raises `KeyError` for a role without weights."""
        return self._versions[role]

    @property
    def weight_bytes(self) -> int:
        """Memory that the weights of all roles take together, what they share counted once."""
        return sum({address: size for model in self._models.values() for address, size in model.memory()}.values())

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Continue every request; the answers come in the order of the requests.

        Raises `KeyError` for a role without weights, `ValueError` for an empty prompt, `max_tokens` < 1 or a constraint
        without tools, `UserError` for a conversation that is longer than the model's positions and for tools that no
        grammar can be made of.
        """
        batches: dict[str, list[int]] = defaultdict(list)
        for index, request in enumerate(requests):
            self._check(request)
            batches[request.role].append(index)
        completions: dict[int, Completion] = {}
        with torch.inference_mode():
            for role, indices in batches.items():
                # Sorted by length, a chunk has few holes; equal prompts stand side by side and are read once.
                indices.sort(key=lambda index: (len(requests[index].ids), requests[index].ids))
                for start in range(0, len(indices), self._max_rows):
                    chunk = indices[start : start + self._max_rows]
                    answers = self._generate_chunk(role, [requests[index] for index in chunk])
                    completions.update(zip(chunk, answers, strict=True))
        return [completions[index] for index in range(len(requests))]

    def _check(self, request: Request) -> None:
        sampling = request.sampling
        if not request.ids or sampling.max_tokens < 1 or sampling.temperature < 0 or sampling.thinking_tokens < 0:
            raise ValueError(
                f"a request needs ids, max_tokens >= 1, temperature >= 0 and thinking_tokens >= 0; "
                f"got {len(request.ids)} ids and {request.sampling}"
            )
        if request.sampling.constrained and not request.tools:
            raise ValueError(f"constrained sampling needs the tools of {request.role}: there are none in the request")
        length, limit = len(request.ids) + request.sampling.room, self._models[request.role].max_positions
        if length > limit:
            raise UserError(
                f"a conversation of {request.role} may grow to {length} tokens, but the model has {limit} positions: "
                "lower max_tokens, thinking_tokens or the number of turns"
            )

    def _generate_chunk(self, role: str, requests: Sequence[Request]) -> list[Completion]:
        model = self._models[role]
        began = time.perf_counter()
        turns = [turn_of(request, self._codec, self._begin) for request in requests]
        if isinstance(model, LibraryDecoder):
            answers = model.decode(turns)
            seconds = time.perf_counter() - began
            return [
                replace(answer, usage=_usage(request, answer, 0, seconds))
                for request, answer in zip(requests, answers, strict=True)
            ]
        prompts = _read(model, self._prefixes[role], list(dict.fromkeys(request.ids for request in requests)))

        def keep(ids: tuple[int, ...], cache: KVCache, start: int) -> None:
            self._prefixes[role].insert(ids, cache, start)

        reads = [prompts[request.ids] for request in requests]
        answers = decode(model, turns, [read for read, _ in reads], keep)
        seconds = time.perf_counter() - began
        seen: set[tuple[int, ...]] = set()
        completions = []
        for request, (_, past), answer in zip(requests, reads, answers, strict=True):
            # Equal prompts are read once: all but the first of them were known.
            known = len(request.ids) if request.ids in seen else past
            seen.add(request.ids)
            completions.append(replace(answer, usage=_usage(request, answer, known, seconds)))
        return completions

    def _begin(self, request: Request, lead: str) -> LLMatcher:
        if self._grammars is None:
            self._grammars = Grammars(self._codec, self._vocabulary)
        return self._grammars.begin(request.tools, lead)


def _usage(request: Request, answer: Completion, known: int, seconds: float) -> Usage:
    """What a request took, of whose prompt `known` tokens were known."""
    return Usage(len(request.ids), known, len(answer.ids), seconds, reasoning=answer.thought)


def fallback_note(config: PreTrainedConfig, reason: str) -> str:
    """What to know of a model that the project's own decoder does not compute, in one line."""
    return (
        f"{describe_architecture(config)} is decoded by transformers itself and scored by plain passes, exact but "
        f"slower than the project's decoder and prefix tree: {reason}"
    )


def _read(
    model: LlamaDecoder, prefixes: PrefixCache, prompts: Sequence[tuple[int, ...]]
) -> dict[tuple[int, ...], tuple[Prompt, int]]:
    """Prefill distinct prompts; with each, how many of its tokens were known.

    What all of them begin with is read before them, once, where that saves enough; it counts as read for the first of
    them. Nothing is padded: those with equally many known and equally many new tokens are rows of one part (`Unread`).
    """
    begin = min(prompts)[: common_length(min(prompts), max(prompts))]
    first = len(begin) - prefixes.longest(begin)[0]
    worth = first * (len(prompts) - 1) >= _WORTH_READING_FIRST
    if worth and prefixes.takes(begin, model.layer_count * model.slot_bytes):
        _read(model, prefixes, [begin])
    else:
        first = 0
    groups: dict[tuple[int, int], list[tuple[tuple[int, ...], list[KVCache]]]] = defaultdict(list)
    for ids in prompts:
        length, known = prefixes.longest(ids)
        past = min(length, len(ids) - 1)  # the last token is always read: its logits are wanted
        groups[past, len(ids) - past].append((ids, known))
    parts: list[_Part] = []
    for (past, new), members in groups.items():
        size = max(1, _PREFILL_TOKENS // new)
        for start in range(0, len(members), size):
            batch = members[start : start + size]
            cache = model.new_cache(len(batch), past + new)
            for row, (_, known) in enumerate(batch):
                _fill(cache, row, known, past)
            tokens = torch.tensor([ids[past:] for ids, _ in batch], device=model.device)
            parts.append(([ids for ids, _ in batch], Unread(tokens, cache, past)))
    read: dict[tuple[int, ...], tuple[Prompt, int]] = {}
    for together in _bounded(parts):
        for (texts, part), logits in zip(together, model.prefill([part for _, part in together]), strict=True):
            for row, ids in enumerate(texts):
                prompt = Prompt(part.cache.row(row, 0, part.length), logits[row])
                read[ids] = prompt, part.past - first if ids == prompts[0] else part.past
                prefixes.insert(ids, prompt.cache)
    return read


def _fill(cache: KVCache, row: int, known: Sequence[KVCache], past: int) -> None:
    """Write the first `past` slots of a row, of which `known` has all."""
    place = 0
    for piece in known:
        stop = min(place + piece.values.shape[3], past)
        cache.write(row, place, piece.row(0, 0, stop - place))
        place = stop


def _bounded(parts: Sequence[_Part]) -> Iterator[list[_Part]]:
    """The parts of each prefill, of at most `_PREFILL_TOKENS` tokens."""
    together: list[_Part] = []
    tokens = 0
    for part in parts:
        size = part[1].ids.numel()
        if together and tokens + size > _PREFILL_TOKENS:
            yield together
            together, tokens = [], 0
        together.append(part)
        tokens += size
    if together:
        yield together
