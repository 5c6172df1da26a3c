"""The presets of real models: each loads, names an architecture that is known, and says what it takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backend.config.load import load_config, presets
from backend.models.shape import KNOWN, Shape, architecture_of, qwen3_config
from backend.training.memory_estimate import GIB, Estimate, MemoryPlan, estimate, plan_of, require
from cryptosentinel.agents.registry import ROLES

REAL = {"qwen3_4b": "Qwen3-4B"}
PRESETS = {"demo", "quick", "recorded", "recorded_training", "smollm2", "qwen3_4b", "thinking"}


def test_these_presets_ship() -> None:
    assert set(presets()) == PRESETS


def served(needed: Estimate) -> int:
    """Bytes of the vLLM server."""
    return sum(one.size for one in needed.needs if one.part.startswith("vLLM"))


@pytest.mark.parametrize("name", presets())
def test_every_preset_loads(name: str) -> None:
    load_config(name)


@pytest.mark.parametrize(("name", "model"), REAL.items())
def test_a_preset_of_a_real_model_trains_adapters_of_it_through_vllm(name: str, model: str) -> None:
    config = load_config(name)
    assert config.training.base_model == f"Qwen/{model}"
    assert (config.training.weights, config.engine.kind) == ("lora", "vllm")
    assert config.team.prompts == "auto"
    assert config.training.kl > 0.0 and all(config.training.rate_of(role) <= 1e-4 for role in ROLES)
    assert config.engine.context_tokens <= qwen3_config(model).max_position_embeddings


@pytest.mark.parametrize(("name", "model"), REAL.items())
def test_what_a_preset_takes_is_known(name: str, model: str) -> None:
    config = load_config(name)
    shape = Shape.of(architecture_of(config.training, config.nano))
    assert shape == Shape.of(qwen3_config(model))
    plan = plan_of(config, shape)
    apart, together = (estimate(shape, replace(plan, shared=shared)) for shared in (False, True))
    assert together.total == apart.total + served(together)
    assert 0 < served(together) < 80 * GIB  # of one GPU
    assert {one.part for one in together.needs} >= {
        "base model",
        "vLLM: weights, adapters, KV cache, graphs",
        "activations of a micro-batch",
    }
    assert not any(need.part.startswith("engine:") for need in together.needs)  # vLLM merges nothing


def test_the_preset_fits_into_a_card_of_24_gb() -> None:
    config = load_config("qwen3_4b")
    shape = Shape.of(architecture_of(config.training, config.nano))
    plan = plan_of(config, shape, "cuda")
    card, needed = 24 * 10**9, estimate(shape, plan)
    assert plan.shared and served(needed) < config.engine.gpu_share * card
    assert needed.total - served(needed) < (1.0 - config.engine.gpu_share) * card
    require(config, shape, "cuda", card)


def test_a_larger_model_takes_more() -> None:
    totals = [estimate(Shape.of(qwen3_config(name)), MemoryPlan()).total for name in KNOWN]
    assert totals == sorted(totals)


def test_the_preset_of_a_model_that_thinks_has_room_for_thought_and_answer() -> None:
    config, plain = load_config("thinking"), load_config("qwen3_4b")
    team = config.team
    assert team.thinking_tokens > 0
    assert plain.team.thinking_tokens == 0 and team.max_tokens >= plain.team.max_tokens, (
        "a thought takes no answer's room"
    )
    assert config.engine.context_tokens > 8 * (team.thinking_tokens + team.max_tokens)  # a manager's turns
    shape = Shape.of(architecture_of(config.training, config.nano))
    assert served(estimate(shape, plan_of(config, shape))) < 80 * GIB
    thoughtless = config.model_copy(update={"team": team.model_copy(update={"thinking_tokens": 0})})
    short = replace(plan_of(thoughtless, shape))
    assert plan_of(config, shape).context >= short.context
