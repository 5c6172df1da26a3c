"""Device, precision, checkpointing, four bits and the shapes of adapters: what they change, and what they must not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from backend.config.schema import ConfigError
from backend.config.training import TrainingConfig
from backend.models.checks import check_base
from backend.policies import hardware as module
from backend.policies import role_policies as of_roles
from backend.policies.hardware import Hardware, describe_hardware, hardware_change, hardware_of, precision_on
from backend.policies.logprobs import token_logps
from backend.policies.role_policies import LoraSettings, PolicyMode, RolePolicies
from backend.training.algorithm.trajectory import Trajectory
from backend.training.learning.role_trainer import RoleTrainer
from cryptosentinel.llm.local.matrices import products
from cryptosentinel.llm.nano import load_model, save_model, train_tokenizer
from simulator.errors import UserError
from tests.random_models import random_model
from tests.small_world import disturb
from tests.standard_settings import trainer_settings

Make = Callable[..., Trajectory]
ROLES = ("manager", "trader")
BF16 = Hardware(precision="bfloat16")


def batch(shared: bool = False) -> tuple[Tensor, Tensor]:
    """ids (6, 30) and mask; with `shared`, conversations that begin with the same 20 tokens."""
    ids = torch.randint(0, 40, (6, 30), generator=torch.Generator().manual_seed(3))
    if shared:
        ids[:, :20] = ids[0, :20]
    return ids, torch.arange(30).expand(6, -1) >= 20


def moved_policies(model: Qwen3ForCausalLM, hardware: Hardware, mode: PolicyMode = "lora", **more: Any) -> RolePolicies:
    """Policies away from their start: at B = 0 half of a LoRA's gradient is 0."""
    return disturb(RolePolicies(model, ROLES, mode, hardware=hardware, **more), "manager", seed=1)


def learnt(policies: RolePolicies, shared: bool = False) -> tuple[Tensor, list[Tensor], int]:
    """Log-probs, their gradient, and bytes that were kept for it."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        logps, _ = policies.logps("manager", *batch(shared))
    logps.sum().backward()
    gradients = [one.grad for one in policies.trainable("manager")]
    return logps.detach(), [one for one in gradients if one is not None], sum(kept.values())


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([one.reshape(-1) for one in tensors])


@pytest.mark.parametrize("mode", ["lora", "full"])
def test_bfloat16_is_of_the_base_and_its_products_alone(tiny: Qwen3ForCausalLM, mode: PolicyMode) -> None:
    plain, short = moved_policies(tiny, Hardware(), mode), moved_policies(tiny, BF16, mode)
    assert {one.dtype for one in short.trainable("manager")} == {torch.float32}
    frozen = {one.dtype for name, one in short._base.named_parameters() if ".lora_" not in name}
    assert frozen == {torch.bfloat16}
    expected, gradients, kept = learnt(plain)
    found, near, less = learnt(short)
    assert found.dtype == torch.float32 and {one.dtype for one in near} == {torch.float32}
    assert 0.0 < (found - expected).abs().max() < 0.2
    # Two roundings to eight bits, in some ten products one behind another.
    assert (flat(near) - flat(gradients)).norm() < 0.1 * flat(gradients).norm()
    assert less < 0.8 * kept
    reference = short.reference_logps("manager", *batch())
    assert reference.dtype == torch.float32


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
def test_a_base_is_read_in_its_own_numbers(
    tiny: Qwen3ForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: torch.dtype
) -> None:
    tokenizer = train_tokenizer(["price up 1.5\nprice down 2.5\n"] * 20, vocab_size=280)
    config = Qwen3Config(**{**tiny.config.to_dict(), "vocab_size": 280})
    model = random_model(1, config)
    torch.nn.Module.to(model, stored)
    save_model(tmp_path / "base", model, tokenizer)
    read: list[set[torch.dtype]] = []

    def watched(folder: Path, dtype: torch.dtype | None) -> Any:
        loaded = load_model(folder, dtype)
        read.append({one.dtype for one in loaded[0].parameters()})
        return loaded

    monkeypatch.setattr(of_roles, "load_model", watched)
    short, plain = (RolePolicies(tmp_path / "base", ROLES, hardware=one) for one in (BF16, Hardware()))
    whole = RolePolicies(tmp_path / "base", ROLES, "full", hardware=BF16)
    assert read == [{stored}, {torch.float32}, {torch.float32}], "short numbers take half the memory, and once"
    assert short.version("manager") == plain.version("manager"), "whatever it is read in, it is the same base"
    assert short.base_fingerprint == whole.base_fingerprint == check_base(tmp_path / "base").fingerprint
    assert {one.dtype for one in short.trainable("manager")} == {torch.float32}
    frozen = {one.dtype for name, one in short._base.named_parameters() if ".lora_" not in name}
    assert frozen == {torch.bfloat16}


def test_small_steps_are_not_lost_in_bfloat16(tiny: Qwen3ForCausalLM, make: Make) -> None:
    # 1e-4 is below half a step of bfloat16 at 0.05 and above: there it would vanish.
    for mode in ("lora", "full"):
        policies = RolePolicies(tiny, ROLES, mode, hardware=BF16)
        before = policies.role_state("manager")
        trainer = RoleTrainer(policies, "manager", trainer_settings(learning_rate=1e-4, warmup_steps=1))
        found = trainer.step([make(i) for i in range(4)], [1.0, -1.0, 0.5, -0.5], [0.25] * 4)
        assert found["manager/updates"] == 1.0
        change = flat([policies.role_state("manager")[name] - before[name] for name in before]).abs()
        assert change.max() == pytest.approx(1e-4, rel=0.01)


def test_the_engine_gets_the_base_that_was_trained_on(tiny: Qwen3ForCausalLM) -> None:
    policies = moved_policies(tiny, BF16)
    merged = policies.merged_state("manager")
    assert {one.dtype for one in merged.values()} == {torch.float32}
    untouched = "model.norm.weight"
    assert torch.equal(merged[untouched], tiny.state_dict()[untouched].bfloat16().float())
    plain = moved_policies(tiny, Hardware()).merged_state("manager")
    name = "model.layers.0.mlp.up_proj.weight"
    rounding = tiny.state_dict()[name].bfloat16().float() - tiny.state_dict()[name]
    torch.testing.assert_close(merged[name] - plain[name], rounding, rtol=0.0, atol=1e-6)


# -- four bits ------------------------------------------------------------------------------------------------------


def test_a_base_in_four_bits_is_trained_on_as_it_is_rounded(tiny: Qwen3ForCausalLM) -> None:
    pytest.importorskip("bitsandbytes", reason="the extra qlora is not installed")
    packed = Hardware(quantization="nf4")
    policies = moved_policies(tiny, packed)
    logps, gradients, _ = learnt(policies)
    assert len(gradients) == len(policies.trainable("manager"))
    assert policies.header("manager") == RolePolicies(tiny, ROLES).header("manager")
    expected, *_ = learnt(moved_policies(tiny, Hardware()))
    assert (logps - expected).abs().max() > 1e-3
    merged = Qwen3ForCausalLM(tiny.config).eval()
    merged.load_state_dict(policies.merged_state("manager"))
    with torch.no_grad():
        torch.testing.assert_close(token_logps(merged, *batch())[0], logps, rtol=1e-4, atol=1e-4)


# -- shapes of adapters ---------------------------------------------------------------------------------------------


def test_a_layer_that_the_architecture_does_not_have_is_refused(tiny: Qwen3ForCausalLM) -> None:
    shape = LoraSettings(2, 4, ("q_proj", "query_key_value"))
    with pytest.raises(
        UserError, match=r"'query_key_value' is not a linear layer of a block of qwen3; there are q_proj, "
    ):
        RolePolicies(tiny, ["manager"], lora=shape)


# -- this machine ---------------------------------------------------------------------------------------------------


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let torch see so many GPUs."""

    def see(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"card {device}")

    return see


def training(**settings: Any) -> TrainingConfig:
    return TrainingConfig(**settings)


@pytest.mark.parametrize("can_compile", [False, True])
def test_auto_takes_a_gpu_where_there_is_one(
    gpus: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, can_compile: bool
) -> None:
    gpus(0)
    assert hardware_of(training()) == Hardware()
    assert hardware_of(training(precision="auto")).precision == "float32"
    gpus(2)
    monkeypatch.setattr(module, "_can_compile", lambda: can_compile)
    both = training(precision="auto", gradient_checkpointing=True)
    assert hardware_of(both) == Hardware("cuda:0", "bfloat16", checkpointing=True, compiled=can_compile)
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: object())
    packed = hardware_of(training(precision="nf4"))
    assert (packed.precision, packed.quantization, packed.compiled) == ("bfloat16", "nf4", False)
    assert not hardware_of(training(precision="float32")).compiled
    assert precision_on(training(), "cuda") == "float32"


def test_what_the_machine_does_not_have_is_refused(
    gpus: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(0)
    with pytest.raises(ConfigError, match=r"training\.precision = nf4 needs a GPU"):
        hardware_of(training(precision="nf4"))
    with pytest.raises(ConfigError, match=r"training\.optimizer = adamw8bit needs a GPU"):
        hardware_of(training(optimizer="adamw8bit"))
    gpus(1)
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"nf4 needs bitsandbytes.*cryptosentinel\[qlora\]"):
        hardware_of(training(precision="nf4"))
    with pytest.raises(ConfigError, match=r"adamw8bit needs bitsandbytes.*cryptosentinel\[qlora\]"):
        hardware_of(training(optimizer="adamw8bit"))


def test_a_run_knows_what_it_was_trained_on(gpus: Callable[[int], None]) -> None:
    gpus(0)
    before = describe_hardware(training())
    assert before == {"device": "cpu", "precision": "float32", "products": products()}
    other = {**before, "products": "torch" if products() == "onednn" else "onednn"}
    assert describe_hardware(training(), other) == other, "a resumed run multiplies as it did"
    assert describe_hardware(training(), before) == before
    assert hardware_change(before, before) is None and hardware_change({}, before) is None
    gpus(1)
    told = hardware_change(before, describe_hardware(training()))
    assert told is not None and "device was cpu, now card cuda:0" in told and "not bit for bit" in told
