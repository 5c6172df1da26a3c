"""What several roles have in common is in memory once, and no role hears of it."""

from collections.abc import Mapping

import pytest
import torch
from transformers import Qwen3ForCausalLM

from cryptosentinel.llm.chat_codec import ChatCodec
from cryptosentinel.llm.engine import Request, Sampling
from cryptosentinel.llm.local.engine import LocalEngine
from cryptosentinel.llm.nano import nano_config, new_nano

ROLES = ("manager", "market_analyst", "risk_analyst", "trader")
ADAPTED = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

State = Mapping[str, torch.Tensor]


def adapted(state: State, seed: int, layers: tuple[int, ...] = (0, 1, 2)) -> dict[str, torch.Tensor]:
    """`state` with other linear projections in `layers`, as merged adapters make them."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: weight + 0.05 * torch.randn(weight.shape, generator=generator)
        if name.split(".")[-2] in ADAPTED and int(name.split(".")[2]) in layers
        else weight.clone()
        for name, weight in state.items()
    }


def bytes_alone(codec: ChatCodec, model: Qwen3ForCausalLM) -> int:
    return LocalEngine(codec, model.config, {"manager": model.state_dict()}).weight_bytes


def requests_of(role: str) -> list[Request]:
    return [Request(role, (7, 8, 9, seed), Sampling(1.0, 12), seed) for seed in range(4)]


@pytest.mark.parametrize("tied", [True, False])
def test_equal_roles_take_the_memory_of_one(codec: ChatCodec, tied: bool) -> None:
    config = nano_config(codec.vocab_size, hidden_size=64, layers=2, intermediate_size=96)
    config.tie_word_embeddings = tied
    model = new_nano(1, config)
    alone = bytes_alone(codec, model)
    weights = 4 * sum(weight.numel() for weight in model.parameters())  # tied ones are counted once
    table = 8 * config.max_position_embeddings * config.head_dim // 2
    assert alone <= weights + table + 4 * 2 * 6 * config.head_dim  # the heads' norms are spelled out head by head
    together = LocalEngine(codec, config, {role: model.state_dict() for role in ROLES})
    assert together.weight_bytes == alone


def test_adapted_roles_share_what_adapters_leave_alone(codec: ChatCodec, model: Qwen3ForCausalLM) -> None:
    state = model.state_dict()
    states = {role: adapted(state, seed) for seed, role in enumerate(ROLES)}
    engine = LocalEngine(codec, model.config, states)
    alone = bytes_alone(codec, model)
    linear = sum(4 * weight.numel() for name, weight in state.items() if name.split(".")[-2] in ADAPTED)
    assert engine.weight_bytes == alone + 3 * linear
    for role in ROLES:
        single = LocalEngine(codec, model.config, {role: states[role]})
        assert engine.generate(requests_of(role)) == single.generate(requests_of(role))


def test_new_weights_of_a_role_reach_no_other(codec: ChatCodec, model: Qwen3ForCausalLM) -> None:
    state = model.state_dict()
    engine = LocalEngine(codec, model.config, dict.fromkeys(ROLES, state))
    alone = engine.weight_bytes
    before = {role: engine.generate(requests_of(role)) for role in ROLES}
    other = adapted(state, 5, layers=(1,))
    engine.set_weights("trader", other, "1")
    one_layer = sum(
        4 * weight.numel() for name, weight in other.items() if ".1." in name and name.split(".")[-2] in ADAPTED
    )
    assert engine.weight_bytes == alone + one_layer
    for role in ROLES:
        assert (engine.generate(requests_of(role)) == before[role]) is (role != "trader")
    engine.set_weights("trader", state, "2")
    assert engine.weight_bytes == alone
    assert engine.generate(requests_of("trader")) == before["trader"]


def test_weights_given_later_as_another_type_are_the_same_weights(codec: ChatCodec, model: Qwen3ForCausalLM) -> None:
    """What is compared is what is computed with."""
    half = {name: weight.to(torch.bfloat16) for name, weight in model.state_dict().items()}
    whole = {name: weight.float() for name, weight in half.items()}
    engine = LocalEngine(codec, model.config, {"manager": half, "trader": whole})
    assert engine.weight_bytes == bytes_alone(codec, model)
