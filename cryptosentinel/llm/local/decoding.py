"""The decode loop: one token a row and step, over rows that end at different times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from cryptosentinel.llm.engine import Completion
from cryptosentinel.llm.local.llama import LlamaDecoder
from cryptosentinel.llm.local.prefix_cache import KVCache
from cryptosentinel.llm.local.sampling import sample, uniforms
from cryptosentinel.llm.local.shared_prefix import SharedPrefix, share, worth_sharing
from cryptosentinel.llm.turn import TurnState, choices

_FIRST_SLOTS = 1024  # of a cache, for what is sampled; few thoughts take all that they may


@dataclass(frozen=True)
class Prompt:
    """A prompt that has been read: its one-row cache and the logits (V,) that follow its last token."""

    cache: KVCache
    logits: torch.Tensor


@dataclass
class _Row:
    """A turn in the making, its place in the answer, and how many tokens of its prompt are in the shared prefix and in
    slots of its own."""

    index: int
    turn: TurnState
    shared_tokens: int
    own_tokens: int


def decode(
    model: LlamaDecoder,
    turns: Sequence[TurnState],
    prompts: Sequence[Prompt],
    on_finish: Callable[[tuple[int, ...], KVCache, int], None],
) -> list[Completion]:
    """Continue the request of every turn from its prompt until the turn is done.

    What several prompts begin with is kept once, where that is worth it (`shared_prefix.py`). The others, or what is
    left of them, are right-aligned in one cache, so that all rows write the same slot at each step; a mask hides what
    lies left of the shorter ones. A finished row is replaced by the last one, so the rows in use are always the first
    ones. `on_finish` gets, for each row, the tokens that have been computed (all but the last one), a view of the cache
    of its own, and how many tokens come before that cache.
    """
    requests = [turn.request for turn in turns]
    steps = max(request.sampling.room for request in requests)
    shared = _shared(model, [request.ids for request in requests], prompts, steps)
    begins = [0] * len(turns) if shared is None else shared.lengths
    rows = [
        _Row(index, turn, begin, len(turn.request.ids) - begin)
        for index, (turn, begin) in enumerate(zip(turns, begins, strict=True))
    ]
    longest = max(row.own_tokens for row in rows)
    slots = longest + min(steps, _FIRST_SLOTS) - 1
    cache = model.new_cache(len(rows), slots)
    for row, prompt in zip(rows, prompts, strict=True):
        cache.write(
            row.index,
            longest - row.own_tokens,
            prompt.cache.row(0, row.shared_tokens, row.shared_tokens + row.own_tokens),
        )
    mask = _mask(model, [longest - row.own_tokens for row in rows], slots)
    temperatures = _tensor(model, [request.sampling.temperature for request in requests], torch.float32)
    positions = _tensor(model, [len(request.ids) for request in requests], torch.int64)
    chance = torch.from_numpy(
        uniforms([request.seed for request in requests], [len(request.ids) for request in requests], steps)
    ).to(model.device)
    completions: dict[int, Completion] = {}
    logits = torch.stack([prompt.logits for prompt in prompts])
    for step in range(steps):
        logits = choices(logits, [row.turn for row in rows])
        drawn, drawn_logps = sample(logits, temperatures, chance[:, step])
        finished: list[int] = []
        for place, (token, logp) in enumerate(zip(drawn.tolist(), drawn_logps.tolist(), strict=True)):
            row = rows[place]
            turn = row.turn
            forced = turn.next_forced
            if forced is not None:
                drawn[place] = token = forced
            turn.take(token, logp)
            if turn.done:
                finished.append(place)
                completions[row.index] = turn.completion()
                row_cache = cache.row(place, longest - row.own_tokens, longest + step)
                on_finish(turn.request.ids + tuple(turn.ids[:-1]), row_cache, row.shared_tokens)
        if len(finished) == len(rows):
            break
        if finished:
            keep = _close_gaps(rows, finished, cache, mask)
            chosen = _tensor(model, keep, torch.int64)
            drawn, temperatures, positions = drawn[chosen], temperatures[chosen], positions[chosen]
            chance = chance[chosen]
            shared = None if shared is None else shared.of_rows(keep)
        if longest + step == slots:
            slots = min(longest + steps - 1, longest + 2 * (slots - longest))
            cache = cache.grown(len(rows), slots)
            mask = _mask(model, [longest - row.own_tokens for row in rows], slots)
        logits = model.step(drawn, positions + step, cache, longest + step, mask, shared)
    return [completions[index] for index in range(len(requests))]


def _shared(
    model: LlamaDecoder, ids: Sequence[tuple[int, ...]], prompts: Sequence[Prompt], steps: int
) -> SharedPrefix | None:
    """What the prompts `ids` begin with, where keeping it once is worth it for at most `steps` more tokens a row."""
    if model.looks_back_less_than(max(map(len, ids)) + steps):
        return None
    groups = worth_sharing(ids, model.slot_bytes, model.device.type)
    return share(groups, [prompt.cache for prompt in prompts]) if groups else None


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


def _mask(model: LlamaDecoder, holes: Sequence[int], slots: int) -> torch.Tensor | None:
    """Zeros, and -inf in the slots left of each row's prompt: (B, G, 1, T). None if all prompts are equally long."""
    if not any(holes):
        return None
    hidden = torch.arange(slots, device=model.device)[None, :] < _tensor(model, holes, torch.int64)[:, None]
    mask = torch.zeros(len(holes), slots, device=model.device).masked_fill_(hidden, float("-inf"))
    return mask[:, None, None, :].repeat(1, model.kv_heads, 1, 1)


def _tensor(model: LlamaDecoder, values: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=model.device)
