"""The estimate of memory against what is really held: exact where it is counted, within 30 % where it is measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, Qwen3Config, Qwen3ForCausalLM

from backend.config.load import load_config
from backend.config.schema import Config, NanoConfig
from backend.config.training import TrainingConfig
from backend.models.shape import KNOWN, Shape, architecture_of, qwen3_config
from backend.policies.hardware import DeviceKind, Hardware, Precision, machine_memory
from backend.policies.role_policies import RolePolicies
from backend.training.memory_estimate import (
    GIB,
    Estimate,
    MemoryPlan,
    Need,
    activations,
    base_bytes,
    estimate,
    gib,
    memory_verdict,
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

MEASURED = """
import json, sys
import numpy as np, torch
torch.set_num_threads(1)
from backend.models.shape import qwen3_config
from backend.policies.hardware import Hardware
from backend.policies.role_policies import RolePolicies
from backend.training.learning.role_trainer import RoleTrainer
from tests.standard_settings import lora_settings, trainer_settings
from backend.training.algorithm.trajectory import Trajectory
from cryptosentinel.llm.nano import nano_config, new_nano

name, mode, precision, again = sys.argv[1:5]
count, length, sampled = map(int, sys.argv[5:])
# Not getrusage: its peak begins with that of the process that forked this one.
status = lambda name: next(
    int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(name + ":")
)
before = status("VmRSS")
config = nano_config(1280) if name == "nano" else qwen3_config("Qwen3-0.6B", layers=2)
hardware = Hardware("cpu", precision, again == "True")
policies = RolePolicies(new_nano(0, config), ["manager"], mode, lora_settings(), hardware=hardware)
built = status("VmHWM") - before
trainer = RoleTrainer(policies, "manager", trainer_settings())
rng = np.random.default_rng(0)
mask = np.arange(length) >= length - sampled
talks = [
    Trajectory("manager", "q", i, 0, rng.integers(0, 1000, length).astype(np.int32), mask,
               np.where(mask, -7.0, 0.0).astype(np.float32), "v", True, 1.0, None, False)
    for i in range(count)
]
for _ in range(2):  # the optimizer's moments are there from the second on
    trainer.step(talks, [(-1.0) ** i for i in range(count)], [1 / count] * count)
print(json.dumps([built, status("VmHWM") - before]))
"""


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


# -- counted --------------------------------------------------------------------------------------------------------


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


@settings(deadline=None, max_examples=20)
@given(hidden=st.sampled_from([16, 32, 64]), layers=st.integers(1, 3), tied=st.booleans(), rank=st.integers(1, 8))
def test_parameters_and_adapters_are_counted_exactly(hidden: int, layers: int, tied: bool, rank: int) -> None:
    config = nano_config(280, hidden_size=hidden, layers=layers, intermediate_size=3 * hidden)
    config.tie_word_embeddings = tied
    shape = Shape.of(config)
    model = new_nano(0, config)
    assert shape.parameters == sum(one.numel() for one in model.parameters())
    policies = RolePolicies(model, ["manager"], "lora", lora_settings(lora_rank=rank))
    assert shape.adapter(rank) == sum(one.numel() for one in policies.trainable("manager"))


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


def test_checkpointing_keeps_the_inputs_of_blocks_and_one_block() -> None:
    shape = Shape.of(small(layers=20))
    sizes: dict[Precision, int] = {"float32": 4, "bfloat16": 2}
    for precision, size in sizes.items():
        plan = MemoryPlan(micro_tokens=100, precision=precision, checkpointing=True)
        one = activations(replace(shape, layers=1), replace(plan, checkpointing=False))
        assert activations(shape, plan) == one + 20 * 100 * shape.hidden * size


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


# -- measured -------------------------------------------------------------------------------------------------------


def measured(*arguments: Any) -> tuple[float, float]:
    """Bytes at the peak of building the policies, and of two optimizer steps, in a process of its own."""
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
    )
    built, stepped = json.loads(done.stdout)
    return float(built), float(stepped)


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/status").is_file(), reason="a process's peak of memory is read from Linux's /proc"
)
@pytest.mark.parametrize(
    ("name", "mode", "precision", "again", "count", "length", "sampled"),
    [
        ("nano", "lora", "float32", False, 16, 512, 128),
        ("nano", "full", "float32", False, 16, 512, 128),
        ("nano", "lora", "float32", False, 32, 128, 64),
        ("qwen", "lora", "float32", False, 4, 256, 100),
        ("nano", "lora", "float32", True, 16, 512, 16),
        ("nano", "lora", "bfloat16", False, 16, 512, 16),
    ],
)
def test_a_real_step_takes_what_was_estimated(
    name: str, mode: Literal["lora", "full"], precision: Precision, again: bool, count: int, length: int, sampled: int
) -> None:
    built, stepped = measured(name, mode, precision, again, count, length, sampled)
    shape = Shape.of(nano_config(1280) if name == "nano" else qwen3_config("Qwen3-0.6B", layers=2))
    plan = MemoryPlan(
        weights=mode,
        precision=precision,
        checkpointing=again,
        micro_tokens=count * length,
        micro_sampled=count * sampled,
    )
    own = shape.adapter(plan.rank) if mode == "lora" else shape.parameters
    held = base_bytes(shape, plan) + 4 * 3 * own  # base, the role's own, two moments
    assert held + estimate(shape, plan).of("updates") == pytest.approx(stepped, rel=0.3)
    if name == "qwen":
        assert 4 * (2 * shape.parameters + own) == pytest.approx(built, rel=0.05)  # the second copy of the base


# -- laws and words -------------------------------------------------------------------------------------------------

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
@given(plan=PLANS, name=st.sampled_from(KNOWN))
def test_the_peak_is_one_of_its_phases(plan: MemoryPlan, name: str) -> None:
    found = estimate(Shape.of(qwen3_config(name)), plan)
    phases = {need.phase for need in found.needs} - {"always"}
    assert found.total == found.of("always") + max(found.of(phase) for phase in phases)
    assert all(need.size >= 0 for need in found.needs)


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
    assert estimate(shape, half).of("always") < estimate(shape, plan).of("always")
    for phase in ("rollouts", "updates", "publishing"):
        short, long = estimate(shape, half).of(phase), estimate(shape, plan).of(phase)
        # What is trained is copied in bfloat16, which outweighs activations of a few tokens.
        assert short <= long + (2 * shape.parameters if phase == "updates" else 0)
    quarter = replace(half, quantization="nf4")
    assert base_bytes(shape, quarter) < base_bytes(shape, half) < base_bytes(shape, plan)


def served(*overrides: str) -> tuple[Config, Shape]:
    """A training of Qwen3-4B with a vLLM server, as on one large GPU."""
    plain = [
        "training.precision=auto",
        "engine.concurrency=32",
        "engine.context_tokens=4096",
        "training.lora_rank=32",
    ]
    wide = ["training.micro_batch_tokens=2048", "team.max_tokens=256"]
    config = load_config("qwen3_4b", [*plain, *wide, *overrides])
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
        roles=1,
        rank=lora_settings().lora_rank,
        precision="bfloat16",
        micro_tokens=tokens,
        micro_sampled=tokens // 2,
        checkpointing=again,
        device="cuda",
        compiled=True,
    )
    trained = round((1 + plan.moments) * shape.adapter(plan.rank) * 4)
    expected = base_bytes(shape, plan) + trained + estimate(shape, plan).of("updates")
    assert 0.99 < expected / GIB / measured_there < 1.1


def test_compiled_is_what_a_gpu_in_bfloat16_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    config, shape = served()
    assert not plan_of(config, shape, "cuda").compiled
    monkeypatch.setattr("backend.policies.hardware._can_compile", lambda: True)
    assert plan_of(config, shape, "cuda").compiled and not plan_of(config, shape, "cpu").compiled
    assert not plan_of(served("training.precision=nf4")[0], shape, "cuda").compiled
    assert not plan_of(served("training.precision=float32")[0], shape, "cuda").compiled


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


def test_verdicts() -> None:
    found = Estimate((Need("base model", "always", 9 * GIB), Need("x", "updates", GIB // 2)))
    assert memory_verdict(found, 100 * GIB).startswith("fits: 9.5 GiB at the peak (updates)")
    assert memory_verdict(found, 10 * GIB).startswith("tight")
    assert memory_verdict(found, 9 * GIB).startswith("cannot fit")
    assert gib(3 * 2**20) == "3 MiB"


def test_this_machine_has_memory() -> None:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < machine_memory() <= pages


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


def test_an_engine_in_bfloat16_and_short_prompts_take_less() -> None:
    named = ["training.base_model=somewhere", "team.max_tokens=0", "engine.context_tokens=0"]  # not the preset's bound
    config = load_config("smollm2", named)
    shape = Shape.of(architecture_of(load_config("demo").training, config.nano))
    asked = plan_of(config, shape)
    whole = replace(asked, answering="float32")
    halves, wholes = (
        [need.size for need in estimate(shape, plan).needs if need.part.startswith("engine: merged blocks")]
        for plan in (asked, whole)
    )
    assert asked.answering == "bfloat16" and [2 * size for size in halves] == wholes
    longer = plan_of(load_config("smollm2", [*named, "team.prompts=full"]), shape)
    assert asked.context < longer.context, "an answer is as long as its prompts say, whatever the base"
