"""The registry of roles: the manager, and each sub-agent that has a file in this folder.

A new sub-agent is one new file with a `ROLE` in it, or a role of the user's own that `register` adds. `team.roles`
names the sub-agents of a team. The manager can ask those and no others; it inherits the tools of the standard
sub-agents that are absent, unless `team.inherit_tools` is off. Without any sub-agent it is a single agent. Training
supports the manager with any of the standard sub-agents, and with others that have a score.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from cryptosentinel import agents
from cryptosentinel.agents import manager
from cryptosentinel.agents.joint import EACH, consultations, joint
from cryptosentinel.agents.role import Role, SubAgent, Tool
from cryptosentinel.protocol.tool_calls import ToolCall
from simulator.errors import UserError

_R = TypeVar("_R", bound=Role)
STANDARD = ("market_analyst", "risk_analyst", "trader")


def discover() -> dict[str, SubAgent]:
    """Every sub-agent that has a file in this folder, by key: the standard ones first, the others by name."""
    found: dict[str, SubAgent] = {}
    others = sorted(module.name for module in pkgutil.iter_modules(agents.__path__))
    for name in (*STANDARD, *(name for name in others if name not in STANDARD)):
        role = getattr(importlib.import_module(f"{agents.__name__}.{name}"), "ROLE", None)
        if isinstance(role, SubAgent):
            if role.key != name or role.consult.name != f"consult_{name}":
                raise ValueError(f"agents/{name}.py: its role must be '{name}', consulted by 'consult_{name}'")
            found[role.key] = role
    return found


_FOUND = discover()
SUB_AGENTS: dict[str, SubAgent] = {role.consult.name: role for role in _FOUND.values()}
MANAGER: Role = manager.role_over([_FOUND[key] for key in STANDARD])
PORTFOLIO_MANAGER: Role = manager.role_over([_FOUND[key] for key in STANDARD], portfolio=True)
ROLES: dict[str, Role] = {role.key: role for role in (MANAGER, *SUB_AGENTS.values())}


def _speakers() -> dict[str, Role]:
    """The roles with every tool that they have in any team."""
    absent = [_FOUND[key] for key in STANDARD]
    speakers: dict[str, Role] = {}
    for role in _FOUND.values():
        together = joint(role)
        own = {tool.name: tool for tool in (*together.tools, *role.tools, together.answer)}
        speakers[role.key] = replace(role, tools=tuple(own.values()))
    one_by_one = manager.role_over(list(_FOUND.values()), absent, portfolio=True)
    everybody = list(_FOUND.values())
    at_once = manager.role_over(everybody, absent, portfolio=True, consultations=consultations(everybody))
    own = {tool.name: tool for tool in (*at_once.tools, *one_by_one.tools)}
    return {MANAGER.key: replace(one_by_one, tools=tuple(own.values()), opening=("get_limits", "get_book")), **speakers}


# For readers of a conversation who do not know its team.
SPEAKERS: dict[str, Role] = _speakers()


def register(role: SubAgent) -> None:
    """Add a role of the user's own, or put it in the place of one of the same key that was added before. Raises
    `UserError` for a role that takes the name of another, or that no manager could ask."""
    if (
        role.key in (*STANDARD, MANAGER.key)
        or not role.key.isidentifier()
        or role.consult.name != f"consult_{role.key}"
    ):
        raise UserError(
            f"the role '{role.key}', consulted by '{role.consult.name}': its key must be a name of its own, to "
            f"be consulted by 'consult_{role.key}'"
        )
    if role.max_turns <= len(role.opening):
        raise UserError(f"the role '{role.key}' has {role.max_turns} turns: give it more than its opening tools")
    _FOUND[role.key] = SUB_AGENTS[role.consult.name] = role
    ROLES[role.key] = role
    SPEAKERS.update(_speakers())


_TOOLS: dict[str, tuple[str, Tool]] = {}  # tools of the user's own with the role that has each, by how they are named


def register_tool(name: str, role: str, tool: Tool) -> None:
    """Make a tool of the user's own known by `name`, as teams name it in their settings, for the role of that key.
    Raises `UserError` where there is no such role."""
    if role not in ROLES:
        raise UserError(f"team.tools: no role '{role}' for '{name}'; there are {', '.join(ROLES)}")
    _TOOLS[name] = role, tool
    if tool.name not in SPEAKERS[role].argument_types():
        SPEAKERS[role] = replace(SPEAKERS[role], tools=(*SPEAKERS[role].tools, tool))


def _with_tools(role: _R, tools: Sequence[str]) -> _R:
    """A role with those of the user's tools that are its; each is one more turn."""
    added = [_TOOLS[name][1] for name in tools if _TOOLS[name][0] == role.key]
    names = [*role.argument_types(), *(tool.name for tool in added)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"team.tools: {role.key} would have two tools '{twice}': rename one, or leave one out")
    return replace(role, tools=(*role.tools, *added), max_turns=role.max_turns + len(added)) if added else role


def _check_tools(tools: Sequence[str], keys: Sequence[str]) -> None:
    for name in tools:
        if name not in _TOOLS:
            raise UserError(
                f"the team has a tool of its own, '{name}', which runs code: name it yourself with --set "
                f"'team.tools={name}' if you trust it"
            )
        role, _ = _TOOLS[name]
        if role not in (MANAGER.key, *keys):
            raise UserError(f"team.tools: '{name}' is of {role}, which team.roles leaves out: take it out or in")


def team_of(
    keys: Sequence[str],
    portfolio: bool = False,
    *,
    joint_questions: bool = False,
    tools: Sequence[str] = (),
    inherits: bool = True,
) -> tuple[Role, dict[str, SubAgent]]:
    """The manager of a team of the sub-agents `keys`, and these by the tool that consults them about one coin; with
    `portfolio` it decides on all coins at once, and with `joint_questions` asks about all of them at once as well.
    `tools` are names of the user's own tools, which `register_tool` has made known. Unless the manager `inherits` them,
    nobody has the tools of the standard sub-agents that are not in `keys`. Raises `UserError`."""
    _check_tools(tools, keys)
    chosen = {}
    for key in keys:
        role = SUB_AGENTS.get(f"consult_{key}")
        if role is None:
            known = ", ".join(one.key for one in SUB_AGENTS.values())
            raise UserError(f"no role '{key}'; there are {known}, or add one with plugins.roles")
        if role.consult.name in chosen:
            raise UserError(f"the role '{key}' is named twice")
        role = _with_tools(role, tools)
        chosen[role.consult.name] = joint(role) if joint_questions else role
    if tuple(keys) == STANDARD and not joint_questions:
        return _with_tools(PORTFOLIO_MANAGER if portfolio else MANAGER, tools), chosen
    absent = [_FOUND[key] for key in STANDARD if inherits and key not in keys]
    team = list(chosen.values())
    calls = consultations(team) if joint_questions else None
    return _with_tools(manager.role_over(team, absent, portfolio=portfolio, consultations=calls), tools), chosen


def answers(role: str, call: ToolCall) -> bool:
    """Whether a call is the answer that ends a conversation of a role, in either of its forms."""
    return call.name.removesuffix(EACH) == ROLES[role].answer.name


def roles_of(keys: Sequence[str]) -> tuple[str, ...]:
    """The keys of all roles of a team of the sub-agents `keys`, the manager first."""
    return MANAGER.key, *keys


def role_title(key: str) -> str:
    """A role's title; another name (of a metric, say) with its underscores as spaces."""
    return ROLES[key].title if key in ROLES else key.replace("_", " ")
