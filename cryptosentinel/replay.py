"""The orders that a decision would have given without some of its consultations, computed without a model.

RiskAnalyst's caps and Trader's plans act through code: code makes the orders from the manager's answer and from them.
So the orders can be made again with some of them left out. MarketAnalyst only advises: the manager read the advice
before it answered, and its answer without the advice is not known. The same holds for what the manager learned from a
verdict. A replay therefore measures a role's *binding effect*, given the whole conversation.
"""

from __future__ import annotations

from collections.abc import Collection

from cryptosentinel.agents.risk_analyst import Verdict
from cryptosentinel.agents.role import Role
from cryptosentinel.agents.trader import Execution
from cryptosentinel.conversation.transcript import Transcript
from cryptosentinel.guard.guard import Guard
from cryptosentinel.team import Team, TeamDecision
from simulator.exchange.exchange_records import AccountView
from simulator.exchange.orders import Order
from simulator.market.market import MarketView


def replayable_roles(team: Team) -> tuple[str, ...]:
    """The sub-agents whose answers act through code, in the team's order."""
    return tuple(role.key for role in team.sub_agents.values() if acts_through_code(role))


def acts_through_code(role: Role) -> bool:
    """Whether a role's answers bind by code, and not by what others read in them."""
    return role.answer.arguments in (Verdict, Execution)


def has_effect(team: Team, transcript: Transcript) -> bool:
    """Whether a consultation counts in a replay: RiskAnalyst's answers do even where they are not valid, since then the
    position may not grow."""
    role = team.sub_agents.get(f"consult_{transcript.role}")
    if role is None or not acts_through_code(role):
        return False
    return transcript.valid or role.answer.arguments is Verdict


def replay(
    team: Team, decision: TeamDecision, view: MarketView, account: AccountView, guard: Guard, roles: Collection[str]
) -> list[Order]:
    """The orders, after the guard, in which of the binding consultations only those of `roles` count.

    With all of `replayable_roles` it is `decision.orders`, for the view, the account and a guard as they were when it
    was taken: on all of the equity, and first at its bar.
    """
    binding = [transcript for transcript in decision.transcripts[1:] if transcript.role in roles]
    orders, _ = guard.review(view, account, team.rebuilt(decision, binding, view, account), ())
    return orders
