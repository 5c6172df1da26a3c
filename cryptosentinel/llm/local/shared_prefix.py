"""What several rows of a batch begin with, kept once for all of them.

Rollouts of one query begin with the same long prompt. A decode step reads all keys and values of every row, so such a
beginning is read once for its rows together: their queries are one matrix, and its part of the softmax is joined with
that of what each row has of its own (Hydragen, arXiv 2402.05099).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch

from cryptosentinel.llm.local.prefix_cache import KVCache, common_length

# Bytes of a layer that a step must save: below, the additional operations cost more. On a CPU it was measured (nano,
# one core: about 1.3 MB); for a GPU it is reckoned, from fifteen more operations of 5 us at 3 TB/s.
WORTH = {"cpu": 2 * 2**20, "cuda": 256 * 2**20}
_MOST_PADDING = 2  # queries that are computed, for each that is asked


@dataclass(frozen=True)
class SharedPrefix:
    """P beginnings of up to T tokens, each with room for the queries of R rows.

    Attributes:
        cache: keys and values, (L, P, G, D, T) and (L, P, G, T, D).
        mask: (P G, 1, T), added to the scores; None where all beginnings are equally long.
        lengths: how many tokens each row begins with; a row's own slots are those of the tokens after them.
        places: (B,), where the queries of each row stand among P R.
        room: R.
    """

    cache: KVCache
    mask: torch.Tensor | None
    lengths: tuple[int, ...]
    places: torch.Tensor
    room: int

    def write(self, row: int, cache: KVCache) -> None:
        """Fill the beginning of a row again, from the one-row `cache` of its conversation."""
        self.cache.write(int(self.places[row]) // self.room, 0, cache.row(0, 0, self.lengths[row]))

    def of_rows(self, kept: Sequence[int]) -> SharedPrefix:
        """The same for these of the rows, in this order."""
        chosen = torch.tensor(kept, dtype=torch.int64, device=self.places.device)
        return replace(self, lengths=tuple(self.lengths[row] for row in kept), places=self.places[chosen])


@dataclass(frozen=True)
class Beginning:
    """The first `length` tokens, which the prompts `members` have in common."""

    members: tuple[int, ...]
    length: int


def beginnings(prompts: Sequence[tuple[int, ...]]) -> list[Beginning]:
    """Groups of prompts that are neighbors in their order, each prompt in one of them: those that save most tokens. A
    group saves its beginning for all but one of its prompts."""
    order = sorted(range(len(prompts)), key=lambda index: prompts[index])
    shared = [common_length(prompts[a], prompts[b]) for a, b in pairwise(order)]
    best, begins = [0], [0]  # of the first prompts in order: what is saved, and where the last group begins
    for stop in range(1, len(order) + 1):
        length, saved, begin = len(prompts[order[stop - 1]]), best[stop - 1], stop - 1
        for start in range(stop - 2, -1, -1):
            length = min(length, shared[start])
            if length == 0:
                break
            if (total := best[start] + (stop - start - 1) * length) > saved:
                saved, begin = total, start
        best.append(saved)
        begins.append(begin)
    groups, stop = list[Beginning](), len(order)
    while stop:
        start = begins[stop]
        length = min([len(prompts[order[start]]), *shared[start : stop - 1]])
        groups.append(Beginning(tuple(order[start:stop]), length))
        stop = start
    return groups


def worth_sharing(prompts: Sequence[tuple[int, ...]], slot_bytes: int, device: str) -> list[Beginning]:
    """The beginnings that are worth being kept once, if a slot of a layer takes `slot_bytes`; none where it does not
    pay."""
    least = WORTH.get(device, WORTH["cuda"])
    if len(prompts) < 2 or slot_bytes * sum(map(len, prompts)) < least:
        return []
    groups = beginnings(prompts)
    saved = sum((len(group.members) - 1) * group.length for group in groups)
    padded = len(groups) * max(len(group.members) for group in groups)
    return groups if saved * slot_bytes >= least and padded <= _MOST_PADDING * len(prompts) else []


def share(groups: Sequence[Beginning], caches: Sequence[KVCache]) -> SharedPrefix:
    """The beginnings of the prompts whose one-row `caches` these are."""
    longest, room = max(group.length for group in groups), max(len(group.members) for group in groups)
    cache = caches[0].blank(len(groups), longest)
    lengths, places = [0] * len(caches), [0] * len(caches)
    for number, group in enumerate(groups):
        cache.write(number, 0, caches[group.members[0]].row(0, 0, group.length))
        for position, member in enumerate(group.members):
            lengths[member], places[member] = group.length, number * room + position
    mask, device = None, cache.keys.device
    if any(group.length < longest for group in groups):
        ends = torch.tensor([group.length for group in groups], device=device)
        hidden = torch.arange(longest, device=device)[None, :] >= ends[:, None]
        mask = torch.zeros(hidden.shape, device=device).masked_fill_(hidden, float("-inf"))
        mask = mask.repeat_interleave(cache.keys.shape[2], dim=0)[:, None, :]
    return SharedPrefix(cache, mask, tuple(lengths), torch.tensor(places, device=device), room)
