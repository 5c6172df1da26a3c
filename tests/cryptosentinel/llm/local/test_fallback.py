"""Decoding by the library: a user is told, and constraints, seeds and log-probs mean what they mean in our decoder."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from transformers import Qwen3ForCausalLM

from cryptosentinel.llm.chat_codec import ChatCodec
from cryptosentinel.llm.engine import Request, Sampling
from cryptosentinel.llm.local import engine as engines
from cryptosentinel.llm.local.engine import LocalEngine
from cryptosentinel.protocol.tool_calls import ToolCall, parse
from tests.cryptosentinel.llm.local.test_engine import TOOLS, TYPES


def test_a_model_that_the_library_decodes_is_named_and_held_to_its_tools(
    codec: ChatCodec, model: Qwen3ForCausalLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    requests = [
        Request("manager", tuple(codec.start("Be brief.", "Go on." * length)), sampling, seed, tools)
        for seed, (length, sampling, tools) in enumerate(
            (length, Sampling(temperature, most, constrained), tools)
            for length in (1, 4)
            for temperature, most in ((0.0, 20), (1.2, 60))
            for constrained, tools in ((True, TOOLS), (True, TOOLS[:1]), (False, TOOLS))
        )
    ]
    state = {"manager": model.state_dict()}
    own = LocalEngine(codec, model.config, state)
    assert own.slow is None and not caplog.records, "nothing is said of a model that our decoder computes"
    monkeypatch.setattr(engines, "why_not", lambda config: "a test says so")
    with caplog.at_level(logging.WARNING):
        library = LocalEngine(codec, model.config, state)
    (line,) = caplog.messages
    assert "decoded by transformers itself" in line and line.endswith("a test says so") and "\n" not in line
    whole = 0
    for request, ours, theirs in zip(requests, own.generate(requests), library.generate(requests), strict=True):
        assert theirs.ids == ours.ids and theirs.finished == ours.finished
        np.testing.assert_allclose(theirs.logps, ours.logps, rtol=0, atol=2e-5)
        if request.sampling.constrained and theirs.finished:
            whole += 1
            call = parse(codec.decode_answer(theirs.ids), TYPES)
            assert isinstance(call, ToolCall) and (request.tools == TOOLS or call.name == "look")
    assert whole > 2
