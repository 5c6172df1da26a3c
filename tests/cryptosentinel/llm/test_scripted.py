"""The engine that answers by rules."""

import pytest

from cryptosentinel.llm.chat_codec import make_byte_codec
from cryptosentinel.llm.engine import Engine, Request, Sampling
from cryptosentinel.llm.scripted import ScriptedEngine


def echo(messages: list[dict[str, str]], seed: int) -> str:
    return f"{seed} {len(messages)} {messages[-1]['role']}: {messages[-1]['content']}"


def request(role: str, ids: list[int]) -> Request:
    return Request(role, tuple(ids), Sampling(max_tokens=2), seed=5)


def test_policies_see_the_conversation_and_answer_in_order() -> None:
    codec = make_byte_codec()
    engine: Engine = ScriptedEngine(
        codec, {"manager": echo, "trader": lambda messages, seed: "<tool_call>\n{}\n</tool_call>"}
    )
    ids = codec.start("system", "hello <|im_end|>")
    first, second = engine.generate([request("manager", ids), request("trader", ids)])
    assert codec.decode_answer(first.ids) == "5 2 user: hello <|im_end|>"
    assert second.ids[0] == codec.special_ids["<tool_call>"] and second.ids[-1] == codec.end_of_turn
    assert all(answer.finished and answer.logps == (0.0,) * len(answer.ids) for answer in (first, second))
    ids = [*ids, *first.ids, *codec.continue_after(first.finished, "42")]
    (third,) = engine.generate([request("manager", ids)])
    assert codec.decode_answer(third.ids) == "5 4 tool: 42"
    assert [turn["role"] for turn in codec.messages([*ids, *third.ids])] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]


def test_rules_have_one_version_and_unknown_roles_are_refused() -> None:
    codec = make_byte_codec()
    engine = ScriptedEngine(codec, {"manager": echo})
    assert engine.policy_version("manager") == "scripted"
    with pytest.raises(KeyError, match="nobody"):
        engine.generate([request("nobody", codec.start("", ""))])
