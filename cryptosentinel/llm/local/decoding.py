"""The decode loop: one token a row and step, over rows that end at different times."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import torch
from llguidance import LLMatcher

from cryptosentinel.llm.engine import Completion, Request
from cryptosentinel.llm.grammar import restrict
from cryptosentinel.llm.local.llama import KVCache, LlamaDecoder
from cryptosentinel.llm.local.sampling import sample, uniforms


@dataclass(frozen=True)
class Prompt:
    """A prompt that has been read: its one-row cache and the logits (V,) that follow its last token."""

    cache: KVCache
    logits: torch.Tensor


@dataclass
class _Row:
    """A request in the making."""

    index: int  # place in the answer
    request: Request
    matcher: LLMatcher | None
    ids: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)


def decode(
    model: LlamaDecoder,
    requests: Sequence[Request],
    prompts: Sequence[Prompt],
    matchers: Sequence[LLMatcher | None],
    ends: Collection[int],
    on_finish: Callable[[tuple[int, ...], KVCache], None],
) -> list[Completion]:
    """Continue every request from its prompt until one of `ends` or its `max_tokens`.

    The prompts are right-aligned in one cache, so that all rows write the same slot at each step; a mask hides what
    lies left of the shorter ones. A row with a matcher says only what that allows. A finished row is replaced by the
    last one, so the rows in use are always the first ones. `on_finish` gets, for each row, the tokens that its cache
    covers (all but the last sampled one) and a view of that cache.
    """
    longest = max(len(request.ids) for request in requests)
    steps = max(request.sampling.max_tokens for request in requests)
    cache = KVCache.zeros(model, len(requests), longest + steps - 1)
    for index, (request, prompt) in enumerate(zip(requests, prompts, strict=True)):
        cache.write(index, longest - len(request.ids), prompt.cache)
    mask = _mask(model, requests, longest, longest + steps - 1)

    rows = [
        _Row(index, request, matcher) for index, (request, matcher) in enumerate(zip(requests, matchers, strict=True))
    ]
    temperatures = _tensor(model, [request.sampling.temperature for request in requests], torch.float32)
    positions = _tensor(model, [len(request.ids) for request in requests], torch.int64)
    chance = torch.from_numpy(
        uniforms([request.seed for request in requests], [len(request.ids) for request in requests], steps)
    ).to(model.device)
    completions: dict[int, Completion] = {}
    logits = torch.stack([prompt.logits for prompt in prompts])
    for step in range(steps):
        if any(row.matcher for row in rows):
            logits = restrict(logits, [row.matcher for row in rows])
        drawn, drawn_logps = sample(logits, temperatures, chance[:, step])
        finished: list[int] = []
        for place, (token, logp) in enumerate(zip(drawn.tolist(), drawn_logps.tolist(), strict=True)):
            row = rows[place]
            row.ids.append(token)
            row.logps.append(logp)
            if row.matcher is not None:
                row.matcher.consume_token(token)
            ended = token in ends
            if ended or len(row.ids) == row.request.sampling.max_tokens:
                finished.append(place)
                completions[row.index] = Completion(tuple(row.ids), tuple(row.logps), ended)
                covered = row.request.ids + tuple(row.ids[:-1])
                on_finish(covered, cache.row(place, longest - len(row.request.ids), longest + step))
        if len(finished) == len(rows):
            break
        if finished:
            keep = _close_gaps(rows, finished, cache, mask)
            chosen = _tensor(model, keep, torch.int64)
            drawn, temperatures, positions = drawn[chosen], temperatures[chosen], positions[chosen]
            chance = chance[chosen]
        logits = model.step(drawn, positions + step, cache, longest + step, mask)
    return [completions[index] for index in range(len(requests))]


def _close_gaps(rows: list[_Row], finished: Sequence[int], cache: KVCache, mask: torch.Tensor | None) -> list[int]:
    """Move the last rows into the places of the finished ones; returns the old place of each row that remains."""
    places = list(range(len(rows)))
    for gap in reversed(finished):  # from the back, so that the row that moves in is never itself finished
        last = len(rows) - 1
        if gap != last:
            cache.move(last, gap)
            if mask is not None:
                mask[gap] = mask[last]
            rows[gap], places[gap] = rows[last], places[last]
        rows.pop()
        places.pop()
    return places


def _mask(model: LlamaDecoder, requests: Sequence[Request], longest: int, slots: int) -> torch.Tensor | None:
    """Zeros, and -inf left of each row's prompt: (B, G, 1, T). None if all prompts are equally long."""
    holes = [longest - len(request.ids) for request in requests]
    if not any(holes):
        return None
    hidden = torch.arange(slots, device=model.device)[None, :] < _tensor(model, holes, torch.int64)[:, None]
    mask = torch.zeros(len(requests), slots, device=model.device).masked_fill_(hidden, float("-inf"))
    return mask[:, None, None, :].repeat(1, model.kv_heads, 1, 1)


def _tensor(model: LlamaDecoder, values: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=model.device)
