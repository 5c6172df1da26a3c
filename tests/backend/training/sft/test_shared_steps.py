"""Steps of a warm start in parts: the gradient of the whole batch, and equal bits with one process and with two."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from backend.processes import ALONE, Workers, started
from backend.training.sft.sft_trainer import Example, SftSettings, warm_start
from cryptosentinel.llm.nano import nano_config, new_nano

SETTINGS = SftSettings(
    steps=3, batch_tokens=256, learning_rate=1e-3, warmup_steps=1, weight_decay=0.01, seed=1, parts=2
)


def examples() -> list[Example]:
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
    losses = warm_start(model, examples(), settings, workers=workers)
    return losses, [parameter.detach() for parameter in model.parameters()]


def test_a_step_in_parts_is_the_step_of_the_whole_batch_up_to_rounding() -> None:
    losses, weights = trained(SETTINGS)
    whole_losses, whole = trained(replace(SETTINGS, parts=1))
    assert losses == pytest.approx(whole_losses, rel=1e-5)
    for one, other in zip(weights, whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_helpers_change_no_bit_of_a_warm_start() -> None:
    alone = trained(SETTINGS)
    with started(2) as workers:
        losses, weights = trained(SETTINGS, workers)
    assert losses == alone[0]
    assert all(torch.equal(one, other) for one, other in zip(weights, alone[1], strict=True))
