"""The user's roles, tools, rewards and scores as a configuration names them. How a plug-in is found and imported is in
`backend/config/plugins.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from backend.config.plugins import REWARD, ROLE, TOOL, function, guarded, installed, loaded, of_role, plugin
from backend.config.schema import Config
from backend.config.training import TrainingConfig
from cryptosentinel.agents.registry import ROLES, register, register_tool
from cryptosentinel.agents.role import SubAgent, Tool
from cryptosentinel.protocol.tool_calls import Arguments
from simulator.arrays import FloatArray
from simulator.errors import UserError

Reward = Callable[[FloatArray, float], float]  # net returns (n,) of a decision's scenarios, volatility: a score


def load_plugins(config: Config) -> None:
    """Make the user's roles and tools known: those of `plugins.roles`, those that `team.roles` names and that are
    installed, and `team.tools`. Raises `UserError` for what is none or cannot be imported."""
    named: dict[str, str] = {}
    for text in config.plugins.roles:
        role = _role(plugin(ROLE, text), text)
        if named.setdefault(role.key, text) != text:
            raise UserError(f"plugins.roles: {named[role.key]} and {text} are both role '{role.key}': leave one out")
        register(role)
    for key in config.team.roles:
        point = installed(ROLE.group, key) if key not in ROLES else None
        if point is not None:
            register(_role(loaded(point, ROLE), point.value))
    for text in config.team.tools:
        role_key, name = of_role(text, "team.tools")
        register_tool(text, role_key, _tool(plugin(TOOL, name), name))


def reward_of(config: TrainingConfig) -> Reward | None:
    """The user's own outcome score of a decision; None for the shipped one. Raises `UserError`, and so does what is
    returned where its score is not a number."""
    if not config.reward:
        return None
    name, call = config.reward, function(REWARD, config.reward)

    def reward(net_returns: FloatArray, volatility: float) -> float:
        return _score_between(call(net_returns.copy(), volatility), f"the reward {name}")

    return reward


def _score_between(value: Any, what: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise UserError(f"{what} gave {value!r}: it must give a number from 0 to 1") from None
    if not 0.0 <= number <= 1.0:  # False for NaN as well
        raise UserError(f"{what} gave {number}: it must lie between 0 and 1")
    return number


def _role(value: Any, text: str) -> SubAgent:
    if not isinstance(value, SubAgent):
        raise UserError(f"{text} is a {type(value).__name__} and no role: give {ROLE.is_what}")
    if value.score is None:
        return value
    return replace(value, score=guarded(f"the score of the role '{value.key}' ({text})", value.score))


def _tool(value: Any, text: str) -> Tool:
    """A tool that computes, and says so in one sentence where it fails."""
    if not isinstance(value, Tool):
        raise UserError(f"{text} is a {type(value).__name__} and no tool: give {TOOL.is_what}")
    if not callable(value.run):
        raise UserError(f"the tool '{value.name}' ({text}) computes nothing: give it run(context, arguments)")
    if not (isinstance(value.arguments, type) and issubclass(value.arguments, Arguments)):
        raise UserError(f"the tool '{value.name}' ({text}) has no type of arguments: give a cryptosentinel.Arguments")
    if not value.name.isidentifier():
        raise UserError(f"the tool '{value.name}' ({text}): its name must be letters, digits and '_'")
    run = guarded(f"the tool '{value.name}' ({text})", value.run)

    def result(context: Any, arguments: Any) -> dict[str, Any]:
        computed = run(context, arguments)
        if not isinstance(computed, dict):
            raise UserError(f"the tool '{value.name}' ({text}) gave a {type(computed).__name__}: it must give a dict")
        return computed

    return replace(value, run=result)
