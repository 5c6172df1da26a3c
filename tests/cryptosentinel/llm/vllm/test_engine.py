"""The engine against a server that answers and fails as vLLM does."""

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cryptosentinel.agents.registry import ROLES
from cryptosentinel.llm.chat_codec import ChatCodec, make_byte_codec
from cryptosentinel.llm.engine import Request, Sampling, StreamingEngine
from cryptosentinel.llm.grammar import grammar
from cryptosentinel.llm.vllm.engine import VllmEngine
from cryptosentinel.protocol.tool_calls import render_call
from cryptosentinel.scheduler import run_all
from cryptosentinel.team import AgentTask
from simulator.errors import RunFailed, UserError
from tests.mock_vllm import MODEL, Fault, MockVllm, serving
from tests.vllm_scenes import CODEC, engine_for, expected, prompt, request, until

TRANSIENT: tuple[Fault, ...] = ("429", "500", "503", "slow", "closed", "cut")
UNUSABLE: tuple[Fault, ...] = (
    "truncated", "page", "no_ids", "no_logprobs", "fewer_logprobs", "null_logprob", "other_prompt", "aborted", "empty",
)  # fmt: skip
SECRET = "sk-very-secret"


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[MockVllm, VllmEngine]]:
    with serving(CODEC) as server:
        engine = engine_for(server)
        yield server, engine
        engine.close()


# Answers.


@given(
    st.lists(
        st.builds(
            Request,
            role=st.sampled_from(["manager", "market_analyst"]),
            ids=st.lists(st.integers(0, CODEC.vocab_size - 1), min_size=1, max_size=40).map(tuple),
            sampling=st.builds(
                Sampling,
                temperature=st.one_of(st.just(0.0), st.floats(0.01, 2.0)),
                max_tokens=st.integers(1, 12),
            ),
            seed=st.integers(0, 2**63 - 1),
        ),
        max_size=6,
    )
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_completions_are_what_the_model_says(shared: tuple[MockVllm, VllmEngine], requests: list[Request]) -> None:
    mock, engine = shared
    answers = engine.generate(requests)
    for wanted, answer in zip(requests, answers, strict=True):
        theirs = expected(mock, wanted)
        assert (answer.ids, answer.finished, answer.failure) == (theirs.ids, theirs.finished, None)
        np.testing.assert_array_equal(answer.logps, theirs.logps)
        usage = answer.usage
        assert (usage.prompt, usage.sampled) == (len(wanted.ids), len(answer.ids))
        assert usage.cached == len(wanted.ids) // 16 * 16 and usage.seconds > 0


def test_a_request_leaves_nothing_to_the_servers_defaults(mock: MockVllm, engine: VllmEngine) -> None:
    assert isinstance(engine, StreamingEngine)
    engine.generate([request(seed=2**63 - 1, temperature=0.7, max_tokens=9)])
    assert mock.bodies == [
        {
            "model": MODEL, "prompt": list(prompt(f"number {2**63 - 1}")), "max_tokens": 9, "temperature": 0.7,
            "seed": 2**63 - 1, "stop_token_ids": [CODEC.end_of_turn], "logprobs": 0, "ignore_eos": True,
            "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
            "frequency_penalty": 0.0, "watermarking": False, "add_special_tokens": False, "return_token_ids": True,
        }
    ]  # fmt: skip


def test_a_constrained_request_carries_the_grammar_of_its_tools(mock: MockVllm, engine: VllmEngine) -> None:
    role = ROLES["trader"]
    mock.constrained = CODEC.encode_assistant(render_call("preview_order", {}))
    wanted = Request(role.key, prompt("Go."), Sampling(1.0, 200, True), 1, role.schemas)
    (answer,) = engine.generate([wanted])
    assert mock.bodies[-1]["structured_outputs"] == {"grammar": grammar(role.schemas, CODEC)}
    assert answer.finished and CODEC.decode_answer(answer.ids) == render_call("preview_order", {})


@pytest.mark.parametrize(
    ("wanted", "error", "message"),
    [
        (Request("manager", (), Sampling(), 1), ValueError, "needs ids"),
        (request(max_tokens=0), ValueError, "max_tokens"),
        (request(constrained=True), ValueError, "tools"),
        (request(temperature=0.001), UserError, "temperature"),
        (request(temperature=2.5), UserError, "temperature"),
        (request(temperature=math.nan), UserError, "temperature"),
        (request(temperature=-1.0), UserError, "temperature"),
        (request(max_tokens=512), UserError, "takes 512"),
    ],
)
def test_requests_that_cannot_be_are_refused(
    shared: tuple[MockVllm, VllmEngine], wanted: Request, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        shared[1].submit(wanted)


# Failures.


@pytest.mark.parametrize("fault", TRANSIENT)
def test_a_passing_failure_changes_nothing(mock: MockVllm, engine: VllmEngine, fault: Fault) -> None:
    mock.script = [fault, fault]
    (answer,) = engine.generate([request()])
    assert answer == expected(mock, request()) and answer.failure is None
    assert len(mock.bodies) == 3


@pytest.mark.parametrize("fault", ["500", "429", "closed"])
def test_a_request_that_fails_for_good_fails_alone(mock: MockVllm, engine: VllmEngine, fault: Fault) -> None:
    mock.script = [fault] * 3
    first = engine.submit(request(1)).result()
    assert first.failure is not None and "after 3 tries" in first.failure and first.ids == ()
    assert engine.submit(request(2)).result() == expected(mock, request(2))


@pytest.mark.parametrize("fault", UNUSABLE)
def test_an_answer_that_cannot_be_used_is_a_failure(mock: MockVllm, engine: VllmEngine, fault: Fault) -> None:
    mock.script = [fault]
    (answer,) = engine.generate([request()])
    assert answer.failure is not None and "vLLM server" in answer.failure
    assert (answer.ids, answer.logps, answer.finished) == ((), (), False)


def test_a_refused_request_is_not_tried_again(mock: MockVllm, engine: VllmEngine) -> None:
    mock.script = ["400"]
    (answer,) = engine.generate([request()])
    assert answer.failure == "the vLLM server refused the request: HTTP 400: not now"
    assert len(mock.bodies) == 1


def test_a_slow_request_does_not_hold_up_the_others(mock: MockVllm, engine: VllmEngine) -> None:
    mock.script = ["slow"]
    slow = engine.submit(request(1))
    until(lambda: len(mock.bodies) == 1)
    assert engine.submit(request(2)).result() == expected(mock, request(2))
    assert not slow.done()
    assert slow.result() == expected(mock, request(1))


def test_requests_run_side_by_side(mock: MockVllm) -> None:
    engine = engine_for(mock, timeout_s=60.0)  # a busy machine may take its time
    mock.latency = 0.25
    engine.generate([request(seed) for seed in range(32)])
    engine.close()
    assert mock.most_at_once >= 16


@pytest.mark.parametrize("how", ["gone", "sick"])
def test_a_server_that_is_gone_ends_the_run(mock: MockVllm, engine: VllmEngine, how: str) -> None:
    mock.gone, mock.healthy = how == "gone", False
    mock.script = ["500"] * 9
    with pytest.raises(RunFailed, match=r"vLLM server at .* is gone after 3 tries .*: start it again"):
        engine.submit(request()).result()


def test_a_server_that_serves_another_model_by_now_ends_the_run(mock: MockVllm, engine: VllmEngine) -> None:
    mock.model = "another"
    with pytest.raises(RunFailed, match="no longer serves 'base' to us"):
        engine.submit(request()).result()


def test_a_server_of_ours_that_ended_is_reported_in_its_words(mock: MockVllm) -> None:
    words: list[str] = []
    engine = engine_for(mock, trouble=lambda: words[0] if words else None)
    words.append("the vLLM server ended with code 9")
    mock.gone, mock.healthy = True, False
    with pytest.raises(RunFailed, match="the vLLM server ended with code 9"):
        engine.submit(request()).result()
    engine.close()


def test_the_end_of_the_server_ends_all_conversations(mock: MockVllm, engine: VllmEngine) -> None:
    def talk(number: int) -> AgentTask[None]:
        for turn in range(50):
            if number == 3 and turn == 3:
                mock.gone, mock.healthy = True, False
            yield [request(100 * number + turn)]

    with pytest.raises(RunFailed, match="is gone"):
        run_all([talk(number) for number in range(8)], engine)


# What the constructor finds out.


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("mode", ["raw", "raw_logits", "processed_logits", "unscaled", "none"])
def test_log_probs_of_another_distribution_are_noticed(mock: MockVllm, mode: Any, flat: bool) -> None:
    mock.flat = flat
    engine_for(mock).close()
    mock.mode = mode
    with pytest.raises(UserError, match="--logprobs-mode processed_logprobs"):
        engine_for(mock)


def other_codec() -> ChatCodec:
    """As many tokens, two of which have changed places."""
    codec = make_byte_codec()
    tokenizer = codec.tokenizer
    definition = json.loads(tokenizer.to_str())
    vocabulary = definition["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    return ChatCodec(type(tokenizer).from_str(json.dumps(definition)))


@pytest.mark.parametrize(
    "change",
    [{"vocab_size": CODEC.vocab_size + 64}, {"vocab_size": CODEC.vocab_size - 1}, {"codec": other_codec()}],
    ids=["more embeddings", "fewer embeddings", "other tokens"],
)
def test_another_model_or_tokenizer_is_refused(change: dict[str, Any]) -> None:
    with serving(**({"codec": CODEC} | change)) as server, pytest.raises(UserError, match="is not the one expected"):
        engine_for(server)


def test_a_name_that_is_not_served_is_refused_and_the_served_names_are_listed(mock: MockVllm) -> None:
    with pytest.raises(UserError, match=f"serves {MODEL}, where 'qwen'"):
        VllmEngine(CODEC, mock.url, "qwen", CODEC.vocab_size)


def test_a_missing_server_is_reported_at_once() -> None:
    with serving(CODEC) as server:
        url = server.url
    with pytest.raises(UserError, match="no vLLM server in health answers"):
        VllmEngine(CODEC, url, MODEL, CODEC.vocab_size)


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://host", "http://", f"http://user:{SECRET}@host:1", "http://h:x"]
)
def test_an_address_that_cannot_be_one_is_refused(url: str) -> None:
    with pytest.raises(UserError) as caught:
        VllmEngine(CODEC, url, MODEL, CODEC.vocab_size)
    assert SECRET not in str(caught.value)


# Keys.


def test_the_key_comes_from_the_environment_and_goes_nowhere_else(
    mock: MockVllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ADMIN_KEY"):
        monkeypatch.setenv(name, f"other-{name}")
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    engine_for(mock).close()
    mock.key = SECRET
    with pytest.raises(UserError, match="refuses the key: put the right one into VLLM_API_KEY"):
        engine_for(mock)
    monkeypatch.setenv("VLLM_API_KEY", SECRET)
    engine = engine_for(mock)
    (answer,) = engine.generate([request()])
    assert answer.failure is None
    sent = [header.get("authorization") for header in mock.headers]
    assert sent[-1] == f"Bearer {SECRET}" and not any("other-" in str(headers) for headers in mock.headers)
    mock.key = f"{SECRET}-changed"
    with pytest.raises(RunFailed, match="the key in VLLM_API_KEY") as caught:
        engine.generate([request()])
    assert SECRET not in str(caught.value)
    engine.close()


def test_a_server_that_repeats_the_key_does_not_get_it_into_a_message(
    mock: MockVllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "not now")  # what the mock says when it refuses
    engine = engine_for(mock)
    mock.script = ["400"]
    (answer,) = engine.generate([request()])
    assert answer.failure is not None and "not now" not in answer.failure and "***" in answer.failure
    engine.close()
