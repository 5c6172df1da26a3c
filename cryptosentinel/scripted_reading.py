"""What the scripted team reads of a conversation: the coins and limits in a brief, what it is asked, and what it was
answered; and how it plays roles that users added, by the rules that such a role brings."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from cryptosentinel.agents.instructions import opening_results
from cryptosentinel.agents.manager import ASK_SEVERAL, AskAboutPosition
from cryptosentinel.agents.registry import SPEAKERS, STANDARD, SUB_AGENTS
from cryptosentinel.agents.role import SubAgent
from cryptosentinel.llm.chat_format import ChatMessages
from cryptosentinel.llm.scripted import ScriptedPolicy
from cryptosentinel.protocol.tool_calls import MalformedCall, parse, render_call
from cryptosentinel.tools.context import MISSING
from simulator.errors import UserError

ToolExchange = tuple[str, dict[str, Any], dict[str, Any]]  # tool name, its arguments, its result

_COIN_LINE = re.compile(
    r"^(\S+): held (-?[\d.]+), day (\S+|not available), volatility (\S+|not available)$", re.MULTILINE
)
_BRIEF = re.compile(r"^(\S+): (long|short|flat) ([\d.e+-]+), held ")  # of a position, as RiskAnalyst reads it
_LIMIT = re.compile(r"; at most (?:gross ([\d.e+]+))?(?:, )?(?:a coin ([\d.e+]+))?")


@dataclass(frozen=True)
class BookCoin:
    """A line of a portfolio's brief."""

    name: str
    held: float
    volatility: float | None


def read_brief(messages: ChatMessages) -> str:
    """What a role is asked; empty where there is nothing."""
    return next((message["content"] for message in messages if message["role"] == "user"), "")


def read_coins(messages: ChatMessages) -> list[tuple[str, float]]:
    """The coins in the manager's brief with the exposure held."""
    return [(match.group(1), float(match.group(2))) for match in _COIN_LINE.finditer(read_brief(messages))]


def read_portfolio(messages: ChatMessages) -> list[BookCoin]:
    """The coins of a portfolio's brief."""
    return [
        BookCoin(one[1], float(one[2]), None if one[4] == MISSING or not _positive(one[4]) else float(one[4]))
        for one in _COIN_LINE.finditer(read_brief(messages))
    ]


def _positive(text: str) -> bool:
    try:
        return 0.0 < float(text) < math.inf
    except ValueError:
        return False


def read_limits(messages: ChatMessages) -> tuple[float, float]:
    """The guard's limits in a portfolio's brief: of the gross exposure and of a coin; 1 where there is none."""
    match = _LIMIT.search(read_brief(messages))
    gross, of_coin = (None, None) if match is None else match.groups()
    return float(gross or 1.0), float(of_coin or 1.0)


def read_proposed(messages: ChatMessages) -> float:
    """The exposure in RiskAnalyst's brief; 1 where there is none."""
    match = _BRIEF.search(read_brief(messages))
    return 1.0 if match is None else min(1.0, float(match[3]))


def answers_by_coin(done: Sequence[ToolExchange]) -> dict[str, dict[str, Any]]:
    """By coin ("" where a call names none) and tool: the first answer, asked for alone or with others."""
    by_coin: dict[str, dict[str, Any]] = {}
    for name, arguments, result in done:
        if name != ASK_SEVERAL:
            by_coin.setdefault(str(arguments.get("symbol", "")), {}).setdefault(name, result)
            continue
        answers = result.get("answers")
        for question, answer in zip(arguments["questions"], answers if isinstance(answers, list) else [], strict=False):
            if isinstance(answer, dict):
                by_coin.setdefault(question["symbol"], {}).setdefault(f"consult_{question['ask']}", answer)
    return by_coin


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
    do not parse, and results that are not a JSON object, are left out."""
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
