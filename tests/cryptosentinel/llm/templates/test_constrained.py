"""Constrained decoding in the syntaxes of the families: what is right gets through, and what gets through parses."""

import random
from typing import Annotated, Literal

import pytest
import torch
from pydantic import Field

from cryptosentinel.llm.chat_format import ChatFormat
from cryptosentinel.llm.grammar import Grammars, restrict
from cryptosentinel.llm.templates import described_format
from cryptosentinel.protocol.tool_calls import Arguments, NoArguments, ToolCall, render_call, tool_schema
from scripts.template_table import PAGE, shipped_templates, tokenizer_for

TEMPLATES = shipped_templates()
pytestmark = pytest.mark.skipif(not TEMPLATES, reason="TRL, which ships the templates, is not installed")
KINDS = ["qwen3_6", "glm4moe", "llama3_1", "gptoss", "deepseekv3", "cohere2", "qwen3_training"]


class Order(Arguments):
    side: Literal["long", "short"]
    size: float = Field(ge=0, le=1)
    count: int = Field(default=1, ge=1, le=9)
    sizes: list[Annotated[float, Field(ge=0, le=1)]] = Field(default=[], max_length=3)


TYPES: dict[str, type[Arguments]] = {"submit_order": Order, "get_risk": NoArguments}
TOOLS = tuple(tool_schema(name, "", kind) for name, kind in TYPES.items())


def codec_of(name: str) -> ChatFormat:
    return described_format(tokenizer_for(TEMPLATES[name]), PAGE.parent)[0]


@pytest.mark.parametrize("name", KINDS)
def test_what_is_right_gets_through(name: str) -> None:
    codec = codec_of(name)
    grammars = Grammars(codec, codec.vocab_size)
    for tool, arguments in (("submit_order", {"side": "short", "size": 0.25}), ("get_risk", {})):
        ids = codec.encode_assistant(render_call(tool, arguments))
        matcher = grammars.begin(TOOLS)
        assert all(matcher.consume_token(index) for index in ids), codec.decode(ids)
        assert matcher.is_stopped()


@pytest.mark.parametrize("name", KINDS)
def test_what_gets_through_parses(name: str) -> None:
    codec = codec_of(name)
    grammars = Grammars(codec, codec.vocab_size)
    rng = random.Random(name)
    ended = 0
    for _ in range(12):
        matcher, ids = grammars.begin(TOOLS), list[int]()
        while len(ids) < 400 and (not ids or ids[-1] != codec.end_of_turn):
            allowed = restrict(torch.zeros(1, codec.vocab_size), [matcher])[0]
            ids.append(rng.choice(torch.nonzero(allowed == 0).flatten().tolist()))
            assert matcher.consume_token(ids[-1])
        if ids[-1] == codec.end_of_turn:
            ended += 1
            assert isinstance(codec.parse(codec.decode_answer(ids), TYPES), ToolCall), codec.decode(ids)
    assert ended > 3
