"""Newer weights in the middle of an answer: each token is of the version that the completion names for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen3Config, Qwen3ForCausalLM

from cryptosentinel.conversation.transcript import Conversation
from cryptosentinel.llm.chat_codec import ChatCodec
from cryptosentinel.llm.engine import Completion, Request, Sampling
from cryptosentinel.llm.local.engine import LocalEngine
from cryptosentinel.llm.local.shared_prefix import WORTH
from cryptosentinel.llm.nano import nano_config

ROLE = "manager"
VERSIONS = 4


@pytest.fixture(scope="module")
def models(codec: ChatCodec, make_model: Callable[[Qwen3Config], Qwen3ForCausalLM]) -> list[Qwen3ForCausalLM]:
    """One for each version, as far from each other as weights that were trained meanwhile never are."""
    made = []
    for seed in range(VERSIONS):
        model = make_model(nano_config(codec.vocab_size, hidden_size=32, layers=2, intermediate_size=48))
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
        made.append(model)
    return made


def versions_of(answer: Completion) -> list[int]:
    """The number of the version that sampled each id."""
    names = dict(answer.versions)
    found, now = [], -1
    for place in range(len(answer.ids)):
        now = int(names.get(place, now))
        found.append(now)
    return found


def recomputed(
    models: list[Qwen3ForCausalLM], request: Request, answer: Completion, versions: list[int]
) -> list[float]:
    """The log-prob of each id under a version, by Hugging Face's model in one pass over the whole conversation."""
    found = []
    with torch.no_grad():
        ids = torch.tensor([request.ids + answer.ids])
        tables = {
            version: torch.log_softmax(
                models[version](ids).logits[0, len(request.ids) - 1 : -1] / request.sampling.temperature, -1
            )
            for version in set(versions)
        }
    for place, (token, version) in enumerate(zip(answer.ids, versions, strict=True)):
        found.append(float(tables[version][place, token]))
    return found


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    calls=st.lists(st.integers(1, 9), min_size=VERSIONS - 1, max_size=VERSIONS - 1),
    rows=st.integers(1, 4),
    cached=st.sampled_from([0, 16]),
    alike=st.booleans(),
)
@settings(max_examples=12, deadline=None)
def test_old_log_probs_are_those_of_the_version_that_sampled_each_token(
    codec: ChatCodec,
    models: list[Qwen3ForCausalLM],
    lengths: list[int],
    calls: list[int],
    rows: int,
    cached: int,
    alike: bool,
) -> None:
    """Of prompts that are `alike` each is the beginning of the longer ones, and beginnings are kept once."""
    engine = LocalEngine(
        codec, models[0].config, {ROLE: models[0].state_dict()}, version="0", max_rows=rows, prefix_cache_mb=cached
    )
    swaps = iter(calls)
    left, newest = next(swaps), 0

    def take() -> None:
        nonlocal left, newest
        left -= 1
        if left == 0 and newest + 1 < VERSIONS:
            newest += 1
            engine.set_weights(ROLE, models[newest].state_dict(), str(newest))
            left = next(swaps, 0)

    engine.before_tokens = take
    generator = torch.Generator().manual_seed(len(lengths))
    texts = torch.randint(0, 250, (len(lengths), 40), generator=generator).tolist()
    requests = [
        Request(ROLE, tuple(texts[0 if alike else number][:length]), Sampling(1.0, 60), number)
        for number, length in enumerate(lengths)
    ]
    with pytest.MonkeyPatch.context() as patch:
        if alike:
            patch.setitem(WORTH, "cpu", 0)
        answers = engine.generate(requests)
    for request, answer in zip(requests, answers, strict=True):
        versions = versions_of(answer)
        assert versions == sorted(versions) and len(versions) == len(answer.ids)
        assert answer.logps == pytest.approx(recomputed(models, request, answer, versions), abs=1e-4)


def test_the_version_matters_and_a_later_turn_goes_on_with_the_newest(
    codec: ChatCodec, models: list[Qwen3ForCausalLM]
) -> None:
    engine = LocalEngine(codec, models[0].config, {ROLE: models[0].state_dict()}, version="0")
    calls = 0

    def take() -> None:
        nonlocal calls
        calls += 1
        if calls in (3, 6):
            engine.set_weights(ROLE, models[calls // 3].state_dict(), str(calls // 3))

    engine.before_tokens = take
    conversation = Conversation(codec, ROLE, 0, "0", "Be brief.", "Go on.", ())
    answers = []
    for seed in range(4):
        request = Request(ROLE, tuple(conversation.ids), Sampling(1.0, 40), seed)
        (answer,) = engine.generate([request])
        assert answer.logps == pytest.approx(recomputed(models, request, answer, versions_of(answer)), abs=1e-4)
        answers.append((request, answer))
        conversation.add_completion(answer)
        conversation.add_tool_response({"said": "yes"})
    request, answer = next(pair for pair in answers if len(pair[1].versions) > 1)
    first = recomputed(models, request, answer, [int(answer.versions[0][1])] * len(answer.ids))
    assert max(abs(ours - theirs) for ours, theirs in zip(answer.logps, first, strict=True)) > 0.1
    transcript = conversation.finish({}, None, None)
    names = [name for _, name in transcript.versions]
    assert transcript.policy_version == "0" and names == ["0", "1", "2"]
    for place, name in transcript.versions:
        assert transcript.mask[place], f"version {name} begins at a token that nobody sampled"


def test_one_version_throughout_says_so(codec: ChatCodec, models: list[Qwen3ForCausalLM]) -> None:
    engine = LocalEngine(codec, models[0].config, {ROLE: models[0].state_dict()}, version="v7")
    conversation = Conversation(codec, ROLE, 0, "v7", "Be brief.", "Go on.", ())
    (answer,) = engine.generate([Request(ROLE, tuple(conversation.ids), Sampling(1.0, 10), 1)])
    conversation.add_completion(answer)
    assert answer.versions == ((0, "v7"),)
    transcript = conversation.finish({}, None, None)
    assert (transcript.policy_version, transcript.versions) == ("v7", ())
