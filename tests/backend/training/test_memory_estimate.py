"""The estimate of memory against what is really held, on this machine and on an H200, and what the presets take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, Qwen3Config, Qwen3ForCausalLM

from backend.config.load import load_config
from backend.config.schema import Config, NanoConfig
from backend.config.training import TrainingConfig
from backend.models.shape import Shape, architecture_of, qwen3_config
from backend.policies.hardware import DeviceKind, Hardware, Precision
from backend.policies.role_policies import RolePolicies
from backend.training.memory_estimate import (
    GIB,
    MemoryPlan,
    activations,
    base_bytes,
    estimate,
    plan_of,
    require,
    smaller,
)
from cryptosentinel.agents.registry import ROLES
from cryptosentinel.llm.chat_codec import make_byte_codec
from cryptosentinel.llm.local.engine import LocalEngine
from cryptosentinel.llm.local.llama import LlamaDecoder
from cryptosentinel.llm.nano import nano_config, new_nano
from simulator.errors import UserError
from tests.random_models import random_model
from tests.standard_settings import lora_settings


def small(layers: int = 3, tied: bool = True) -> Qwen3Config:
    config = nano_config(300, hidden_size=64, layers=layers, intermediate_size=192)
    config.tie_word_embeddings = tied
    return config


def small_llama(layers: int) -> LlamaConfig:
    """Without norms of queries and keys, with wide heads and few of them for keys."""
    return LlamaConfig(
        vocab_size=300, hidden_size=64, intermediate_size=160, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=4096, tie_word_embeddings=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "billions", "without_embedding"),
    [("Qwen3-0.6B", 0.6, 0.44), ("Qwen3-1.7B", 1.7, 1.4), ("Qwen3-4B", 4.0, 3.6), ("Qwen3-8B", 8.2, 6.95)],
)
def test_the_known_models_have_their_published_sizes(name: str, billions: float, without_embedding: float) -> None:
    config = qwen3_config(name)
    shape = Shape.of(config)
    with torch.device("meta"):
        model = Qwen3ForCausalLM(config)
    assert shape.parameters == sum(one.numel() for one in model.parameters())
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.03)
    assert shape.body / 1e9 == pytest.approx(without_embedding, rel=0.015)
    assert (shape.head_dim, shape.vocabulary, shape.positions) == (128, 151_936, 40_960)
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 1_000_000.0}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("mode", ["lora", "full"])
@pytest.mark.parametrize(("layers", "length", "family"), [(1, 65, "qwen3"), (3, 129, "qwen3"), (3, 129, "llama")])
def test_activations_are_what_autograd_keeps(
    mode: Literal["lora", "full"], layers: int, length: int, family: str, precision: Precision
) -> None:
    config, batch, sampled = small(layers) if family == "qwen3" else small_llama(layers), 4, 20
    hardware = Hardware(precision=precision)
    policies = RolePolicies(random_model(0, config), ["manager"], mode, lora_settings(lora_rank=16), hardware=hardware)
    own = {one.untyped_storage().data_ptr() for one in policies.activate("manager").parameters()}
    kept: dict[int, tuple[int, torch.Tensor]] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes(), tensor
        return tensor

    ids = torch.randint(0, 300, (batch, length))
    mask = torch.arange(length).expand(batch, -1) >= length - sampled
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        policies.logps("manager", ids, mask)
    plan = MemoryPlan(
        weights=mode, micro_tokens=batch * (length - 1), micro_sampled=batch * sampled, precision=precision
    )
    logits = plan.micro_sampled * config.vocab_size * 4
    held = sum(size for size, _ in kept.values()) - logits
    shape = Shape.of(config)
    shortened = sum(need.size for need in estimate(shape, plan).needs if need.part == "what is trained, in bfloat16")
    assert bool(shortened) == (precision == "bfloat16")
    assert activations(shape, plan) + shortened == pytest.approx(held, rel=0.07)


@pytest.mark.parametrize("tied", [True, False])
def test_the_engines_weights_are_counted_exactly(tied: bool) -> None:
    config = small(tied=tied)
    policies = RolePolicies(new_nano(0, config), list(ROLES), "lora", lora_settings(lora_rank=4))
    engine = LocalEngine(make_byte_codec(), config, {})
    for number, role in enumerate(ROLES):
        with torch.no_grad():
            for one in policies.trainable(role):
                one.fill_(0.01 * (number + 1))
        engine.set_weights(role, policies.merged_state(role), role)
    found = estimate(Shape.of(config), MemoryPlan(rank=4))
    held = sum(need.size for need in found.needs if need.part.startswith("engine") and need.phase == "always")
    # The norms of queries and keys are held once for each head, those of the blocks are folded into the projections.
    assert held == pytest.approx(engine.weight_bytes, rel=0.005)


def test_the_cache_is_counted_exactly() -> None:
    config = small()
    shape = Shape.of(config)
    with torch.inference_mode():
        model = LlamaDecoder(config, new_nano(0, config).state_dict(), torch.device("cpu"))
        cache = model.new_cache(5, 70)
    found = estimate(shape, MemoryPlan(rows=5, context=70))
    (need,) = (one for one in found.needs if "KV cache" in one.part)
    assert need.size == 2 * cache.nbytes


PLANS = st.builds(
    MemoryPlan,
    weights=st.sampled_from(["lora", "full"]),
    rank=st.integers(1, 64),
    engine=st.sampled_from(["local", "vllm"]),
    micro_tokens=st.integers(1, 16_384),
    rows=st.integers(1, 128),
    context=st.integers(1, 4096),
)


@settings(deadline=None)
@given(plan=PLANS)
def test_more_of_anything_takes_no_less(plan: MemoryPlan) -> None:
    shape = Shape.of(qwen3_config("Qwen3-0.6B"))
    before = estimate(shape, plan).total
    for name in ("rank", "micro_tokens", "micro_sampled", "rows", "context", "roles"):
        more = MemoryPlan(**{**plan.__dict__, name: 2 * getattr(plan, name)})
        assert estimate(shape, more).total >= before
    again = MemoryPlan(**{**plan.__dict__, "checkpointing": True})
    assert estimate(shape, again).of("updates") <= estimate(shape, plan).of("updates")
    half = replace(plan, precision="bfloat16")
    assert base_bytes(shape, replace(half, quantization="nf4")) < base_bytes(shape, half) < base_bytes(shape, plan)


def served(*overrides: str) -> tuple[Config, Shape]:
    """A training of Qwen3-4B with a vLLM server, as on one large GPU."""
    training = [f"training.{one}" for one in ("precision=auto", "lora_rank=32", "micro_batch_tokens=2048")]
    engine = ["engine.concurrency=32", "engine.context_tokens=4096", "team.max_tokens=256"]
    config = load_config("qwen3_4b", [*training, *engine, *overrides])
    return config, Shape.of(architecture_of(config.training, config.nano))


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a GPU's kernels can be compiled depends on the machine; the figures here are those without."""
    monkeypatch.setattr("backend.policies.hardware._can_compile", lambda: False)


@pytest.mark.parametrize(
    ("tokens", "again", "measured_there"),
    [(8192, False, 14.79), (16384, False, 27.39), (32768, False, 52.56), (8192, True, 4.11), (32768, True, 13.33)],
)
def test_a_compiled_step_takes_what_it_took_on_an_h200(tokens: int, again: bool, measured_there: float) -> None:
    """GiB at most in torch's allocator, of Qwen3-0.6B's shape with half of the tokens sampled."""
    shape = Shape.of(qwen3_config("Qwen3-0.6B"))
    plan = MemoryPlan(
        roles=1, rank=lora_settings().lora_rank, precision="bfloat16", micro_tokens=tokens, micro_sampled=tokens // 2,
        checkpointing=again, device="cuda", compiled=True,
    )  # fmt: skip
    trained = round((1 + plan.moments) * shape.adapter(plan.rank) * 4)
    expected = base_bytes(shape, plan) + trained + estimate(shape, plan).of("updates")
    assert 0.99 < expected / GIB / measured_there < 1.1


def test_a_server_elsewhere_takes_nothing_here() -> None:
    """4B on 40 GB was refused at 46.7 GiB, of which 29 were those of a server on another machine."""
    config, shape = served("engine.url=http://other-machine:8000/v1", "engine.gpu_share=0")
    found = estimate(shape, plan_of(config, shape, "cuda"))
    assert not any(need.part.startswith("vLLM") for need in found.needs)
    assert found.total == pytest.approx(17.7 * GIB, rel=0.01)
    require(config, shape, "cuda", 40 * 10**9)
    config, shape = served()
    assert estimate(shape, plan_of(config, shape, "cuda")).total == pytest.approx(46.7 * GIB, rel=0.01)
    with pytest.raises(UserError, match=r"cannot fit: 46\.7 GiB .*Take engine\.concurrency=16 \("):
        require(config, shape, "cuda", 40 * 10**9)


@settings(deadline=None, max_examples=40)
@given(gib=st.integers(4, 60), device=st.sampled_from(["cpu", "cuda"]), mode=st.sampled_from(["lora", "full"]))
def test_a_setting_that_a_refusal_names_takes_what_it_says(gib: int, device: DeviceKind, mode: str) -> None:
    engine = "local" if mode == "full" else "vllm"
    share = [] if engine == "vllm" else ["engine.gpu_share=0"]
    rank = f"training.lora_rank={0 if mode == 'full' else 16}"
    config, shape = served(rank, f"engine.kind={engine}", *share)
    needed = estimate(shape, plan_of(config, shape, device)).total
    found = smaller(config, shape, device)
    assert [total for total, _ in found] == sorted(total for total, _ in found)
    for total, setting in found:
        again, _ = served(rank, f"engine.kind={engine}", *share, setting)
        assert estimate(shape, plan_of(again, shape, device)).total == total
    if needed <= gib * GIB:
        assert require(config, shape, device, gib * GIB).startswith(("fits", "tight"))
    else:
        with pytest.raises(UserError, match=r"cannot fit: .*\. Take .* or a larger machine") as refused:
            require(config, shape, device, gib * GIB)
        assert all((setting in str(refused.value)) == (total < needed) for total, setting in found)


def test_a_plan_follows_its_configuration() -> None:
    shape = Shape.of(qwen3_config("Qwen3-0.6B"))
    base = ["training.base_model=Qwen3-0.6B", "team.max_tokens=256"]
    plan = plan_of(load_config("demo", base), shape)
    assert plan.rows == 128 and plan.rank == 16 and plan.engine == "local" and plan.entropy
    assert plan.context == 1600 + 7 * 406
    short = plan_of(load_config("demo", [*base, "engine.context_tokens=2000", "training.entropy=0.01"]), shape)
    assert short.context == 2000 and short.entropy


def test_the_architecture_is_the_folders_the_names_or_nanos(tmp_path: Path) -> None:
    nano = NanoConfig()
    assert architecture_of(TrainingConfig(), nano).hidden_size == nano.hidden_size
    assert architecture_of(TrainingConfig(base_model="models/Qwen3-4B"), nano).hidden_size == 2560
    folder = tmp_path / "mine"
    new_nano(0, small()).save_pretrained(folder)
    assert architecture_of(TrainingConfig(base_model=str(folder)), nano).num_hidden_layers == 3
    with pytest.raises(UserError, match="give the folder of a model"):
        architecture_of(TrainingConfig(base_model="models/Other-3B"), nano)
    with pytest.raises(UserError, match="there are Qwen3-0"):
        qwen3_config("Qwen3-3B")


def test_the_preset_fits_into_a_card_of_24_gb() -> None:
    config = load_config("qwen3_4b")
    shape = Shape.of(architecture_of(config.training, config.nano))
    plan = plan_of(config, shape, "cuda")
    card, needed = 24 * 10**9, estimate(shape, plan)
    server = sum(one.size for one in needed.needs if one.part.startswith("vLLM"))
    assert plan.shared and server < config.engine.gpu_share * card
    assert needed.total - server < (1.0 - config.engine.gpu_share) * card
    require(config, shape, "cuda", card)
