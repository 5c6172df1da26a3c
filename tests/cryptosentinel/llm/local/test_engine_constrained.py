"""Constrained sampling: what is said parses, log-probs are those of what was left, and no other row feels it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer
from pydantic import Field
from transformers import Qwen3Config, Qwen3ForCausalLM

from cryptosentinel.llm.chat_codec import ChatCodec
from cryptosentinel.llm.engine import Completion, Request, Sampling
from cryptosentinel.llm.grammar import grammar
from cryptosentinel.llm.local.engine import LocalEngine
from cryptosentinel.llm.nano import nano_config, new_nano
from cryptosentinel.protocol.tool_calls import Arguments, NoArguments, ToolCall, parse, render_call, tool_schema
from simulator.errors import UserError


class Size(Arguments):
    side: str = Field(max_length=3)
    exposure: float = Field(ge=0, le=1)


TYPES: dict[str, type[Arguments]] = {"look": NoArguments, "submit_size": Size}
TOOLS = tuple(tool_schema(name, "", arguments) for name, arguments in TYPES.items())
ONLY_LOOK = TOOLS[:1]


def engine_of(codec: ChatCodec, model: Qwen3ForCausalLM, **options: Any) -> LocalEngine:
    return LocalEngine(codec, model.config, {"manager": model.state_dict()}, **options)


@pytest.fixture(scope="module")
def requests_(codec: ChatCodec) -> list[Request]:
    """Constrained and free, greedy and sampled, of several lengths; free ones come with tools too."""
    return [
        Request("manager", tuple(codec.start("Be brief.", "Go on." * length)), sampling, seed, tools)
        for seed, (length, sampling, tools) in enumerate(
            (length, Sampling(temperature, most, constrained), tools)
            for length in (1, 4, 4)
            for temperature, most in ((0.0, 20), (1.0, 60), (1.6, 60))
            for constrained, tools in ((True, TOOLS), (True, ONLY_LOOK), (False, TOOLS))
        )
    ]


def matcher_of(codec: ChatCodec, request: Request) -> LLMatcher:
    tokenizer = LLTokenizer(codec.tokenizer.to_str(), eos_token=codec.end_of_turn)
    return LLMatcher(tokenizer, grammar(request.tools, codec), log_level=0)


def fresh_logps(codec: ChatCodec, model: Qwen3ForCausalLM, request: Request, answer: Completion) -> torch.Tensor:
    """Log-probs (len(answer.ids), V) of one forward pass of Hugging Face's model over the whole conversation, with what
    the grammar forbids left out token by token."""
    with torch.no_grad():
        logits = model(torch.tensor([request.ids + answer.ids])).logits[0, len(request.ids) - 1 : -1]
    if request.sampling.constrained:
        matcher = matcher_of(codec, request)
        for row, token in zip(logits, answer.ids, strict=True):
            mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
            forbidden = np.unpackbits(mask, bitorder="little")[: len(row)] == 0
            row[torch.from_numpy(forbidden)] = float("-inf")
            assert matcher.consume_token(token)
    return torch.log_softmax(logits / (request.sampling.temperature or 1.0), dim=-1)


def test_constrained_turns_parse(codec: ChatCodec, model: Qwen3ForCausalLM, requests_: list[Request]) -> None:
    engine = engine_of(codec, model)
    wanted = [
        replace(request, seed=seed, sampling=replace(request.sampling, max_tokens=most))
        for request in requests_
        for seed, most in ((1, 60), (2, 9))
    ]
    whole = 0
    for request, answer in zip(wanted, engine.generate(wanted), strict=True):
        if not request.sampling.constrained:
            continue
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
    request = Request("manager", (1, 2, 3), Sampling(1.0, 60, constrained=True), 5, ONLY_LOOK)
    (answer,) = engine_of(codec, model).generate([request])
    assert list(answer.ids) == codec.encode_assistant(render_call("look", {}))
    assert answer.finished
    assert set(answer.logps) == {0.0}


def test_log_probs_are_those_of_what_was_left(
    codec: ChatCodec, model: Qwen3ForCausalLM, requests_: list[Request]
) -> None:
    for request, answer in zip(requests_, engine_of(codec, model).generate(requests_), strict=True):
        logps = fresh_logps(codec, model, request, answer)
        chosen = logps.gather(1, torch.tensor(answer.ids)[:, None])[:, 0]
        np.testing.assert_allclose(answer.logps, chosen.numpy(), rtol=0, atol=1e-5)
        if request.sampling.temperature == 0:
            assert list(answer.ids) == logps.argmax(dim=-1).tolist()


def assert_same(ours: Sequence[Completion], theirs: Sequence[Completion]) -> None:
    assert [answer.ids for answer in ours] == [answer.ids for answer in theirs]
    for answer, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(answer.logps, other.logps, rtol=0, atol=1e-5)


@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_a_constrained_turn_does_not_depend_on_the_batch(
    codec: ChatCodec, model: Qwen3ForCausalLM, requests_: list[Request], data: st.DataObject
) -> None:
    chosen = data.draw(st.lists(st.sampled_from(requests_), min_size=1, max_size=12))
    together = engine_of(codec, model, max_rows=data.draw(st.sampled_from([3, 128]))).generate(chosen)
    alone = engine_of(codec, model, max_rows=1, prefix_cache_mb=0).generate(chosen)
    assert_same(together, alone)


def test_without_a_constraint_tools_change_nothing_to_the_bit(
    codec: ChatCodec, model: Qwen3ForCausalLM, requests_: list[Request]
) -> None:
    free = [replace(request, sampling=replace(request.sampling, constrained=False)) for request in requests_]
    without = [replace(request, tools=()) for request in free]
    assert engine_of(codec, model).generate(free) == engine_of(codec, model).generate(without)


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
