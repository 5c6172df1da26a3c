"""The warm start: it learns what is masked, the same way every time, and sees every example."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from backend.policies.logprobs import token_logps
from backend.processes import ALONE, Workers, started
from backend.training.sft.sft_trainer import (
    Example,
    SftSettings,
    SupervisedTrainer,
    _batches,
    _mixed_batches,
    learning_rate,
    warm_start,
)
from cryptosentinel.llm.nano import nano_config, new_nano

SETTINGS = SftSettings(steps=30, batch_tokens=60, learning_rate=1e-2, warmup_steps=3, weight_decay=0.01, seed=0)
# Steps in parts: the gradient of the whole batch, and equal bits with one process and with two.
IN_PARTS = SftSettings(
    steps=3, batch_tokens=256, learning_rate=1e-3, warmup_steps=1, weight_decay=0.01, seed=1, parts=2
)


def examples(count: int = 12) -> list[Example]:
    """The token after a prompt of random length is its first token plus one: learnable, from the prompt only."""
    rng = np.random.default_rng(0)
    rows: list[Example] = []
    for number in range(count):
        ids = rng.integers(20, 40, 4 + number % 5).astype(np.int32)
        ids[0], ids[-1] = number % 4, number % 4 + 4
        mask = np.zeros(len(ids), np.bool_)
        mask[-1] = True
        rows.append((ids, mask))
    return rows


def test_it_learns_and_says_so(tiny: Qwen3ForCausalLM) -> None:
    seen: list[tuple[int, float]] = []
    losses = warm_start(tiny, examples(), SETTINGS, lambda step, loss: seen.append((step, loss)))
    assert seen == list(enumerate(losses, 1))
    assert len(losses) == SETTINGS.steps
    assert np.mean(losses[-5:]) < 0.3 * np.mean(losses[:3])
    assert not tiny.training


def test_only_masked_tokens_are_learnt(tiny: Qwen3ForCausalLM) -> None:
    """The first loss is the mean over masked tokens of one batch, whatever the others are."""
    rows = examples(3)
    twin = copy.deepcopy(tiny)
    loss = warm_start(tiny, rows, replace(SETTINGS, steps=1, batch_tokens=1000, learning_rate=2e-3, warmup_steps=30))[0]
    want = []
    for ids, mask in rows:
        logps, _ = token_logps(twin, torch.from_numpy(ids).long()[None], torch.from_numpy(mask)[None])
        want.append(-logps.sum().item())
    assert loss == pytest.approx(np.mean(want), rel=1e-5)


@settings(max_examples=50)
@given(
    st.sampled_from([_batches, _mixed_batches]),
    st.lists(st.integers(2, 30), min_size=1, max_size=200),
    st.integers(20, 90),
    st.integers(0, 99),
)
def test_every_example_is_seen_once_before_any_is_seen_again(
    cut: Callable[[list[int], int, np.random.Generator], Iterator[list[int]]],
    lengths: list[int],
    budget: int,
    seed: int,
) -> None:
    batches = cut(lengths, budget, np.random.default_rng(seed))
    for _ in range(2):
        left = set(range(len(lengths)))
        while left:
            batch = next(batches)
            assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= budget
            assert batch and set(batch) <= left
            left -= set(batch)


def test_conversations_of_one_length_do_not_come_by_themselves() -> None:
    """A manager that holds says it in half the tokens: learnt by turns, the last batches decide what it does."""
    lengths = [170] * 68 + [339] * 172
    alike = []
    for cut in (_batches, _mixed_batches):
        batches = cut(lengths, 2048, np.random.default_rng(5))
        drawn = [{lengths[example] for example in next(batches)} for _ in range(30)]
        alike.append(float(np.mean([len(kinds) == 1 for kinds in drawn])))
    assert alike[0] > 0.9 > 0.3 > alike[1]


def test_the_rate_warms_up_and_falls_to_a_tenth() -> None:
    rates = [learning_rate(step, SETTINGS) for step in range(SETTINGS.steps)]
    assert rates[:3] == pytest.approx([1e-2 / 3, 2e-2 / 3, 1e-2])
    assert rates[3] == pytest.approx(1e-2)
    assert rates[-1] == pytest.approx(1e-3)
    assert rates[3:] == sorted(rates[3:], reverse=True)


def test_nothing_to_learn_is_refused(tiny: Qwen3ForCausalLM) -> None:
    ids, mask = examples(1)[0]
    for rows in ([], [(ids, np.zeros_like(mask))], [(ids, np.ones_like(mask))], [(ids, mask[1:])]):
        with pytest.raises(ValueError, match="examples"):
            warm_start(tiny, rows, SETTINGS)


def test_divergence_is_an_error_with_a_way_out(tiny: Qwen3ForCausalLM) -> None:
    with torch.no_grad():
        tiny.model.norm.weight.fill_(torch.inf)
    with pytest.raises(ValueError, match="lower the learning rate"):
        warm_start(tiny, examples(), SETTINGS)


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 7))
def test_it_goes_on_bit_for_bit(stop: int) -> None:
    config = Qwen3Config(
        vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8,
    )  # fmt: skip
    torch.manual_seed(1)
    start = Qwen3ForCausalLM(config)

    def trainer(model: Qwen3ForCausalLM) -> SupervisedTrainer:
        sft = replace(SETTINGS, steps=8, batch_tokens=30, learning_rate=2e-3, warmup_steps=2)
        return SupervisedTrainer(
            list(model.parameters()), lambda ids, mask: token_logps(model, ids, mask)[0], examples(), sft
        )

    whole = copy.deepcopy(start)
    through = trainer(whole)
    losses = [through.step() for _ in range(8)]
    half = copy.deepcopy(start)
    before = trainer(half)
    first = [before.step() for _ in range(stop)]
    other = copy.deepcopy(half)
    after = trainer(other)
    after.resume(before.done, before.optimizer_state())
    assert first + [after.step() for _ in range(8 - stop)] == losses
    for mine, theirs in zip(other.parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def random_examples() -> list[Example]:
    rng = np.random.default_rng(0)
    made = []
    for length in rng.integers(8, 40, size=30):
        mask = rng.random(length) < 0.5
        mask[0], mask[-1] = False, True
        made.append((rng.integers(0, 64, size=length).astype(np.int32), mask))
    return made


def trained(settings: SftSettings, workers: Workers = ALONE) -> tuple[list[float], list[Tensor]]:
    model = new_nano(
        1, nano_config(64, hidden_size=16, layers=1, heads=2, kv_heads=1, head_dim=8, intermediate_size=32)
    )
    losses = warm_start(model, random_examples(), settings, workers=workers)
    return losses, [parameter.detach() for parameter in model.parameters()]


def test_a_step_in_parts_is_the_step_of_the_whole_batch_up_to_rounding() -> None:
    losses, weights = trained(IN_PARTS)
    whole_losses, whole = trained(replace(IN_PARTS, parts=1))
    assert losses == pytest.approx(whole_losses, rel=1e-5)
    for one, other in zip(weights, whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_helpers_change_no_bit_of_a_warm_start() -> None:
    alone = trained(IN_PARTS)
    with started(2) as workers:
        losses, weights = trained(IN_PARTS, workers)
    assert losses == alone[0]
    assert all(torch.equal(one, other) for one, other in zip(weights, alone[1], strict=True))
