"""The cache of conversations' beginnings against brute force."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from cryptosentinel.llm.local.prefix_cache import KVCache, PrefixCache

conversations = st.lists(st.integers(0, 2), min_size=1, max_size=7).map(tuple)


def cache_of(ids: tuple[int, ...]) -> KVCache:
    """One layer, one head, one dimension: the ids themselves as keys and values; 8 bytes a token."""
    tokens = torch.tensor(ids, dtype=torch.float32)
    return KVCache(tokens.view(1, 1, 1, 1, -1), tokens.view(1, 1, 1, -1, 1))


def common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return next((index for index, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@given(stored=st.lists(conversations, max_size=12), wanted=conversations)
def test_finds_the_longest_known_beginning(stored: list[tuple[int, ...]], wanted: tuple[int, ...]) -> None:
    cache = PrefixCache(10_000)
    for ids in stored:
        cache.insert(ids, cache_of(ids))
    length, found = cache.longest(wanted)
    assert length == max((common(wanted, ids) for ids in stored), default=0)
    for read in (lambda one: one.keys, lambda one: one.values):
        assert [token for one in found for token in read(one).flatten().tolist()] == list(wanted[:length])


@given(stored=st.lists(conversations, max_size=20))
def test_memory_is_bounded_and_the_newest_stays(stored: list[tuple[int, ...]]) -> None:
    cache = PrefixCache(80)
    for ids in stored:
        cache.insert(ids, cache_of(ids))
        assert cache.longest(ids)[0] == len(ids)
        assert cache.nbytes <= 80
    cache.clear()
    assert cache.nbytes == 0
    assert cache.longest((0,)) == (0, [])


def test_least_recently_used_goes_first() -> None:
    cache = PrefixCache(32)
    cache.insert((1, 1), cache_of((1, 1)))
    cache.insert((2, 2), cache_of((2, 2)))
    cache.longest((1, 1, 5))
    cache.insert((3, 3), cache_of((3, 3)))
    assert [cache.longest(ids)[0] for ids in ((1, 1), (2, 2), (3, 3))] == [2, 0, 2]


def test_what_is_too_large_or_superfluous_is_not_kept() -> None:
    cache = PrefixCache(32)
    cache.insert((1,) * 5, cache_of((1,) * 5))
    assert cache.nbytes == 0
    cache = PrefixCache(1000)
    for ids in ((1, 2), (1, 2, 3), (1,)):
        cache.insert(ids, cache_of(ids))
    assert cache.nbytes == 24
