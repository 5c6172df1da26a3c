"""The registry of roles: the manager, the standard sub-agents, and roles of the user's own that `register` adds.

`team.roles` names the sub-agents of a team. The manager can ask those and no others; it inherits the tools of the
standard sub-agents that are absent, unless `team.inherit_tools` is off. Without any sub-agent it is a single agent.
Training supports the manager with any of the standard sub-agents, and with others that have a score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from cryptosentinel.agents import manager, market_analyst, risk_analyst, trader
from cryptosentinel.agents.role import Role, SubAgent, Tool
from cryptosentinel.protocol.tool_calls import ToolCall
from simulator.errors import UserError

_R = TypeVar("_R", bound=Role)
STANDARD = ("market_analyst", "risk_analyst", "trader")


_FOUND: dict[str, SubAgent] = {
    role.key: role for role in (market_analyst.ROLE, risk_analyst.ROLE, trader.ROLE)
}  # and those that `register` adds
SUB_AGENTS: dict[str, SubAgent] = {role.consult.name: role for role in _FOUND.values()}
MANAGER: Role = manager.role_over([_FOUND[key] for key in STANDARD])
PORTFOLIO_MANAGER: Role = manager.role_over([_FOUND[key] for key in STANDARD], portfolio=True)
ROLES: dict[str, Role] = {role.key: role for role in (MANAGER, *SUB_AGENTS.values())}


def _speakers() -> dict[str, Role]:
    """The roles with every tool that they have in any team."""
    absent = [_FOUND[key] for key in STANDARD]
    everybody = manager.role_over(list(_FOUND.values()), absent, portfolio=True)
    return {MANAGER.key: everybody, **_FOUND}


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
    tools: Sequence[str] = (),
    inherits: bool = True,
) -> tuple[Role, dict[str, SubAgent]]:
    """The manager of a team of the sub-agents `keys`, and these by the tool that consults them; with `portfolio` it
    decides on all coins at once. `tools` are names of the user's own tools, which `register_tool` has made
    known. Unless the manager `inherits` them, nobody has the tools of the standard sub-agents that are not in `keys`.
    Raises `UserError`."""
    _check_tools(tools, keys)
    chosen = {}
    for key in keys:
        role = SUB_AGENTS.get(f"consult_{key}")
        if role is None:
            known = ", ".join(one.key for one in SUB_AGENTS.values())
            raise UserError(f"no role '{key}'; there are {known}, or add one with plugins.roles")
        if role.consult.name in chosen:
            raise UserError(f"the role '{key}' is named twice")
        chosen[role.consult.name] = _with_tools(role, tools)
    if tuple(keys) == STANDARD:
        return _with_tools(PORTFOLIO_MANAGER if portfolio else MANAGER, tools), chosen
    absent = [_FOUND[key] for key in STANDARD if inherits and key not in keys]
    return _with_tools(manager.role_over(list(chosen.values()), absent, portfolio=portfolio), tools), chosen


def answers(role: str, call: ToolCall) -> bool:
    """Whether a call is the answer that ends a conversation of a role."""
    return call.name == ROLES[role].answer.name


def roles_of(keys: Sequence[str]) -> tuple[str, ...]:
    """The keys of all roles of a team of the sub-agents `keys`, the manager first."""
    return MANAGER.key, *keys


def role_title(key: str) -> str:
    """A role's title; another name (of a metric, say) with its underscores as spaces."""
    return ROLES[key].title if key in ROLES else key.replace("_", " ")
