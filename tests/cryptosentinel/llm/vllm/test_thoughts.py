"""Thoughts of a model on vLLM: asked for in parts, each with its own room, as the local engine gives them."""

from collections.abc import Iterator

import numpy as np
import pytest

from cryptosentinel.llm.chat_codec import make_byte_codec
from cryptosentinel.llm.engine import Completion, Request, Sampling
from cryptosentinel.llm.vllm.engine import VllmEngine
from cryptosentinel.protocol.tool_calls import NoArguments, render_call, tool_schema
from tests.mock_vllm import MODEL, Logits, MockVllm, serving_mock

CODEC = make_byte_codec(think=True)
assert CODEC.thoughts is not None
OPEN, CLOSE = CODEC.thoughts.opening[0], CODEC.thoughts.closing
TOOLS = (tool_schema("look", "", NoArguments),)
BUDGET, ROOM = 20, 12


class Thinker(MockVllm):
    """It mostly opens a thought first, and now and then closes it."""

    def logits(self, model: str, ids: list[int]) -> Logits:
        logits = super().logits(model, ids)
        begins = ids[-1] == CODEC.start("", "")[-1]
        logits[OPEN] = 7.0 if begins else -50.0
        logits[CLOSE] = 4.0 if OPEN in ids else -50.0
        return logits


@pytest.fixture
def mock() -> Iterator[Thinker]:
    thinker = Thinker(CODEC)
    with serving_mock(thinker):
        yield thinker


def asked(seed: int, **more: object) -> Request:
    sampling = Sampling(max_tokens=ROOM, thinking_tokens=BUDGET, **more)  # type: ignore[arg-type]  # of a test
    return Request("manager", tuple(CODEC.start("Be brief.", f"number {seed}")), sampling, seed, TOOLS)


def engine_at(mock: MockVllm) -> VllmEngine:
    return VllmEngine(CODEC, mock.url, MODEL, CODEC.vocab_size, timeout_s=5.0, retries=1)


def logps_of(mock: Thinker, request: Request, answer: Completion) -> list[float]:
    """Log-probs of an answer by the made-up model, 0 where the engine wrote."""
    told = []
    for place, token in enumerate(answer.ids):
        forced = answer.thought - answer.forced <= place < answer.thought
        body = {"model": MODEL, "temperature": 1.0}
        told.append(0.0 if forced else float(mock.logps(body, [*request.ids, *answer.ids[:place]])[0][token]))
    return told


def test_a_thought_has_its_budget_and_the_answer_all_of_its_own(mock: Thinker) -> None:
    engine = engine_at(mock)
    requests = [asked(seed) for seed in range(30)]
    answers = engine.generate(requests)
    for request, answer in zip(requests, answers, strict=True):
        assert answer.failure is None and answer.thought <= BUDGET
        spoken = answer.ids[answer.thought :]
        assert len(spoken) == ROOM or (answer.finished and len(spoken) <= ROOM)
        assert answer.usage.reasoning == answer.thought and answer.usage.prompt == len(request.ids)
        np.testing.assert_allclose(answer.logps, logps_of(mock, request, answer), atol=1e-9)
        if answer.forced:
            assert answer.ids[answer.thought - answer.forced : answer.thought] == CODEC.thoughts.cut_off  # type: ignore[union-attr]  # as above
    assert sum(answer.thought > 0 for answer in answers) > 15
    assert any(answer.forced for answer in answers)
    assert any(answer.thought and not answer.forced for answer in answers)
    assert [answer.ids for answer in engine.generate(requests)] == [answer.ids for answer in answers]
    engine.close()


def test_a_grammar_holds_the_answer_alone(mock: Thinker) -> None:
    call = CODEC.encode_assistant(render_call("look", {}))
    engine = engine_at(mock)
    mock.bodies.clear()
    mock.constrained = call
    (answer,) = engine.generate([asked(1, constrained=True)])
    # The server's grammar lets no thought open here, so the whole is asked for again, and begins with the call.
    assert (answer.ids, answer.thought, answer.finished) == (tuple(call[:ROOM]), 0, False)
    first, second = mock.bodies
    assert f"<[{OPEN}]>" in first["structured_outputs"]["grammar"] and first["max_tokens"] == 1
    assert f"<[{OPEN}]>" not in second["structured_outputs"]["grammar"] and second["max_tokens"] == ROOM
    mock.constrained = [OPEN]
    mock.bodies.clear()
    engine.generate([asked(1, constrained=True)])
    thought = next(body for body in mock.bodies if CLOSE in body["stop_token_ids"])
    assert "structured_outputs" not in thought and set(thought["logit_bias"]) == {str(CODEC.end_of_turn)}
    engine.close()
