"""Conversations as messages and back: the same ids, and a mask on the assistant's own tokens only."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.builders.loaded_team import team_settings
from backend.training.curriculum.queries import QueryPool
from backend.training.sft.conversations import encode, messages_of
from backend.training.sft.warm_start import transcribe
from cryptosentinel.agents.registry import ROLES
from cryptosentinel.conversation.transcript import Conversation, Transcript
from cryptosentinel.llm.chat_codec import TURN_END, ChatCodec, make_byte_codec
from cryptosentinel.llm.engine import Completion
from cryptosentinel.llm.nano import load_model
from cryptosentinel.llm.templates.choose import chat_format, described_format
from cryptosentinel.protocol.tool_calls import render_call, render_thought
from scripts.template_table import shipped_templates, tokenizer_for
from simulator.errors import DataError
from tests.examples import tried
from tests.small_world import HORIZON, TRAIN, small_config, small_market

TEXT = st.one_of(st.text(max_size=20), st.sampled_from(["<|im_end|>", "<tool_call>", "</tool_response>\n", "\n", "é€"]))

TEMPLATES = shipped_templates()


@cache
def codec_of(nano: Path | None, empty_think: bool) -> ChatCodec:
    return make_byte_codec(empty_think=empty_think) if nano is None else ChatCodec(load_model(nano)[1])


def live(codec: ChatCodec, user: str, turns: list[tuple[str, str]], tools: list[dict[str, Any]] | None) -> Transcript:
    """A conversation as the team would hold it: what the assistant says, what a tool answers, a last answer."""
    talk = Conversation(codec, "trader", 0, "v", "Be brief.", user, tools or ())
    for said, heard in turns:
        ids = tuple(codec.encode_assistant(said))
        talk.add_completion(Completion(ids, (0.0,) * len(ids), True))
        talk.add_tool_response({"text": heard})
    ids = tuple(codec.encode_assistant("done"))
    talk.add_completion(Completion(ids, (0.0,) * len(ids), True))
    return talk.finish({}, {}, None)


@tried(80)
@given(
    user=TEXT,
    turns=st.lists(st.tuples(TEXT, TEXT), max_size=3),
    schemas=st.booleans(),
    kind=st.sampled_from(["byte", "think", "nano"]),
)
def test_any_conversation_comes_back_to_the_token(
    nano: Path, user: str, turns: list[tuple[str, str]], schemas: bool, kind: str
) -> None:
    codec = codec_of(nano if kind == "nano" else None, kind == "think")
    tools = list(ROLES["trader"].schemas) if schemas else None
    one = live(codec, user, turns, tools)
    ids, mask = encode(codec, messages_of(codec, one), tools)
    assert ids.tolist() == list(one.ids)
    assert mask.tolist() == list(one.mask)


@pytest.mark.skipif(not TEMPLATES, reason="TRL, which ships the templates, is not installed")
@pytest.mark.parametrize("name", ["qwen3_6", "llama3_1", "gptoss", "cohere2", "gemma", "lfm2_v2"])
def test_it_does_in_the_chat_format_of_any_template(name: str) -> None:
    codec, _ = described_format(tokenizer_for(TEMPLATES[name]), Path())
    config = small_config().team.model_copy(update={"prompts": "full"})
    said = transcribe(codec, [QueryPool(small_market(), *TRAIN, HORIZON)], team_settings(config, 1.0), 3, 1.0, 1)
    assert {one.role for one in said} == set(ROLES)
    for one in said:
        assert one.valid, one.reason
        ids, mask = encode(codec, messages_of(codec, one), [dict(tool) for tool in one.tools])
        assert ids.tolist() == list(one.ids)
        assert mask.tolist() == list(one.mask)


def test_the_mask_is_on_the_assistants_tokens_and_not_one_further() -> None:
    codec = make_byte_codec()
    messages = [
        {"role": "system", "content": "s"}, {"role": "user", "content": "u"},
        {"role": "assistant", "content": "first"}, {"role": "tool", "content": "t"},
        {"role": "assistant", "content": "second"},
    ]  # fmt: skip
    ids, mask = encode(codec, messages, None)
    assert codec.decode(ids[mask].tolist()) == f"first{TURN_END}second{TURN_END}"
    edges = np.flatnonzero(np.diff(mask.astype(int)) == 1)
    assert codec.decode(ids[: edges[0] + 1].tolist()).endswith("<|im_start|>assistant\n")


def test_the_tokenizers_own_template_reads_the_messages_alike(nano: Path) -> None:
    tokenizer: Any = load_model(nano)[1]
    codec = ChatCodec(tokenizer)
    pool = QueryPool(small_market(), *TRAIN, HORIZON)
    for one in transcribe(codec, [pool], team_settings(small_config().team, 1.0), 6, 0.5, 2):
        theirs = tokenizer.apply_chat_template(messages_of(codec, one), tokenize=True, return_dict=False)
        assert theirs == [*one.ids, *codec.encode_data("\n")]


@pytest.mark.parametrize(
    "roles",
    [
        [],
        ["system", "user"],
        ["user", "assistant", "tool"],
        ["system", "user", "assistant", "tool"],
        ["system", "user", "assistant", "assistant"],
        ["system", "user", "tool", "assistant"],
        ["system", "user", "assistant", "user", "assistant"],
    ],
)
def test_turns_in_another_order_are_refused(roles: list[str]) -> None:
    with pytest.raises(DataError, match="must begin with system and user"):
        encode(make_byte_codec(), [{"role": role, "content": "x"} for role in roles], None)


TURN = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
ASKED = TURN + "{% if add_generation_prompt %}<|assistant|>{% endif %}{# <think> </think> #}"
BEGUN = TURN + "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}{# </think> #}"
THINKERS = {
    "kept": make_byte_codec(think=True),
    "dropped": chat_format(tokenizer_for(ASKED), Path(), think=True),
    "begun, dropped": chat_format(tokenizer_for(BEGUN), Path(), think=True),
}


@pytest.mark.parametrize("name", THINKERS)
def test_thoughts_come_back_in_the_branches_that_they_were_said_in(name: str) -> None:
    """Each of the assistant's tokens is learnt once, as in the live conversation, thoughts too."""
    codec = THINKERS[name]
    thoughts = codec.thoughts
    assert thoughts is not None
    talk = Conversation(codec, "trader", 0, "v", "Be brief.", "Look.", ())
    for number, thought in enumerate(("first", "", "last")):
        ids = tuple(codec.encode_assistant(render_thought(thought, render_call("look", {"size": number}))))
        length = ids.index(thoughts.closing) + 1 if thoughts.closing in ids else 0
        talk.add_completion(Completion(ids, (0.0,) * len(ids), True, thought=length))
        if number < 2:
            talk.add_tool_response({"text": number}, tool="look")
    one = talk.finish({}, {}, None)
    learned, mask = encode(codec, messages_of(codec, one), None)
    assert learned.tolist() == list(one.ids) and mask.tolist() == list(one.mask)
