"""Model FLOP utilisation of the training step for Qwen3-0.6B's architecture on a GPU.

Random weights, a LoRA adapter, bfloat16, one optimizer step on full micro-batches, with gradient checkpointing off and
on. FLOPs are those of the model, so what checkpointing computes again does not count as work. The peak is that of the
data sheet for dense bfloat16. The rows `.memory` hold the estimate of what such a step takes
(`backend/training/memory_estimate.py`) against the most that the GPU's allocator held: a training that is let begin
should not end for want of memory, and one that would run should not be refused. Without a GPU there is nothing to
measure, and the rows say so.

Operations are counted as in appendix B of PaLM (arXiv 2204.02311) and section 2.1 of Kaplan et al. (arXiv 2001.08361):
a matrix of n numbers takes 2 n a token forward, 2 n for the gradient of its input and 2 n for its own. So a model of
which all is trained takes 6 n a token; one whose base is frozen takes 4 n for the base and 6 for each number of the
adapters. Embeddings are looked up and count nothing. The output layer counts for sampled tokens only, since logits are
made nowhere else; it is frozen with the base. Attention takes 4 T Q a token and block forward at T tokens (scores and
mix, 2 T Q each), half of them where it is causal, and twice as much backward, as it has no weights.
"""

from __future__ import annotations

import statistics
import time
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from transformers import PreTrainedModel

from backend.models.shape import Shape, qwen3_config
from backend.policies.hardware import Hardware
from backend.policies.role_policies import RolePolicies
from backend.training.algorithm.trajectory import Trajectory
from backend.training.learning.role_trainer import RoleTrainer
from backend.training.memory_estimate import FLOAT, MemoryPlan, base_bytes, estimate
from benchmarks.run import Result
from cryptosentinel.llm.nano import new_nano
from tests.standard_settings import lora_settings, trainer_settings

MODEL = "Qwen3-0.6B"
ROLE = "manager"
LENGTH, SAMPLED, ROWS = 2048, 1024, 32  # tokens of a conversation, sampled ones among them, conversations of a step
MICRO_TOKENS = 32768
WARM_UP, STEPS = 2, 5
TARGET = 0.35  # where others are with models of this size and without fused kernels
MOST_OVER = 1.3  # estimated for what is taken
# Dense bfloat16 operations a second, of NVIDIA's data sheets, by a part of the card's name; the more special first.
PEAKS = {
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "A10": 125e12,
    "RTX 4090": 165e12,
}


def run() -> list[Result]:
    """The rows `training.mfu` and `training.mfu.checkpointing`, whose value is tokens a second, and their memory."""
    return [*_rows("training.mfu", False), *_rows("training.mfu.checkpointing", True)]


def _rows(name: str, checkpointing: bool) -> list[Result]:
    if not torch.cuda.is_available():
        return [_unmeasured(name, "no GPU: not measured")]
    card = torch.cuda.get_device_name()
    seconds, taken = _step(checkpointing)
    memory = _memory_row(f"{name}.memory", checkpointing, taken)
    peak = next((flops for known, flops in PEAKS.items() if known in card), None)
    if peak is None:
        return [_unmeasured(name, f"the peak of {card} is not known: not measured"), memory]
    tokens = ROWS * LENGTH
    rate = ROWS * training_flops(Shape.of(qwen3_config(MODEL)), LENGTH, SAMPLED, lora_settings().lora_rank) / seconds
    return [
        {
            "name": name,
            "value": tokens / seconds,
            "unit": "tokens/s",
            "against": f"the peak of {card}, {peak / 1e12:.0f} TFLOP/s in dense bfloat16: {MODEL}, LoRA, {ROWS} of "
            f"{LENGTH} tokens, {SAMPLED} sampled",
            "ratio": rate / peak,
            "target": f">= {TARGET}",
            "met": rate >= TARGET * peak,
        },
        memory,
    ]


def training_flops(
    shape: Shape, length: int, sampled: int, rank: int, weights: Literal["lora", "full"] = "lora"
) -> float:
    """Operations, forward and backward, for a conversation of `length` tokens of which `sampled` are learnt from, with
    an adapter of `rank` on all linear layers, or with the whole model trained."""
    linears = shape.linear_numbers
    head = shape.embedding
    attention = 3 * shape.layers * 4 * shape.queries * length * length / 2
    if weights == "full":
        return 6.0 * (linears * length + head * sampled) + attention
    return 4.0 * (linears * length + head * sampled) + 6.0 * shape.adapter(rank) * length + attention


def _memory_row(name: str, checkpointing: bool, taken: int) -> Result:
    """What was estimated for the step, for the bytes that it took."""
    shape = Shape.of(qwen3_config(MODEL))
    plan = MemoryPlan(
        roles=1,
        rank=lora_settings().lora_rank,
        precision="bfloat16",
        micro_tokens=MICRO_TOKENS,
        micro_sampled=MICRO_TOKENS * SAMPLED // LENGTH,
        checkpointing=checkpointing,
        device="cuda",
        compiled=True,
    )
    moments = round((1 + plan.moments) * shape.adapter(plan.rank) * FLOAT)  # with the adapter itself
    expected = base_bytes(shape, plan) + moments + estimate(shape, plan).of("updates")
    return {
        "name": name,
        "value": expected / 2**30,
        "unit": "GiB estimated",
        "against": f"{taken / 2**30:.2f} GiB at most in torch's allocator, micro-batches of {MICRO_TOKENS} tokens",
        "ratio": expected / taken,
        "target": f"1 to {MOST_OVER}",
        "met": 1.0 <= expected / taken <= MOST_OVER,
    }


def _unmeasured(name: str, why: str) -> Result:
    return {
        "name": name,
        "value": 0.0,
        "unit": "tokens/s",
        "against": why,
        "ratio": None,
        "target": f">= {TARGET}",
        "met": False,
    }


@lru_cache(1)
def _base() -> PreTrainedModel:
    return new_nano(0, qwen3_config(MODEL))


def _step(checkpointing: bool) -> tuple[float, int]:
    """Median seconds of a step, and bytes that the GPU's allocator held at most."""
    hardware = Hardware("cuda", "bfloat16", checkpointing, compiled=True)
    policies = RolePolicies(_base(), [ROLE], "lora", lora_settings(), hardware=hardware)
    trainer = RoleTrainer(policies, ROLE, trainer_settings(micro_batch_tokens=MICRO_TOKENS))
    rng = np.random.default_rng(0)
    mask = np.arange(LENGTH) >= LENGTH - SAMPLED
    talks = [
        Trajectory(
            role=ROLE,
            query="q",
            rollout=number,
            ordinal=0,
            ids=rng.integers(0, 150_000, LENGTH).astype(np.int32),  # nothing in common, so nothing is computed once
            mask=mask,
            sampled_logps=np.where(mask, -12.0, 0.0).astype(np.float32),
            policy_version="v",
            valid=True,
            format_score=1.0,
            expert=None,
            truncated=False,
        )
        for number in range(ROWS)
    ]
    signs = [(-1.0) ** number for number in range(ROWS)]
    taken = []
    torch.cuda.reset_peak_memory_stats()
    for _ in range(WARM_UP + STEPS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        trainer.step(talks, signs, [1.0 / ROWS] * ROWS)
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[WARM_UP:]), torch.cuda.max_memory_allocated()
