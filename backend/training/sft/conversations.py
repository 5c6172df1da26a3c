"""Finished conversations as chat messages, and back to the token ids and the loss mask that they had when live.

Messages are what other tools call the chat format: roles system, user, assistant and tool. An assistant's content is
its tool call as the protocol writes it, so that nothing has to be rendered to be learnt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from backend.training.sft.sft_trainer import Example
from cryptosentinel.conversation.transcript import Transcript
from cryptosentinel.llm.chat_format import ChatFormat, ChatMessages
from cryptosentinel.protocol.tool_calls import MalformedCall, read_call, render_thought, split_thought
from simulator.errors import DataError

_SCHEMAS = "\n\n# Tools\n\nYou may call one or more functions"  # where the chat format goes on with the tools' schemas


def messages_of(codec: ChatFormat, transcript: Transcript) -> ChatMessages:
    """The turns of a valid conversation. Schemas of tools are left out of the system turn's text; see `encode`."""
    first, *turns = codec.messages(transcript.ids)
    thoughts = iter(transcript.thoughts)
    for turn in turns:
        thought = next(thoughts, "") if turn["role"] == "assistant" else ""
        if thought and not split_thought(turn["content"])[0]:
            turn["content"] = render_thought(thought, turn["content"])
    return [{"role": "system", "content": first["content"].partition(_SCHEMAS)[0]}, *turns]


def encode(
    codec: ChatFormat,
    messages: Sequence[Mapping[str, str]],
    tools: list[dict[str, Any]] | None,
) -> Example:
    """Token ids (L,) and loss mask (L,) of a conversation: the mask is True at the assistant's own tokens, its end of
    turn included, and nowhere else.

    `tools` are the schemas that the system turn lists. For what the scripted team said these are the ids and the mask
    of the live transcript; a model may have spelt the same text in other tokens than the tokenizer would.

    Raises DataError unless the turns are system, user, and then assistant and tool by turns, an assistant's last.
    """
    roles = [message["role"] for message in messages]
    wanted = ["system", "user", *(("assistant", "tool")[turn % 2] for turn in range(len(roles) - 2))]
    if len(roles) < 3 or roles != wanted or roles[-1] != "assistant":
        raise DataError(
            f"a conversation's turns are {', '.join(roles) or 'missing'}: it must begin with system and user, continue "
            "with assistant and tool by turns and end with assistant"
        )
    ids = codec.start(messages[0]["content"], messages[1]["content"], tools=tools)
    mask = [False] * len(ids)
    tool = ""  # that the last turn called
    for message in messages[2:]:
        spoken, content = message["role"] == "assistant", message["content"]
        if spoken:
            call = read_call(content)
            tool = "" if isinstance(call, MalformedCall) else call[0]
        new = codec.encode_assistant(content) if spoken else codec.tool_response(content, tool)
        ids += new
        mask += [spoken] * len(new)
    return np.asarray(ids, np.int32), np.asarray(mask, np.bool_)
