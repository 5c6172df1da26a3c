"""What the scripted team reads of a conversation: the coins and limits in a brief, what it is asked, and what it was
answered."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cryptosentinel.added_roles import ToolExchange
from cryptosentinel.agents.manager import ASK_SEVERAL
from cryptosentinel.llm.chat_format import ChatMessages
from cryptosentinel.tools.context import MISSING

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
