"""What a GPU computes, held against the CPU and plain transformers. Skipped where torch sees none."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from backend.config.training import TrainingConfig
from backend.policies.hardware import Hardware, Precision, Quantization, hardware_of
from backend.policies.role_policies import RolePolicies
from backend.training.algorithm.trajectory import Trajectory
from backend.training.learning.role_trainer import RoleTrainer
from backend.training.optimizers import OptimizerName
from cryptosentinel.llm.chat_codec import ChatCodec
from cryptosentinel.llm.engine import Completion, Request, Sampling
from cryptosentinel.llm.local.engine import LocalEngine
from cryptosentinel.llm.nano import train_tokenizer
from tests.backend.models.test_architectures import CONFIGS, VOCABULARY, batch, lively, plain_logps, random_copy
from tests.small_world import disturb
from tests.standard_settings import lora_settings, trainer_settings

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
GPU = "cuda"
PROMPTS = 6
BITS = pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
every = pytest.mark.parametrize("kind", CONFIGS, scope="module")


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(["price up 1.5\nprice down 2.5\n"] * 20, vocab_size=VOCABULARY)


@pytest.fixture(scope="module")
def model(kind: str) -> Any:
    """On the CPU."""
    return lively(CONFIGS[kind]())


def policies_on(hardware: Hardware, model: Any, seed: int = 2) -> RolePolicies:
    """One role, whose adapter does something: the same on any hardware."""
    return disturb(
        RolePolicies(
            random_copy(model), ["manager"], lora=lora_settings(lora_rank=3, lora_alpha=6), hardware=hardware
        ),
        size=0.1, seed=seed,
    )  # fmt: skip


def answers_of(model: Any, tokenizer: PreTrainedTokenizerFast, dtype: torch.dtype, temperature: float) -> tuple[
    list[tuple[int, ...]], list[Completion]
]:  # fmt: skip
    engine = LocalEngine(ChatCodec(tokenizer), model.config, {"manager": model.state_dict()}, device=GPU, dtype=dtype)
    rng = torch.Generator().manual_seed(3)
    prompts = [tuple(torch.randint(0, 250, (3 + length,), generator=rng).tolist()) for length in range(PROMPTS)]
    asked = [Request("manager", ids, Sampling(temperature, 16), seed) for seed, ids in enumerate(prompts)]
    return prompts, engine.generate(asked)


@every
def test_greedy_decoding_is_generates_there(kind: str, model: Any, tokenizer: PreTrainedTokenizerFast) -> None:
    theirs: Any = random_copy(model).to(GPU)
    prompts, answers = answers_of(model, tokenizer, torch.float32, 0.0)
    with torch.no_grad():
        for ids, one in zip(prompts, answers, strict=True):
            given = torch.tensor([ids], device=GPU)
            continued = theirs.generate(
                given, attention_mask=torch.ones_like(given), max_new_tokens=16, do_sample=False,
                eos_token_id=ChatCodec(tokenizer).end_of_turn, pad_token_id=0,
            )  # fmt: skip
            assert continued[0, len(ids) :].tolist() == list(one.ids)


@every
@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-4), (torch.bfloat16, 0.15)])
def test_log_probs_of_what_is_sampled_there_are_the_cpus(
    kind: str, model: Any, tokenizer: PreTrainedTokenizerFast, dtype: torch.dtype, near: float
) -> None:
    prompts, answers = answers_of(model, tokenizer, dtype, 0.7)
    with torch.no_grad():
        for prompt, answer in zip(prompts, answers, strict=True):
            ids = torch.tensor([prompt + answer.ids])
            mask = torch.arange(ids.shape[1])[None] >= len(prompt)
            expected = plain_logps(model, ids, mask, 0.7)[0, len(prompt) :]
            torch.testing.assert_close(torch.tensor(answer.logps), expected, atol=near, rtol=0)


def gradient_of(policies: RolePolicies, ids: Tensor, mask: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Log-probs and the gradient of a sum of them with signs, on the CPU."""
    device = policies.trainable("manager")[0].device
    values = policies.logps("manager", ids.to(device), mask.to(device), 0.8)[0]
    weights = torch.linspace(-1.0, 1.0, values.numel(), device=device).view(values.shape)
    gradient = torch.autograd.grad((weights * values).sum(), policies.trainable("manager"))
    return values.detach().cpu(), [one.cpu() for one in gradient]


@every
@pytest.mark.parametrize(
    ("precision", "checkpointing", "quantization", "cosine"),
    [
        ("float32", False, "none", 0.99999),
        ("float32", True, "none", 0.99999),
        ("bfloat16", False, "none", 0.99),
        ("bfloat16", True, "none", 0.99),
        pytest.param("bfloat16", True, "nf4", 0.8, marks=BITS),
    ],
)
def test_log_probs_and_gradients_are_the_cpus(
    kind: str, model: Any, precision: Precision, checkpointing: bool, quantization: Quantization, cosine: float
) -> None:
    ids, mask = batch()
    expected, expected_gradient = gradient_of(policies_on(Hardware(), model), ids, mask)
    there = policies_on(Hardware(GPU, precision, checkpointing, quantization), model)
    found, gradient = gradient_of(there, ids, mask)
    assert {one.device.type for one in there.trainable("manager")} == {GPU}
    assert {one.dtype for one in there.trainable("manager")} == {torch.float32}
    if precision == "float32":
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    one, other = (torch.cat([part.flatten() for part in parts]) for parts in (gradient, expected_gradient))
    assert float(torch.cosine_similarity(one, other, dim=0)) > cosine


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("rows", [slice(None), slice(0, 1)])  # with beginnings in common, and one conversation
def test_compiled_blocks_are_the_cpus(rows: slice, checkpointing: bool) -> None:
    model = lively(CONFIGS["qwen3"]())
    ids, mask = (one[rows] for one in batch())
    expected, expected_gradient = gradient_of(policies_on(Hardware(), model), ids, mask)
    there = policies_on(Hardware(GPU, "bfloat16", checkpointing, compiled=True), model)
    found, gradient = gradient_of(there, ids, mask)
    torch.testing.assert_close(found, expected, atol=0.2, rtol=0)
    one, other = (torch.cat([part.flatten() for part in parts]) for parts in (gradient, expected_gradient))
    assert float(torch.cosine_similarity(one, other, dim=0)) > 0.99


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("adamw8bit", marks=BITS)])
@pytest.mark.parametrize("mode", ["lora", "full"])
def test_the_rewarded_becomes_likelier_there(
    optimizer: OptimizerName, mode: Any, make: Callable[..., Trajectory], tmp_path: Path
) -> None:
    hardware = hardware_of(TrainingConfig(precision="bfloat16"))
    assert (hardware.kind, hardware.precision) == (GPU, "bfloat16")
    policies = RolePolicies(lively(CONFIGS["qwen3"]()), ["manager"], mode, hardware=hardware)
    settings = trainer_settings(learning_rate=1e-2, warmup_steps=3, optimizer=optimizer, max_grad_norm=1e9)
    trainer = RoleTrainer(policies, "manager", settings)
    good, bad = make(1), make(2)

    def log_prob(one: Trajectory) -> float:
        ids, mask = (torch.from_numpy(part)[None].to(GPU) for part in (one.ids.astype("int64"), one.mask))
        with torch.no_grad():
            return float(policies.logps("manager", ids, mask)[0].sum())

    def gap() -> float:
        return log_prob(good) - log_prob(bad)

    before = gap()
    for _ in range(6):
        trainer.step([good, bad], [1.0, -1.0], [0.5, 0.5])
    assert gap() > before + 0.1
    policies.save(tmp_path)
    trainer.save(tmp_path / "trainer")
    again = RolePolicies(lively(CONFIGS["qwen3"]()), ["manager"], mode, hardware=hardware)
    again.load(tmp_path)
    resumed = RoleTrainer(again, "manager", settings)
    resumed.load(tmp_path / "trainer")
    assert again.version("manager") == policies.version("manager")
