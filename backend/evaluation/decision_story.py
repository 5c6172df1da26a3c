"""What teams do in held-out states beside what could be known there: the numbers behind the story of a training.

Of each state the public data says how likely each regime is (`QueryPool`'s beliefs). A state's evidence is the chance
of a rising market less that of a falling one, from -1 to 1. By it one sees what a team makes of what it is shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from backend.training.curriculum.queries import Query
from backend.training.rollout.collect import Rollout
from cryptosentinel.added_roles import exchanges
from cryptosentinel.team import Team
from simulator.arrays import FloatArray

EDGES = (-1.0, -0.6, -0.2, 0.2, 0.6, 1.0)  # of the stretches of evidence
Lookups = Mapping[str, Mapping[str, int]]  # by role and tool: conversations that used it; all of them under ""


def position_after(rollout: Rollout) -> float:
    """The exposure to the state's coin that a decision asks for, as a share of the equity."""
    query = rollout.query
    price, equity = query.view().last_close(query.symbol), query.account().equity
    quantity = sum(order.quantity for order in rollout.decision.orders if order.symbol == query.symbol)
    return query.exposures()[query.symbol] + quantity * price / equity


def lookups_of(team: Team, rollouts: Sequence[Rollout]) -> Lookups:
    """In how many conversations each role used each of its tools."""
    counts: dict[str, Counter[str]] = {}
    for rollout in rollouts:
        for transcript in rollout.decision.transcripts:
            count = counts.setdefault(transcript.role, Counter())
            count[""] += 1
            count.update({name for name, _, _ in exchanges(team.codec.messages(list(transcript.ids)), transcript.role)})
    return counts


def regime_evidence(queries: Sequence[Query]) -> FloatArray | None:
    """The evidence of each state, (N,); None where it is not known of one coin."""
    beliefs = [query.belief for query in queries]
    if any(belief is None or len(query.symbols) != 1 for belief, query in zip(beliefs, queries, strict=True)):
        return None
    return np.array([belief[2] - belief[0] for belief in beliefs if belief is not None])


def story_of(
    queries: Sequence[Query],
    positions: Mapping[str, FloatArray],
    returns: Mapping[str, FloatArray],
    lookups: Lookups,
    team: Team,
) -> dict[str, Any] | None:
    """By stretch of evidence the number of states, and of each team the mean position and the mean net return, None
    where a stretch has no state; by sub-agent of the `team` whose `lookups` these are the share of its conversations
    that used each of its tools. None where there is no evidence to go by."""
    evidence = regime_evidence(queries)
    if evidence is None:
        return None
    stretch = np.digitize(evidence, EDGES[1:-1])
    members = [np.flatnonzero(stretch == number) for number in range(len(EDGES) - 1)]

    def means(values: FloatArray) -> list[float | None]:
        return [float(values[one].mean()) if len(one) else None for one in members]

    return {
        "edges": list(EDGES),
        "states": [len(one) for one in members],
        "position": {name: means(values) for name, values in positions.items()},
        "net_return": {name: means(values) for name, values in returns.items()},
        "lookups": {
            role.key: {tool.name: _share(lookups.get(role.key, {}), tool.name) for tool in role.tools}
            for role in team.sub_agents.values()
        },
    }


def _share(count: Mapping[str, int], tool: str) -> float | None:
    """None for a role that was never asked."""
    return count.get(tool, 0) / count[""] if count.get("") else None
