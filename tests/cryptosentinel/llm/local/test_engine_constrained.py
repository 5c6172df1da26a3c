"""Constrained sampling: what is said parses, and what cannot be held is refused."""

from typing import Any

import pytest
from transformers import Qwen3Config, Qwen3ForCausalLM

from cryptosentinel.llm.chat_codec import ChatCodec
from cryptosentinel.llm.engine import Request, Sampling
from cryptosentinel.llm.nano import nano_config, new_nano
from cryptosentinel.protocol.tool_calls import ToolCall, parse, render_call
from simulator.errors import UserError
from tests.cryptosentinel.llm.local.test_engine import TOOLS, TYPES, engine_of, matcher_of


def test_constrained_turns_parse(codec: ChatCodec, model: Qwen3ForCausalLM) -> None:
    wanted = [
        Request("manager", tuple(codec.start("Be brief.", "Go on." * length)), Sampling(heat, most, True), seed, tools)
        for length in (1, 4)
        for heat in (0.0, 1.0, 1.6)
        for seed, most in ((1, 60), (2, 9), (3, 60))
        for tools in (TOOLS, TOOLS[:1])
    ]
    whole = 0
    for request, answer in zip(wanted, engine_of(codec, model).generate(wanted), strict=True):
        if not answer.finished:
            assert len(answer.ids) == request.sampling.max_tokens
            assert matcher_of(codec, request).try_consume_tokens(list(answer.ids)) == len(answer.ids)
            continue
        whole += 1
        call = parse(codec.decode_answer(answer.ids), TYPES)
        assert isinstance(call, ToolCall)
        assert request.tools == TOOLS or call.name == "look"
    assert whole > 10


def test_a_turn_without_a_choice_is_certain(codec: ChatCodec, model: Qwen3ForCausalLM) -> None:
    request = Request("manager", (1, 2, 3), Sampling(1.0, 60, constrained=True), 5, TOOLS[:1])
    (answer,) = engine_of(codec, model).generate([request])
    assert list(answer.ids) == codec.encode_assistant(render_call("look", {}))
    assert answer.finished
    assert set(answer.logps) == {0.0}


def test_a_model_with_more_tokens_than_its_tokenizer(codec: ChatCodec) -> None:
    config: Qwen3Config = nano_config(codec.vocab_size + 77, hidden_size=32, layers=1, intermediate_size=32)
    model = new_nano(3, config)
    drawn = [
        Request("manager", (1, 2), Sampling(4.0, 60, constrained=True), seed, TOOLS) for seed in range(20)
    ]  # hot: without a mask, every sixth token would be one that the tokenizer does not know
    for answer in engine_of(codec, model).generate(drawn):
        assert max(answer.ids) < codec.vocab_size


@pytest.mark.parametrize(
    ("tools", "error", "message"),
    [
        ((), ValueError, "constrained sampling needs the tools of manager"),
        (
            ({"type": "function", "function": {"name": "odd", "parameters": {"type": "nothing"}}},),
            UserError,
            "the tool odd cannot be held to",
        ),
    ],
)
def test_constraints_that_cannot_be_are_refused(
    codec: ChatCodec, model: Qwen3ForCausalLM, tools: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        engine_of(codec, model).generate([Request("manager", (1,), Sampling(constrained=True), 0, tools)])
