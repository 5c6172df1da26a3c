"""The types `Role`, `SubAgent` and `Tool`.

A role is a system prompt, the tools it may call, the typed answer that ends its conversation, and its brief.
A further sub-agent is one new file in `agents/` and one entry in `agents/registry.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cryptosentinel.protocol.tool_calls import Arguments, tool_schema
from cryptosentinel.tools.context import ToolContext


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


@dataclass(frozen=True)
class Role:
    """One agent of the team."""

    key: str
    title: str
    system: str
    tools: tuple[Tool, ...]
    answer: Tool
    max_turns: int
    brief: Callable[[ToolContext], str]

    def argument_types(self) -> dict[str, type[Arguments]]:
        """Names the role may call, and their argument types; the answer is one of them."""
        return {tool.name: tool.arguments for tool in (*self.tools, self.answer)}

    def tool(self, name: str) -> Tool:
        return next(tool for tool in (*self.tools, self.answer) if tool.name == name)

    @cached_property
    def schemas(self) -> tuple[dict[str, Any], ...]:
        """JSON schemas of what the role may call, its answer last."""
        return tuple(tool_schema(tool.name, tool.description, tool.arguments) for tool in (*self.tools, self.answer))


@dataclass(frozen=True, kw_only=True)
class SubAgent(Role):
    """A role that the manager may ask. `consult` is the call with which it does; its arguments are the question.
    `taken_over` are the tools that the manager has itself in a team without this role."""

    consult: Tool
    taken_over: tuple[Tool, ...] = ()
    reply: Callable[[Any], dict[str, Any]] = _plain  # the typed answer as the manager reads it
