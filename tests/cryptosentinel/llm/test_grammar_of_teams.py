"""The grammars of whole teams: whatever a model draws within them is an answer that the team takes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from cryptosentinel.agents.instructions import callable_tools, constrained_tools
from cryptosentinel.agents.registry import STANDARD, team_of
from cryptosentinel.llm.chat_codec import make_byte_codec
from cryptosentinel.llm.grammar import Grammars
from cryptosentinel.protocol.tool_calls import MalformedCall, ToolCall
from tests.cryptosentinel.llm.test_grammar import takes, wander

CODEC = make_byte_codec()
GRAMMARS = Grammars(CODEC, CODEC.vocab_size)
COINS = ("C1", "C2", "C3")


@pytest.mark.parametrize("tools_of", [callable_tools, constrained_tools])
@pytest.mark.parametrize("portfolio", [False, True])
def test_a_constrained_turn_names_no_coin_twice_and_nothing_that_does_not_go_together(
    tools_of: Any, portfolio: bool
) -> None:
    rng = random.Random(1)
    manager, sub_agents = team_of(STANDARD, portfolio)
    for role in (manager, *sub_agents.values()):
        begun = GRAMMARS.begin(tools_of(role, COINS))
        for _ in range(4):
            text = wander(CODEC, begun.deep_copy(), rng)
            if text is None:
                continue
            call = CODEC.parse(text, role.argument_types())
            assert isinstance(call, ToolCall), (call, text)


def decision(*positions: str) -> str:
    said = ", ".join(positions)
    return f'<tool_call>\n{{"name": "submit_decision", "arguments": {{"positions": [{said}]}}}}\n</tool_call>'


LONG = '{"symbol": "%s", "reason": "up", "side": "long", "exposure": 0.5}'
FLAT = '{"symbol": "%s", "side": "flat"}'
KEEP = '{"symbol": "%s", "reason": "the spread is wide", "side": "keep"}'


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        (decision(), True),
        (decision(LONG % "C1", LONG % "C3"), True),
        (decision(LONG % "C2"), True),
        (decision(LONG % "C1", LONG % "C2", FLAT % "C3"), True),
        (decision(FLAT % "C2"), True),
        (decision(KEEP % "C1", FLAT % "C2"), True),
        (decision((LONG % "C2").replace("long", "keep")), False),
        (decision((KEEP % "C2").replace('keep"', 'keep", "stop": 5')), False),
        (decision(LONG % "C1", LONG % "C1"), False),
        (decision(LONG % "C3", LONG % "C1"), False),  # the decision's order is the only one
        (decision((LONG % "C2").replace("long", "flat")), False),
        (decision(LONG % "C4"), False),
    ],
)
def test_a_decision_names_its_coins_in_turn(text: str, fine: bool) -> None:
    manager, _ = team_of(STANDARD, True)
    assert takes(CODEC, GRAMMARS.begin(callable_tools(manager, COINS)), CODEC.encode_assistant(text)) is fine
    if fine:
        assert not isinstance(CODEC.parse(text, manager.argument_types()), MalformedCall)
