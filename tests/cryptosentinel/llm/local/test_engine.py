"""Our decoder against Hugging Face's, and the promise that a completion depends on its request alone."""

import math
from collections.abc import Callable, Sequence
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
from cryptosentinel.llm.local.llama import LlamaDecoder, Unread
from cryptosentinel.llm.nano import nano_config
from cryptosentinel.protocol.tool_calls import Arguments, NoArguments, tool_schema
from simulator.errors import UserError


def random_ids(seed: int, length: int, vocab: int = 300) -> tuple[int, ...]:
    return tuple(torch.randint(0, vocab, (length,), generator=torch.Generator().manual_seed(seed)).tolist())


def engine_of(codec: ChatCodec, model: Qwen3ForCausalLM, **options: Any) -> LocalEngine:
    return LocalEngine(codec, model.config, {"manager": model.state_dict()}, **options)


def assert_same(ours: Completion, theirs: Completion) -> None:
    assert ours.ids == theirs.ids
    assert ours.finished == theirs.finished
    np.testing.assert_allclose(ours.logps, theirs.logps, rtol=0, atol=1e-5)


class Size(Arguments):
    side: str = Field(max_length=3)
    exposure: float = Field(ge=0, le=1)


TYPES: dict[str, type[Arguments]] = {"look": NoArguments, "submit_size": Size}
TOOLS = tuple(tool_schema(name, "", arguments) for name, arguments in TYPES.items())


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


@pytest.fixture(scope="module")
def mixed(codec: ChatCodec) -> list[Request]:
    """Prompts of many lengths, some equal, some with a common beginning; greedy and sampled; short and long answers;
    free ones and ones held to all tools or to one."""
    prompts = [random_ids(seed, length) for seed, length in enumerate((1, 5, 17, 17, 33, 40, 64))]
    prompts += [prompts[1], prompts[1], prompts[4][:30] + random_ids(99, 3), (*codec.start("Be brief.", "Go on."),)]
    free = [(Sampling(0.0, 24), TOOLS), (Sampling(1.0, 30), TOOLS), (Sampling(1.7, 7), ())]
    held = [(Sampling(0.0, 20, True), TOOLS), (Sampling(1.0, 60, True), TOOLS[:1]), (Sampling(1.6, 60, True), TOOLS)]
    return [
        Request("manager", ids, sampling, 17 * index + offset, tools)
        for index, ids in enumerate(prompts)
        for offset, (sampling, tools) in enumerate([*free, *held] if index % 2 else free)
    ]


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"heads": 4, "kv_heads": 4, "head_dim": 16},
        {"heads": 6, "kv_heads": 1, "head_dim": 8, "hidden_size": 40},
        {"layers": 1},
    ],
)
@pytest.mark.parametrize("tied", [True, False])
def test_greedy_equals_generate(
    codec: ChatCodec, make_model: Callable[[Qwen3Config], Qwen3ForCausalLM], shape: dict[str, int], tied: bool
) -> None:
    config = nano_config(codec.vocab_size, **{"hidden_size": 64, "layers": 2, "intermediate_size": 96, **shape})
    config.tie_word_embeddings = tied
    model = make_model(config)
    prompts = [random_ids(seed, length) for seed, length in enumerate((3, 31, 12, 31, 1))]
    answers = engine_of(codec, model).generate([Request("manager", ids, Sampling(0.0, 20), 0) for ids in prompts])
    hugging_face: Any = model  # its stubs give `generate` no usable type
    for ids, answer in zip(prompts, answers, strict=True):
        theirs = hugging_face.generate(
            torch.tensor([ids]), do_sample=False, max_new_tokens=20, eos_token_id=codec.end_of_turn, pad_token_id=0
        )
        assert list(answer.ids) == theirs[0, len(ids) :].tolist()


def test_log_probs_equal_a_fresh_forward_pass(codec: ChatCodec, model: Qwen3ForCausalLM, mixed: list[Request]) -> None:
    answers = engine_of(codec, model).generate(mixed)
    assert any(answer.finished for answer in answers) and not all(answer.finished for answer in answers)
    for request, answer in zip(mixed, answers, strict=True):
        logps = fresh_logps(codec, model, request, answer)
        chosen = logps.gather(1, torch.tensor(answer.ids)[:, None])[:, 0]
        np.testing.assert_allclose(answer.logps, chosen.numpy(), rtol=0, atol=1e-5)
        if request.sampling.temperature == 0:
            assert list(answer.ids) == logps.argmax(dim=-1).tolist()
        assert len(answer.ids) == len(answer.logps) <= request.sampling.max_tokens
        assert codec.end_of_turn not in answer.ids[:-1]
        assert answer.finished == (answer.ids[-1] == codec.end_of_turn)
        assert answer.finished or len(answer.ids) == request.sampling.max_tokens


@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_a_completion_does_not_depend_on_the_batch(
    codec: ChatCodec, model: Qwen3ForCausalLM, mixed: list[Request], data: st.DataObject
) -> None:
    alone = engine_of(codec, model, max_rows=1, prefix_cache_mb=0)
    chosen = data.draw(st.lists(st.sampled_from(mixed), min_size=1, max_size=20))
    together = engine_of(codec, model, max_rows=data.draw(st.sampled_from([3, 128]))).generate(chosen)
    for request, answer in zip(chosen, together, strict=True):
        assert_same(answer, alone.generate([request])[0])


def count_read_tokens(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of tokens in each part of a prefill from now on."""
    read: list[int] = []
    prefill = LlamaDecoder.prefill

    def counting(self: LlamaDecoder, parts: Sequence[Unread]) -> list[torch.Tensor]:
        read.extend(part.ids.numel() for part in parts)
        return prefill(self, parts)

    monkeypatch.setattr(LlamaDecoder, "prefill", counting)
    return read


def test_equal_prompts_are_read_once(
    codec: ChatCodec, model: Qwen3ForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = count_read_tokens(monkeypatch)
    prompt, other = random_ids(1, 40), random_ids(2, 25)
    requests = [Request("manager", ids, Sampling(1.0, 5), seed) for seed in range(8) for ids in (prompt, other)]
    engine_of(codec, model).generate(requests)
    assert sorted(read) == [25, 40]


def test_what_all_prompts_begin_with_is_read_once(
    codec: ChatCodec, model: Qwen3ForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = random_ids(1, 90)
    requests = [Request("manager", begin + random_ids(2 + seed, 6 + seed), Sampling(1.0, 5), seed) for seed in range(5)]
    alone = engine_of(codec, model, prefix_cache_mb=0).generate(requests)
    read = count_read_tokens(monkeypatch)
    ours = engine_of(codec, model).generate(requests)
    assert sum(read) == 90 + sum(6 + seed for seed in range(5))
    # It counts as read for the first of them.
    assert [answer.usage.cached for answer in ours if answer.usage] == [0, 90, 90, 90, 90]
    for answer, other in zip(ours, alone, strict=True):
        assert_same(answer, other)


def test_the_next_turn_reads_only_what_is_new(
    codec: ChatCodec, model: Qwen3ForCausalLM, mixed: list[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(codec, model)
    answers = engine.generate(mixed)
    following = [
        replace(request, ids=request.ids + answer.ids + tuple(codec.continue_after(answer.finished, f"result {index}")))
        for index, (request, answer) in enumerate(zip(mixed, answers, strict=True))
    ]
    without_cache = engine_of(codec, model, prefix_cache_mb=0).generate(following)
    read = count_read_tokens(monkeypatch)
    for ours, theirs in zip(engine.generate(following), without_cache, strict=True):
        assert_same(ours, theirs)
    # The last sampled token never went through the model; all before it did.
    new = [1 + len(b.ids) - len(a.ids) - len(c.ids) for a, b, c in zip(mixed, following, answers, strict=True)]
    assert sum(read) <= sum(new)


def test_new_weights_answer_alone_and_empty_every_cache(
    codec: ChatCodec, model: Qwen3ForCausalLM, mixed: list[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = {name: weight * 1.1 for name, weight in model.state_dict().items()}
    states = {"manager": model.state_dict(), "trader": model.state_dict()}
    engine = LocalEngine(codec, model.config, states, version="0")
    both = [replace(request, role=role) for request in mixed for role in ("trader", "manager")]
    before = engine.generate(both)
    engine.set_weights("trader", changed, "1")
    assert (engine.policy_version("trader"), engine.policy_version("manager")) == ("1", "0")
    read = count_read_tokens(monkeypatch)
    after = engine.generate(both)
    assert sum(read) == 2 * sum(len(ids) for ids in {request.ids for request in mixed})
    fresh = LocalEngine(codec, model.config, {"trader": changed, "manager": model.state_dict()}).generate(both)
    assert after == fresh
    assert after[1::2] == before[1::2]
    assert after[::2] != before[::2]


def test_an_engine_that_forgot_equals_a_new_one_to_the_bit(
    codec: ChatCodec, model: Qwen3ForCausalLM, mixed: list[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(codec, model)
    engine.generate([replace(request, ids=request.ids[:9], seed=1) for request in mixed])
    engine.forget()
    read = count_read_tokens(monkeypatch)
    answers = engine.generate(mixed)
    assert sum(read) == sum(len(ids) for ids in {request.ids for request in mixed})
    assert answers == engine_of(codec, model).generate(mixed)


def test_later_changes_of_the_given_state_do_not_matter(codec: ChatCodec, model: Qwen3ForCausalLM) -> None:
    state = {name: weight.clone() for name, weight in model.state_dict().items()}
    engine = LocalEngine(codec, model.config, {"manager": state})
    request = Request("manager", random_ids(5, 20), Sampling(1.0, 10), 1)
    before = engine.generate([request])
    for weight in state.values():
        weight.zero_()
    engine.forget()
    assert engine.generate([request]) == before


def test_first_tokens_follow_the_softmax(codec: ChatCodec, model: Qwen3ForCausalLM) -> None:
    count, bins = 4000, 16
    prompt = random_ids(3, 12)
    requests = [Request("manager", prompt, Sampling(1.3, 1), seed) for seed in range(count)]
    answers = engine_of(codec, model).generate(requests)
    probabilities = fresh_logps(codec, model, requests[0], answers[0])[0].exp().double().numpy()
    # Bins of neighbouring tokens with about equal mass, so that each expects enough draws.
    bin_of = np.minimum((probabilities.cumsum() * bins).astype(int), bins - 1)
    expected = count * np.bincount(bin_of, probabilities, bins)
    observed = np.bincount(bin_of[[answer.ids[0] for answer in answers]], minlength=bins)
    used = expected > 0
    chi_square = ((observed - expected)[used] ** 2 / expected[used]).sum()
    assert used.sum() > 5
    assert chi_square < 44.3  # 15 degrees of freedom exceed it once in 10,000


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        (Request("nobody", (1,), Sampling(), 0), KeyError, "nobody"),
        (Request("manager", (), Sampling(), 0), ValueError, "0 ids"),
        (Request("manager", (1,), Sampling(max_tokens=0), 0), ValueError, "max_tokens"),
        (Request("manager", (1,), Sampling(temperature=-1.0), 0), ValueError, "temperature"),
        (Request("manager", (1,) * 500, Sampling(max_tokens=13), 0), UserError, "513 tokens.*512 positions"),
    ],
)
def test_impossible_requests_are_refused(
    codec: ChatCodec, model: Qwen3ForCausalLM, request_: Request, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        engine_of(codec, model).generate([request_])
    (answer,) = engine_of(codec, model).generate([Request("manager", (1,) * 500, Sampling(max_tokens=12), 0)])
    assert answer.ids, "the last position can be used"


def spoilt(model: Qwen3ForCausalLM, name: str, weight: torch.Tensor | None) -> dict[str, torch.Tensor]:
    state = dict(model.state_dict())
    del state[name]
    return state if weight is None else state | {name: weight}


def test_weights_of_another_model_are_refused(codec: ChatCodec, model: Qwen3ForCausalLM) -> None:
    engine = engine_of(codec, model)
    name = "model.layers.1.mlp.up_proj.weight"
    for state, message in (
        (spoilt(model, name, None), f"{name} is missing"),
        (spoilt(model, name, torch.zeros(3, 3)), rf"{name} is \(3, 3\)"),
        (spoilt(model, name, torch.full((96, 64), math.nan)), "not finite"),
        (model.state_dict() | {"base_model.lora_A": torch.zeros(1)}, "base_model.lora_A is unknown"),
    ):
        with pytest.raises(UserError, match=message):
            engine.set_weights("manager", state, "1")
    assert engine.policy_version("manager") == "base"


@pytest.mark.parametrize(
    ("change", "message"),
    [({"attention_bias": True}, "q_proj.bias is missing"), ({"vocab_size": 100}, "tokenizer has")],
)
def test_weights_of_another_architecture_are_refused(
    codec: ChatCodec, model: Qwen3ForCausalLM, change: dict[str, Any], message: str
) -> None:
    config = Qwen3Config(**(model.config.to_dict() | change))
    with pytest.raises(UserError, match=message):
        LocalEngine(codec, config, {"manager": model.state_dict()})
