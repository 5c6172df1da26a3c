"""Thoughts of a model that answers here, by our decoder and by the library's: budgets, log-probs, constraints."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM

from cryptosentinel.llm.chat_format import ChatFormat
from cryptosentinel.llm.engine import Completion, Request, Sampling
from cryptosentinel.llm.local import decoding
from cryptosentinel.llm.local.engine import LocalEngine
from cryptosentinel.llm.templates import chat_format
from cryptosentinel.protocol.tool_calls import NoArguments, ToolCall, tool_schema
from scripts.template_table import tokenizer_for

TURN = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
BEGUN = TURN + "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}{# </think> #}"
OPENS = TURN + "{% if add_generation_prompt %}<|assistant|>{% endif %}{# <think> </think> #}"
TOOLS = (tool_schema("look", "", NoArguments),)
BUDGET, ROOM = 24, 9


def codec_of(template: str) -> ChatFormat:
    return chat_format(tokenizer_for(template), Path(), think=True)


def model_of(kind: str, codec: ChatFormat, favoured: int | None = None) -> Any:
    """A random model; `favoured` is a token that it often begins with."""
    torch.manual_seed(3)
    sizes: dict[str, Any] = {
        "vocab_size": codec.vocab_size, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 2, "max_position_embeddings": 512, "tie_word_embeddings": False,
    }  # fmt: skip
    if kind == "llama":
        model: Any = LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=1))
    else:
        model = GPTNeoXForCausalLM(GPTNeoXConfig(**sizes))
    head = model.get_output_embeddings().weight
    with torch.no_grad():
        head.mul_(3.0)
        if favoured is not None:
            state = model.base_model(torch.tensor([codec.start("Be brief.", "Go on.")])).last_hidden_state[0, -1]
            head[favoured] = 6.0 * state / state.square().sum()
    return model.eval()


def requests_for(codec: ChatFormat, count: int = 12, **more: Any) -> list[Request]:
    return [
        Request(
            "manager",
            tuple(codec.start("Be brief.", "Go on." * (seed % 3 + 1))),
            Sampling(**{"temperature": 1.0, "max_tokens": ROOM, "thinking_tokens": BUDGET, **more}),
            seed,
            TOOLS,
        )
        for seed in range(count)
    ]


def engine_of(codec: ChatFormat, model: Any, **options: Any) -> LocalEngine:
    return LocalEngine(codec, model.config, {"manager": model.state_dict()}, **options)


@pytest.mark.parametrize("kind", ["llama", "neox"])
@pytest.mark.parametrize("template", [BEGUN, OPENS], ids=["begun", "opens"])
def test_log_probs_are_those_of_plain_transformers_and_forced_tokens_have_none(kind: str, template: str) -> None:
    codec = codec_of(template)
    assert codec.thoughts is not None
    model = model_of(kind, codec, None if codec.thoughts.begun else codec.thoughts.opening[0])
    asked = requests_for(codec, 24)
    answers = engine_of(codec, model).generate(asked)
    thought = cut = 0
    for request, answer in zip(asked, answers, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([request.ids + answer.ids])).logits[0, len(request.ids) - 1 : -1]
        chosen = torch.log_softmax(logits, -1).gather(1, torch.tensor(answer.ids)[:, None])[:, 0].numpy()
        chosen[answer.thought - answer.forced : answer.thought] = 0.0
        np.testing.assert_allclose(answer.logps, chosen, atol=2e-5)
        assert answer.usage.reasoning == answer.thought <= BUDGET
        assert len(answer.ids) - answer.thought <= ROOM
        if not answer.finished:
            assert len(answer.ids) == answer.thought + ROOM
        thought += answer.thought > 0
        cut += answer.forced > 0
    assert thought > 3 and cut > 0
    if not codec.thoughts.begun:
        assert thought < len(asked)


@pytest.mark.parametrize("kind", ["llama", "neox"])
def test_a_turn_with_a_thought_does_not_depend_on_its_batch(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    codec = codec_of(BEGUN)
    model = model_of(kind, codec)
    asked = requests_for(codec)
    asked[1] = replace(asked[1], sampling=replace(asked[1].sampling, thinking_tokens=0))
    asked[2] = replace(asked[2], sampling=replace(asked[2].sampling, thinking_tokens=60))
    together = engine_of(codec, model).generate(asked)
    alone = engine_of(codec, model, max_rows=1, prefix_cache_mb=0).generate(asked)
    monkeypatch.setattr(decoding, "_FIRST_SLOTS", 3)  # the cache grows under way
    grown = engine_of(codec, model).generate(asked)
    for one, other, third in zip(together, alone, grown, strict=True):
        assert (one.ids, one.thought, one.forced) == (other.ids, other.thought, other.forced)
        assert (one.ids, one.thought, one.forced) == (third.ids, third.thought, third.forced)


@pytest.mark.parametrize("kind", ["llama", "neox"])
@pytest.mark.parametrize("template", [BEGUN, OPENS], ids=["begun", "opens"])
def test_a_constraint_begins_behind_the_thought(kind: str, template: str) -> None:
    codec = codec_of(template)
    assert codec.thoughts is not None
    model = model_of(kind, codec, None if codec.thoughts.begun else codec.thoughts.opening[0])
    asked = requests_for(codec, 10, constrained=True, max_tokens=80)
    thoughts = 0
    for answer in engine_of(codec, model).generate(asked):
        assert answer.finished and not set(answer.ids[: answer.thought]) & codec.ends
        call = codec.parse(codec.decode_answer(answer.ids[answer.thought :]), {"look": NoArguments})
        assert isinstance(call, ToolCall)
        thoughts += answer.thought > 0
    assert thoughts > 0


def test_a_budget_of_nothing_changes_nothing_to_the_bit() -> None:
    plain = chat_format(tokenizer_for(OPENS), Path())
    thinking = codec_of(OPENS)
    model = model_of("llama", plain)
    asked = requests_for(plain, thinking_tokens=0)

    def said(codec: ChatFormat) -> list[Completion]:
        return engine_of(codec, model).generate([replace(one, ids=asked[0].ids) for one in asked])

    assert said(plain) == said(thinking)
