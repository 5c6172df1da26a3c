"""The presets of real models: each loads, names an architecture that is known, and says what it takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backend.config.load import load_config, presets
from backend.models.architectures import KNOWN_SMALL, architecture_of, qwen3_config, smollm2_config
from backend.models.shape import Shape
from backend.training.memory_estimate import GIB, Estimate, estimate, plan_of, require
from cryptosentinel.agents.registry import ROLES

REAL = {"qwen3_4b": "Qwen3-4B"}
PRESETS = {"demo", "quick", "recorded", "recorded_training", "smollm2", "qwen3_4b", "thinking"}


def test_these_presets_ship() -> None:
    assert set(presets()) == PRESETS


def served(needed: Estimate) -> int:
    """Bytes of the vLLM server."""
    return sum(one.size for one in needed.needs if one.part.startswith("vLLM"))


@pytest.mark.parametrize(("name", "model"), REAL.items())
def test_a_preset_of_a_real_model_trains_adapters_of_it_through_vllm(name: str, model: str) -> None:
    config = load_config(name)
    assert config.training.base_model == f"Qwen/{model}"
    assert (config.training.weights, config.engine.kind) == ("lora", "vllm")
    assert config.team.prompts == "auto"
    assert config.training.kl > 0.0 and all(config.training.rate_of(role) <= 1e-4 for role in ROLES)
    assert config.engine.context_tokens <= qwen3_config(model).max_position_embeddings


def test_the_preset_fits_into_a_card_of_24_gb() -> None:
    config = load_config("qwen3_4b")
    shape = Shape.of(architecture_of(config.training, config.nano))
    plan = plan_of(config, shape, "cuda")
    card, needed = 24 * 10**9, estimate(shape, plan)
    assert plan.shared and served(needed) < config.engine.gpu_share * card
    assert needed.total - served(needed) < (1.0 - config.engine.gpu_share) * card
    require(config, shape, "cuda", card)


def test_the_small_models_have_their_published_sizes() -> None:
    sizes = {name: Shape.of(smollm2_config(name)).parameters for name in KNOWN_SMALL}
    assert sizes == {"SmolLM2-135M-Instruct": 134_515_008, "SmolLM2-360M-Instruct": 361_821_120}


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
