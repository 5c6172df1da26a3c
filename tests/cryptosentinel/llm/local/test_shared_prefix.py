"""Beginnings that several rows have are kept once, and no row notices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen3Config, Qwen3ForCausalLM

from cryptosentinel.llm.chat_codec import ChatCodec
from cryptosentinel.llm.engine import Completion, Request, Sampling
from cryptosentinel.llm.local import decoding, shared_prefix
from cryptosentinel.llm.local.engine import LocalEngine
from cryptosentinel.llm.local.llama import LlamaDecoder
from cryptosentinel.llm.local.shared_prefix import SharedPrefix, beginnings, worth_sharing
from cryptosentinel.llm.nano import nano_config

Ids = tuple[int, ...]
texts = st.lists(st.integers(0, 1), max_size=5).map(lambda ids: (7, *ids))


def common(prompts: Sequence[Ids]) -> int:
    """How many tokens all of them begin with."""
    return next(
        (place for place, tokens in enumerate(zip(*prompts, strict=False)) if len(set(tokens)) > 1),
        min(map(len, prompts)),
    )


def runs(items: list[Ids]) -> Iterator[list[list[Ids]]]:
    """All ways to cut a list into pieces."""
    if not items:
        yield []
    for stop in range(1, len(items) + 1):
        for rest in runs(items[stop:]):
            yield [items[:stop], *rest]


@settings(deadline=None)
@given(prompts=st.lists(texts, min_size=1, max_size=6))
def test_no_other_groups_save_more(prompts: list[Ids]) -> None:
    groups = beginnings(prompts)
    assert sorted(member for group in groups for member in group.members) == list(range(len(prompts)))
    for group in groups:
        assert group.length == common([prompts[member] for member in group.members])
    saved = sum((len(group.members) - 1) * group.length for group in groups)
    assert saved == max(sum((len(group) - 1) * common(group) for group in chosen) for chosen in runs(sorted(prompts)))


def test_little_is_not_shared_and_neither_is_what_needs_much_padding() -> None:
    alike = [(1,) * 100] * 8
    assert worth_sharing(alike, 4_000, "cpu") and not worth_sharing(alike, 400, "cpu")
    assert not worth_sharing(alike, 4_000, "cuda")
    others = [(2 + number,) * 100 for number in range(8)]
    assert not worth_sharing(alike + others, 4_000, "cpu")  # nine groups with room for eight queries each


@pytest.fixture(scope="module")
def model(codec: ChatCodec, make_model: Callable[[Qwen3Config], Qwen3ForCausalLM]) -> Qwen3ForCausalLM:
    config = nano_config(
        codec.vocab_size, hidden_size=32, layers=2, intermediate_size=48, heads=4, kv_heads=2, head_dim=8
    )
    return make_model(config)


def answers(
    codec: ChatCodec,
    model: Qwen3ForCausalLM,
    requests: list[Request],
    least: int,
    dtype: torch.dtype = torch.float32,
    shared: list[SharedPrefix] | None = None,
) -> list[Completion]:
    """What an engine says that shares what saves `least` bytes; `shared` gets what it shared at each step."""
    step = LlamaDecoder.step

    def seen(self: LlamaDecoder, *arguments: object) -> torch.Tensor:
        if shared is not None and isinstance(arguments[-1], SharedPrefix):
            shared.append(arguments[-1])
        return step(self, *arguments)  # type: ignore[arg-type]  # passed on as they are

    engine = LocalEngine(codec, model.config, {"manager": model.state_dict()}, dtype=dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(shared_prefix.WORTH, "cpu", least)
        patch.setattr(decoding.LlamaDecoder, "step", seen)
        return engine.generate(requests)


@settings(max_examples=25, deadline=None)
@given(
    groups=st.lists(
        st.tuples(st.integers(1, 20), st.lists(st.integers(0, 6), min_size=1, max_size=6)), min_size=1, max_size=4
    ),
    room=st.sampled_from([1, 3, 25]),
    temperature=st.sampled_from([0.0, 1.0]),
)
def test_answers_are_those_of_rows_that_share_nothing(
    codec: ChatCodec,
    model: Qwen3ForCausalLM,
    groups: list[tuple[int, list[int]]],
    room: int,
    temperature: float,
) -> None:
    """Groups of (length of the beginning, tokens of each prompt after it); answers end at different times."""
    generator = torch.Generator().manual_seed(len(groups))

    def drawn(length: int) -> Ids:
        return tuple(torch.randint(0, 250, (length,), generator=generator).tolist())

    prompts = [first + drawn(own) for length, owns in groups for first in [drawn(length)] for own in owns]
    requests = [
        Request("manager", ids, Sampling(temperature, 1 + (seed * 7) % room), seed) for seed, ids in enumerate(prompts)
    ]
    alone, shared = answers(codec, model, requests, 2**60), list[SharedPrefix]()
    for ours, theirs in zip(answers(codec, model, requests, 0, shared=shared), alone, strict=True):
        assert ours.ids == theirs.ids and ours.finished == theirs.finished
        np.testing.assert_allclose(ours.logps, theirs.logps, rtol=0, atol=1e-5)


def test_a_long_beginning_is_shared_without_being_asked_for(codec: ChatCodec, model: Qwen3ForCausalLM) -> None:
    ids = tuple(torch.randint(0, 250, (300,), generator=torch.Generator().manual_seed(3)).tolist())
    requests = [Request("manager", (*ids, seed), Sampling(1.0, 4), seed) for seed in range(64)]
    shared = list[SharedPrefix]()
    ours = answers(codec, model, requests, shared_prefix.WORTH["cpu"], shared=shared)
    assert {one.cache.keys.shape[1:2] + one.cache.keys.shape[4:] for one in shared} == {(1, 300)}
    for answer, other in zip(ours, answers(codec, model, requests, 2**60), strict=True):
        assert answer.ids == other.ids
        np.testing.assert_allclose(answer.logps, other.logps, rtol=0, atol=1e-5)


def test_bfloat16_differs_by_its_rounding(codec: ChatCodec, model: Qwen3ForCausalLM) -> None:
    ids = tuple(torch.randint(0, 250, (60,), generator=torch.Generator().manual_seed(5)).tolist())
    requests = [Request("manager", (*ids, seed % 3), Sampling(0.0, 1), seed) for seed in range(6)]
    following = [Request("manager", (*ids, seed % 3, 9), Sampling(0.0, 1), seed) for seed in range(6)]
    for asked in (requests, following):
        exact = answers(codec, model, asked, 2**60)
        for answer, other in zip(answers(codec, model, asked, 0, torch.bfloat16), exact, strict=True):
            np.testing.assert_allclose(answer.logps, other.logps, rtol=0, atol=0.05)
