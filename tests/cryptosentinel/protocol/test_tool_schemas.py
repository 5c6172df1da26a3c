"""Schemas as models read them: short, whole, and with the coins of the decision."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from cryptosentinel.agents.manager import ASK_SEVERAL
from cryptosentinel.agents.registry import ROLES, SPEAKERS
from cryptosentinel.protocol.tool_schemas import slim, with_coins

EVERY_TOOL = [
    pytest.param(schema, id=f"{role.key}-{schema['function']['name']}")
    for role in SPEAKERS.values()
    for schema in role.schemas
]


def parts(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema inside `schema`, itself included."""
    if isinstance(schema, dict):
        yield schema
        inner = [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]
        for one in inner:
            yield from parts(one)


@pytest.mark.parametrize("tool", EVERY_TOOL)
def test_nothing_is_said_that_no_call_needs(tool: dict[str, Any]) -> None:
    shown = slim(tool)
    text = json.dumps(shown)
    assert not any(f'"{word}"' in text for word in ("title", "default", "$ref", "$defs", "anyOf", "oneOf", "null"))
    assert len(text) < len(json.dumps(tool))
    assert shown["function"]["name"] == tool["function"]["name"]
    assert shown["function"]["description"] == tool["function"]["description"]


@pytest.mark.parametrize("tool", EVERY_TOOL)
def test_every_argument_is_there_and_says_what_it_means(tool: dict[str, Any]) -> None:
    whole, shown = tool["function"]["parameters"], slim(tool)["function"]["parameters"]
    assert set(shown["properties"]) == set(whole["properties"])
    assert shown.get("required", []) == whole.get("required", [])
    for schema in parts(shown):
        for name, argument in schema.get("properties", {}).items():
            plain = "enum" in argument or argument["type"] == "array"
            assert "description" in argument or plain, f"{tool['function']['name']}: {name}"


def test_several_kinds_of_question_become_one() -> None:
    [tool] = [one for one in ROLES["manager"].schemas if one["function"]["name"] == ASK_SEVERAL]
    question = slim(tool)["function"]["parameters"]["properties"]["questions"]["items"]
    assert question["required"] == ["ask", "symbol"]
    assert question["properties"]["ask"]["enum"] == ["market_analyst", "risk_analyst", "trader"]
    assert question["properties"]["side"]["description"] == "of risk_analyst, trader"
    assert "description" not in question["properties"]["ask"]


@pytest.mark.parametrize("tool", EVERY_TOOL)
def test_a_coin_can_only_be_one_of_the_decision(tool: dict[str, Any]) -> None:
    named = with_coins(tool, ("C1", "C2"))
    before, after = slim(tool), slim(named)
    for whole, narrow in zip(
        parts(before["function"]["parameters"]), parts(after["function"]["parameters"]), strict=True
    ):
        for name, argument in narrow.get("properties", {}).items():
            if name == "symbol":
                assert argument["enum"] == ["C1", "C2"] and "maxLength" not in argument
            elif argument.get("type") not in ("array", "object"):
                assert argument == whole["properties"][name]
    assert json.dumps(tool).count("C1") == 0  # the tool itself is as it was
