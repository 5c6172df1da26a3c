"""The operations of a training step, held against torch's own count; and the benchmark that needs a GPU."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from backend.models.shape import Shape, qwen3_config
from backend.policies.hardware import Hardware
from backend.policies.role_policies import RolePolicies
from benchmarks import bench_training_mfu
from benchmarks.bench_training_mfu import training_flops
from cryptosentinel.llm.nano import nano_config, new_nano
from tests.standard_settings import lora_settings

RANK = 4
MODES: list[Literal["lora", "full"]] = ["lora", "full"]


def counted(layers: int, length: int, sampled: int, weights: Literal["lora", "full"]) -> int:
    """What torch counts of a conversation's passes forward and backward, with attention as plain products, and with
    adapters beside their layers, as they are in bfloat16."""
    config = nano_config(300, hidden_size=32, layers=layers, heads=6, kv_heads=2, head_dim=8, intermediate_size=80)
    config._attn_implementation = "eager"
    policies = RolePolicies(
        new_nano(0, config),
        ["manager"],
        weights,
        lora_settings(lora_rank=RANK),
        hardware=Hardware(precision="bfloat16"),
    )
    # One token more than is read: the last one is only a target.
    ids = torch.randint(0, 300, (1, length + 1), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(length + 1)[None] > length - sampled
    with FlopCounterMode(display=False) as counter:
        policies.logps("manager", ids, mask)[0].sum().backward()
    return int(counter.get_total_flops())


def formula(layers: int, length: int, sampled: int, weights: Literal["lora", "full"]) -> float:
    """Ours, with the half of attention that a plain product computes in vain."""
    shape = Shape.of(
        nano_config(300, hidden_size=32, layers=layers, heads=6, kv_heads=2, head_dim=8, intermediate_size=80)
    )
    in_vain = 3 * shape.layers * 4 * shape.queries * length * length / 2
    return training_flops(shape, length, sampled, RANK, weights) + in_vain


@pytest.mark.parametrize("weights", MODES)
@pytest.mark.parametrize(("length", "sampled"), [(16, 16), (50, 7)])
def test_a_block_takes_what_torch_counts(length: int, sampled: int, weights: Literal["lora", "full"]) -> None:
    ours = formula(3, length, sampled, weights) - formula(2, length, sampled, weights)
    theirs = counted(3, length, sampled, weights) - counted(2, length, sampled, weights)
    assert ours == theirs


def test_a_whole_model_takes_what_torch_counts() -> None:
    # With a frozen base the first block's input needs no gradient, so there the formula is a little above.
    assert formula(2, 40, 9, "full") == counted(2, 40, 9, "full")
    assert 1.0 <= formula(2, 40, 9, "lora") / counted(2, 40, 9, "lora") < 1.15


def test_a_frozen_base_saves_a_third() -> None:
    shape = Shape.of(qwen3_config("Qwen3-0.6B"))
    lora, full = (training_flops(shape, 2048, 2048, 16, weights) for weights in MODES)
    assert 0.65 < lora / full < 0.8
    # 6 N D of the whole model, and a third more for attention at this length.
    assert full == pytest.approx(6 * shape.parameters * 2048, rel=0.4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to measure on")
def test_without_a_gpu_nothing_is_claimed() -> None:
    rows = bench_training_mfu.run()
    assert [row["name"] for row in rows] == ["training.mfu", "training.mfu.checkpointing"]
    for row in rows:
        assert row["against"] == "no GPU: not measured" and row["ratio"] is None and not row["met"]
