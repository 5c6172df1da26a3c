"""One suite for every architecture: a tiny random model of each is loaded, decoded, scored, trained, saved and resumed,
and held against plain transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import Tensor
from transformers import (
    FalconH1Config,
    Gemma2Config,
    Gemma3Config,
    Gemma3TextConfig,
    Gemma4TextConfig,
    Glm4MoeConfig,
    GPT2Config,
    GPTNeoXConfig,
    JambaConfig,
    Llama4TextConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    PhiConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from backend.models.checks import check_base
from backend.models.shape import Shape
from backend.policies.adapters import export_adapter, load_versions, save_versions
from backend.policies.logprobs import token_logps
from backend.policies.prefix_tree import sampled_states
from backend.policies.role_policies import RolePolicies
from backend.training.algorithm.trajectory import Trajectory
from backend.training.learning.role_trainer import RoleTrainer
from cryptosentinel.llm.architecture import blocks_of, empty_model, linear_layers, linear_names
from cryptosentinel.llm.chat_codec import ChatCodec
from cryptosentinel.llm.engine import Completion, Request, Sampling
from cryptosentinel.llm.local.engine import LocalEngine
from cryptosentinel.llm.local.families import why_not
from cryptosentinel.llm.nano import load_model, save_model, train_tokenizer
from tests.random_models import random_model
from tests.small_world import disturb
from tests.standard_settings import lora_settings, trainer_settings

VOCABULARY = 280
ROLES = ("manager", "trader")
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 128, "initializer_range": 0.15, "bos_token_id": None, "eos_token_id": None,
    "pad_token_id": None,
}  # fmt: skip
GATED: dict[str, Any] = {**SMALL, "intermediate_size": 48, "num_key_value_heads": 2}
BY_LAYER: dict[str, Any] = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": lambda: LlamaConfig(**GATED, rope_parameters=LLAMA3, tie_word_embeddings=True),
    "mistral": lambda: MistralConfig(**GATED, sliding_window=6),
    "qwen2": lambda: Qwen2Config(**GATED, **BY_LAYER),
    "qwen3": lambda: Qwen3Config(**GATED, head_dim=16),
    "gemma3": lambda: Gemma3TextConfig(**GATED, head_dim=8, sliding_window=6, query_pre_attn_scalar=8),
    "gpt_neox": lambda: GPTNeoXConfig(**SMALL, intermediate_size=48),
}
MORE: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama, biases": lambda: LlamaConfig(**GATED, attention_bias=True, mlp_bias=True, hidden_act="gelu"),
    "llama, yarn": lambda: LlamaConfig(**GATED, rope_parameters=YARN, head_dim=12),
    "llama, dynamic": lambda: LlamaConfig(
        **GATED, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    ),
    "qwen3, windows": lambda: Qwen3Config(**GATED, head_dim=16, attention_bias=True, **BY_LAYER),
    "gemma2": lambda: Gemma2Config(**GATED, head_dim=8, sliding_window=6, query_pre_attn_scalar=8),
    "phi": lambda: PhiConfig(**SMALL, intermediate_size=48),
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=128, initializer_range=0.15,
        bos_token_id=None, eos_token_id=None,
    ),
    "mixtral": lambda: MixtralConfig(**GATED, num_local_experts=4),
}  # fmt: skip
EXPERTS: dict[str, Any] = {
    "num_experts_per_tok": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 1, "n_routed_experts": 4,
    "head_dim": 8,
}  # fmt: skip
STATE_SPACE: dict[str, Any] = {"mamba_d_state": 8, "mamba_chunk_size": 8, "mamba_d_head": 8}
TOWER: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip
# What an adapter must not be on: a tower for pictures, experts in one tensor, a router, what kernels read themselves;
# and blocks that differ in the width of their heads.
WITH_MORE_THAN_BLOCKS: dict[str, Callable[[], PreTrainedConfig]] = {
    "gemma3, pictures": lambda: Gemma3Config(
        text_config={**GATED, "head_dim": 8, "sliding_window": 6, "query_pre_attn_scalar": 8}, vision_config=TOWER,
        mm_tokens_per_image=1,
    ),
    "gemma4": lambda: Gemma4TextConfig(**GATED, head_dim=8, vocab_size_per_layer_input=VOCABULARY),
    "glm4_moe": lambda: Glm4MoeConfig(**GATED, **EXPERTS),
    "llama4": lambda: Llama4TextConfig(**GATED, num_local_experts=2, intermediate_size_mlp=48, head_dim=8),
    "jamba": lambda: JambaConfig(
        **GATED, num_experts=2, mamba_d_state=4, mamba_dt_rank=4, attn_layer_period=2, attn_layer_offset=1,
        expert_layer_period=2, expert_layer_offset=1,
    ),
    "falcon_h1": lambda: FalconH1Config(
        **GATED | {"num_hidden_layers": 3}, **STATE_SPACE, mamba_d_ssm=32, mamba_n_heads=4
    ),
}  # fmt: skip
MORE |= WITH_MORE_THAN_BLOCKS
FAST = {"llama", "mistral", "qwen2", "qwen3", "llama, biases", "llama, yarn", "qwen3, windows"}
every = pytest.mark.parametrize(
    "kind", [*CONFIGS, *(pytest.param(kind, marks=pytest.mark.slow) for kind in MORE)], scope="module"
)


def lively(config: PreTrainedConfig) -> PreTrainedModel:
    """A random model whose norms and biases are far from those of a fresh one."""
    model = random_model(1, config)
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=rng))
    return model


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(["price up 1.5\nprice down 2.5\n"] * 20, vocab_size=VOCABULARY)


@pytest.fixture(scope="module")
def model(kind: str) -> PreTrainedModel:
    return lively((CONFIGS | MORE)[kind]())


@pytest.fixture
def policies(model: PreTrainedModel) -> RolePolicies:
    """Two roles, whose adapters do something."""
    return disturb(RolePolicies(model, ROLES, lora=lora_settings(lora_rank=3, lora_alpha=6)), size=0.1, seed=2)


def batch(seed: int = 0) -> tuple[Tensor, Tensor]:
    """ids and mask (6, 14): two groups that begin alike, of different lengths."""
    rng = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, VOCABULARY, (6, 14), generator=rng)
    ids[:3, :8], ids[3:, :6] = ids[0, :8].clone(), ids[3, :6].clone()
    mask = torch.zeros(6, 14, dtype=torch.bool)
    mask[:, 8:12] = True
    mask[::2, 12:] = True
    return ids, mask


def plain_logps(model: Any, ids: Tensor, mask: Tensor, temperature: float = 1.0) -> Tensor:
    """Log-probs of the sampled tokens by the library's own forward pass, one conversation after the other."""
    rows = []
    for row, sampled in zip(ids, mask, strict=True):
        logits = model(input_ids=row[None], use_cache=False).logits[0].float() / temperature
        chosen = logits.log_softmax(-1)[:-1].gather(1, row[1:, None])[:, 0]
        rows.append(torch.cat([torch.zeros(1), chosen]) * sampled)
    return torch.stack(rows)


@every
def test_it_is_loaded_and_passes_every_check(
    kind: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    save_model(tmp_path / "base", model, tokenizer)
    loaded, _ = load_model(tmp_path / "base")
    state = model.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in loaded.state_dict().items())
    findings = check_base(tmp_path / "base")
    # So short a context holds no decision, as the check of the room says.
    assert [one.detail for one in findings.entries if one.state == "wrong" and one.what != "room"] == []
    assert findings.fingerprint == RolePolicies(tmp_path / "base", ["manager"]).base_fingerprint
    engines = next(one for one in findings.entries if one.what == "engines")
    assert (engines.state == "ok") == (kind in FAST) == (why_not(model.config) is None)
    assert ("decoded by transformers itself" in engines.detail) == (kind not in FAST)


@every
def test_greedy_decoding_is_generates_and_log_probs_are_the_models(
    kind: str, model: Any, tokenizer: PreTrainedTokenizerFast
) -> None:
    engine = LocalEngine(ChatCodec(tokenizer), model.config, dict.fromkeys(ROLES, model.state_dict()))
    end = ChatCodec(tokenizer).end_of_turn
    rng = torch.Generator().manual_seed(3)
    prompts = [tuple(torch.randint(0, 250, (length,), generator=rng).tolist()) for length in (3, 9, 9, 14)]
    greedy = engine.generate([Request("manager", ids, Sampling(0.0, 16), 1) for ids in prompts])
    sampled = engine.generate([Request("trader", ids, Sampling(0.7, 16), seed) for seed, ids in enumerate(prompts)])
    later = [
        Request("manager", ids + one.ids + (7, 8), Sampling(0.0, 5), 1)
        for ids, one in zip(prompts, greedy, strict=True)
    ]
    again = engine.generate(later)  # the next turn, from what was read before where that is kept
    with torch.no_grad():
        for ids, one in zip([*prompts, *(one.ids for one in later)], [*greedy, *again], strict=True):
            limit = 16 if len(one.ids) > 5 or ids in prompts else 5
            given = torch.tensor([ids])
            theirs = model.generate(
                given, attention_mask=torch.ones_like(given), max_new_tokens=limit, do_sample=False, eos_token_id=end,
                pad_token_id=0,
            )  # fmt: skip
            assert theirs[0, len(ids) :].tolist() == list(one.ids)
            check(model, ids, one, 1.0)
        for ids, one in zip(prompts, sampled, strict=True):
            check(model, ids, one, 0.7)


def check(model: Any, prompt: tuple[int, ...], answer: Completion, temperature: float) -> None:
    ids = torch.tensor([prompt + answer.ids])
    mask = torch.arange(ids.shape[1])[None] >= len(prompt)
    expected = plain_logps(model, ids, mask, temperature)[0, len(prompt) :]
    torch.testing.assert_close(torch.tensor(answer.logps), expected, atol=2e-5, rtol=0)


@every
def test_log_probs_and_gradients_are_plain_transformers(kind: str, model: Any, policies: RolePolicies) -> None:
    ids, mask = batch()
    assert (sampled_states(model, ids, mask) is not None) == (kind in FAST), "the tree is used where it can be"
    found = []
    for scored in (lambda: policies.logps("manager", ids, mask, 0.8)[0],
                   lambda: plain_logps(policies.activate("manager"), ids, mask, 0.8)):  # fmt: skip
        own = policies.trainable("manager")
        values = scored()
        weights = torch.linspace(-1.0, 1.0, values.numel()).view(values.shape)
        found.append((values.detach(), torch.autograd.grad((weights * values).sum(), own)))
    (value, gradient), (expected, expected_gradient) = found
    torch.testing.assert_close(value, expected, atol=2e-5, rtol=0)
    scale = max(float(one.abs().max()) for one in expected_gradient)
    for one, other in zip(gradient, expected_gradient, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5 * max(1.0, scale), rtol=0)
    alone = token_logps(model, ids[:1], mask[:1])[0]  # nothing to share: a plain pass
    torch.testing.assert_close(alone, plain_logps(model, ids[:1], mask[:1]), atol=2e-5, rtol=0)


@every
def test_adapters_answer_merged_saved_and_switched_off(
    kind: str, model: Any, policies: RolePolicies, tmp_path: Path
) -> None:
    ids, mask = batch(1)
    shape = policies.shape
    assert shape is not None and shape.lora_targets == linear_names(model.config)
    merged = random_model(0, model.config)
    merged.load_state_dict(policies.merged_state("manager"))
    with torch.no_grad():
        with_adapter, base = policies.logps("manager", ids, mask)[0], plain_logps(model, ids, mask)
        torch.testing.assert_close(plain_logps(merged, ids, mask), with_adapter, atol=5e-5, rtol=1e-4)
        torch.testing.assert_close(policies.reference_logps("manager", ids, mask), base, atol=2e-5, rtol=0)
        assert (with_adapter - base).abs().max() > 0.05, "an adapter that moves nothing would show nothing"
    save_versions(policies, tmp_path / "kept", "run", 1)
    fresh = RolePolicies(model, ROLES, lora=lora_settings(lora_rank=3, lora_alpha=6))
    load_versions(fresh, tmp_path / "kept")
    assert [fresh.version(role) for role in ROLES] == [policies.version(role) for role in ROLES]
    export_adapter(policies, "manager", tmp_path / "peft")
    theirs = PeftModel.from_pretrained(random_copy(model), str(tmp_path / "peft")).eval()
    with torch.no_grad():
        torch.testing.assert_close(plain_logps(theirs, ids, mask), with_adapter, atol=5e-5, rtol=1e-4)


def random_copy(model: Any) -> Any:
    copied = random_model(0, model.config)
    copied.load_state_dict(model.state_dict())
    return copied


@pytest.mark.parametrize(
    ("kind", "absent"),
    [
        ("gemma3, pictures", set()),
        ("gemma4", set()),
        ("glm4_moe", {"gate_proj", "up_proj", "down_proj"}),
        ("llama4", {"router", "gate_proj", "up_proj", "down_proj"}),
        ("jamba", {"dt_proj", "out_proj", "gate_proj", "up_proj", "down_proj"}),
        ("falcon_h1", {"out_proj"}),
    ],
)
def test_an_adapter_is_on_no_layer_that_it_would_not_reach(kind: str, absent: set[str]) -> None:
    config = WITH_MORE_THAN_BLOCKS[kind]()
    model = empty_model(config)
    prefix, _ = blocks_of(model, config)
    names, layers = set(linear_names(config)), linear_layers(model, config)
    assert {"q_proj", "v_proj"} <= names and not names & absent
    adapted = RolePolicies(random_model(0, config), ["trader"], lora=lora_settings(lora_rank=2)).role_state("trader")
    carrying = {name.removeprefix("base_model.model.").partition(".lora_")[0] for name in adapted}
    assert carrying == {name for name in layers if name.rpartition(".")[2] in names}
    assert all(name.startswith(f"{prefix}.") for name in carrying)


@every
def test_a_training_step_that_is_resumed_has_the_same_bits(
    kind: str, model: Any, make: Callable[..., Trajectory], tmp_path: Path
) -> None:
    spoken = [make(seed, prompt=6) for seed in range(4)]
    settings, shape = trainer_settings(minibatches=2), lora_settings(lora_rank=2)

    def trained(steps: int, folder: Path | None = None) -> RolePolicies:
        policies = RolePolicies(model, ["manager"], lora=shape)
        trainer = RoleTrainer(policies, "manager", settings)
        if folder is not None:
            policies.load(folder)
            trainer.load(folder / "trainer")
        for _ in range(steps):
            trainer.step(spoken, [1.0, -1.0, 0.5, -0.5], [0.25] * 4)
        policies.save(tmp_path / f"after-{steps}")
        trainer.save(tmp_path / f"after-{steps}" / "trainer")
        return policies

    whole, half = trained(2), trained(1)
    resumed = trained(1, tmp_path / "after-1")
    assert resumed.version("manager") == whole.version("manager") != half.version("manager")


@every
def test_its_numbers_are_counted_on_the_model(kind: str, model: Any) -> None:
    shape = Shape.of(model.config)
    assert shape.parameters == sum(one.numel() for one in model.parameters())
    policies = RolePolicies(model, ["manager"], lora=lora_settings(lora_rank=4))
    assert shape.adapter(4) == sum(one.numel() for one in policies.trainable("manager"))
