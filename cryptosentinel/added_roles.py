"""How the scripted team plays roles that users added: by the rules that such a role brings. The standard roles have
theirs in `cryptosentinel/scripted_team.py`, which reads a conversation by `exchanges` as well."""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any

from cryptosentinel.agents.instructions import opening_results
from cryptosentinel.agents.manager import AskAboutPosition
from cryptosentinel.agents.registry import SPEAKERS, STANDARD, SUB_AGENTS
from cryptosentinel.agents.role import SubAgent
from cryptosentinel.llm.chat_format import ChatMessages
from cryptosentinel.llm.scripted import ScriptedPolicy
from cryptosentinel.protocol.tool_calls import MalformedCall, parse, render_call
from simulator.errors import UserError

ToolExchange = tuple[str, dict[str, Any], dict[str, Any]]  # tool name, its arguments, its result


def added_policies(team: Collection[str], *, novice: bool) -> dict[str, ScriptedPolicy]:
    """The roles of a team that users added, by their own rules or, of a novice, their own guesses."""
    return {key: _by_own_rules(role, novice) for key in team if (role := _added_role(key)) is not None}


def _added_role(key: str) -> SubAgent | None:
    return SUB_AGENTS.get(f"consult_{key}") if key not in STANDARD else None


def _by_own_rules(role: SubAgent, novice: bool) -> ScriptedPolicy:
    """Calls the opening tools one by one and answers then."""

    def policy(messages: ChatMessages, seed: int) -> str:
        results = {name: result for name, _, result in exchanges(messages, role.key)}
        missing = next((tool for tool in role.opening if tool not in results), None)
        if missing is not None:
            return render_call(missing, {})
        if novice and role.guess is not None:
            return render_call(role.answer.name, role.guess(random.Random(seed)))
        if role.rules is None:
            raise UserError(f"the role '{role.key}' has no rules, so that no scripted team can play it: give it some")
        return render_call(role.answer.name, role.rules(results))

    return policy


def question_to_added(team: Collection[str], symbol: str, rng: random.Random, exposures: Sequence[float]) -> str | None:
    """A novice's question to a role that a user added; None where there is none, or it is not asked this time."""
    added = [role for role in map(_added_role, team) if role is not None]
    if not added or rng.random() < 0.8:  # without such a role no number is drawn
        return None
    role, question = rng.choice(added), dict[str, Any](symbol=symbol)
    if role.consult.arguments is AskAboutPosition:
        question |= {"side": rng.choice(("long", "short")), "exposure": rng.choice(exposures)}
    return render_call(role.consult.name, question)


def exchanges(messages: ChatMessages, role: str) -> list[ToolExchange]:
    """The calls so far with their results; what the first message of a full prompt tells counts as called. Calls that
    do not parse, and results that are no JSON object, are left out."""
    user = next((message["content"] for message in messages if message["role"] == "user"), "")
    found: list[ToolExchange] = opening_results(SPEAKERS[role], user)
    types = SPEAKERS[role].argument_types()
    for said, heard in pairwise(messages):
        if said["role"] != "assistant" or heard["role"] != "tool":
            continue
        call = parse(said["content"], types)
        if isinstance(call, MalformedCall):
            continue
        result = json.loads(heard["content"])
        if isinstance(result, dict):
            found.append((call.name, call.arguments.model_dump(), result))
    return found
