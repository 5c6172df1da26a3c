"""The roles of the team: the manager, and the sub-agents by the tool that consults them.

A further sub-agent is one more entry in `_TEAM`: the manager can ask whoever stands there.
"""

from __future__ import annotations

from cryptosentinel.agents import manager, market_analyst, risk_analyst, trader
from cryptosentinel.roles import Role, SubAgent

_TEAM: tuple[SubAgent, ...] = (market_analyst.ROLE, risk_analyst.ROLE, trader.ROLE)
SUB_AGENTS: dict[str, SubAgent] = {role.consult.name: role for role in _TEAM}
MANAGER: Role = manager.role_over(_TEAM)
ROLES: dict[str, Role] = {role.key: role for role in (MANAGER, *SUB_AGENTS.values())}
