"""The types `Role`, `SubAgent` and `Tool`.

A role is a system prompt, the tools it may call, the typed answer that ends its conversation, and its brief. The
short prompt is for models that learnt the role in a warm start; `instructions.py` makes the full one of the rest.
A sub-agent of the user's own is a `SubAgent` that `agents/registry.py:register` adds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cryptosentinel.protocol.tool_calls import Arguments, tool_schema
from cryptosentinel.tools.context import ToolContext
from simulator.arrays import FloatArray

ExpertScore = Callable[[Any, Mapping[str, Any], FloatArray, float], float]  # (answer, question, moves, volatility)


@dataclass(frozen=True)
class Tool:
    """Something a role may call. `run` computes a result from the context and the call's arguments; without it the call
    is a delegation or the answer. The arguments of a tool that computes all have defaults."""

    name: str
    description: str
    arguments: type[Arguments]
    run: Callable[[ToolContext, Any], dict[str, Any]] | None = None


def _plain(answer: Arguments) -> dict[str, Any]:
    return answer.model_dump(exclude_none=True)


@dataclass(frozen=True, eq=False)
class Role:
    """One agent of the team.

    Attributes:
        system: the system turn of the short prompt.
        brief: the question, with which the conversation begins.
        guide: what the system turn of the full prompt begins with: the aim, how it is judged, how to go about it.
        examples: arguments of the answer, as the full prompt shows them. Several that differ: of a single one small
            models copy the numbers.
        note: what belongs to the question in the full prompt besides.
        turns_per_coin: turns for each coin of the decision but the first, beside `max_turns`.
        opening: tools without arguments that everybody calls first; the full prompt has their results.
        speaks_of_positions: whether the full prompt explains exposures and costs.
    """

    key: str
    title: str
    system: str
    tools: tuple[Tool, ...]
    answer: Tool
    max_turns: int
    brief: Callable[[ToolContext], str]
    guide: str = field(default="", kw_only=True)
    examples: Sequence[Mapping[str, Any]] = field(default=(), kw_only=True)
    note: Callable[[ToolContext], str] | None = field(default=None, kw_only=True)
    opening: tuple[str, ...] = field(default=(), kw_only=True)
    turns_per_coin: int = field(default=0, kw_only=True)
    speaks_of_positions: bool = field(default=True, kw_only=True)

    def turns(self, coins: int) -> int:
        """How many turns it has in a decision on that number of coins."""
        return self.max_turns + self.turns_per_coin * (coins - 1)

    def argument_types(self) -> dict[str, type[Arguments]]:
        """Names the role may call, and their argument types; the answer is one of them."""
        return {tool.name: tool.arguments for tool in (*self.tools, self.answer)}

    def tool(self, name: str) -> Tool:
        return next(tool for tool in (*self.tools, self.answer) if tool.name == name)

    def typed(self, answer: Mapping[str, Any] | None) -> Arguments | None:
        """A valid answer of a transcript in its type, None where there was none."""
        return None if answer is None else self.answer.arguments.model_validate(dict(answer))

    @cached_property
    def schemas(self) -> tuple[dict[str, Any], ...]:
        """JSON schemas of what the role may call, its answer last."""
        return tuple(tool_schema(tool.name, tool.description, tool.arguments) for tool in (*self.tools, self.answer))


@dataclass(frozen=True, eq=False, kw_only=True)
class SubAgent(Role):
    """A role that the manager may ask. `consult` is the call with which it does; its arguments are the question.
    `taken_over` are the tools that the manager has itself in a team without this role.

    What a role of your own needs to be trained:

    Attributes:
        score: how good an answer was, from 0 to 1, given what was asked, what followed (simple returns of the coin over
            the horizon in each scenario, (paths,)) and the coin's volatility over it. The standard roles have theirs in
            `backend/training/rollout/scoring.py`.
        rules: the arguments of the answer that the warm start's teacher gives, from the results of the `opening` tools.
        guess: arguments of a valid answer at random, as the warm start's novice gives; None: the rules.
    """

    consult: Tool
    taken_over: tuple[Tool, ...] = ()
    reply: Callable[[Any], dict[str, Any]] = _plain  # the typed answer as the manager reads it
    score: ExpertScore | None = None
    rules: Callable[[Mapping[str, dict[str, Any]]], dict[str, Any]] | None = None
    guess: Callable[[random.Random], dict[str, Any]] | None = None
