"""The roles of the team: the manager, and the sub-agents by the tool that consults them."""

from __future__ import annotations

from cryptosentinel.agents import manager, market_analyst, risk_analyst, trader
from cryptosentinel.roles import Role

MANAGER: Role = manager.ROLE
SUB_AGENTS: dict[str, Role] = {
    "consult_market_analyst": market_analyst.ROLE,
    "consult_risk_analyst": risk_analyst.ROLE,
    "consult_trader": trader.ROLE,
}
ROLES: dict[str, Role] = {role.key: role for role in (MANAGER, *SUB_AGENTS.values())}
