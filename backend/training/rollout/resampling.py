"""Further rollouts of a window that repeat one of its rollouts up to a question, and sample from there on.

The answers to that question were given in one and the same situation, and so were the manager's turns after it: what
they earned differs by what was said from there on, not by luck before (GiGPO, arXiv 2505.10978; AT-GRPO, arXiv
2510.11062). `algorithm.grouping` compares them.

Which question is drawn by lot: first the role, each of those that were asked alike, then one of its calls in the K
rollouts. A role that is seldom asked so is as often answered again as one that is asked in every rollout.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from backend.training.rollout.collect import Repeated, Rollout, RolloutSettings, scored
from cryptosentinel.agents.registry import MANAGER
from cryptosentinel.guard.guard import Guard
from cryptosentinel.llm.engine import Engine
from cryptosentinel.resampling import AnsweredRequests, before_call, noted, repeated, sampled_tokens, was_sampled
from cryptosentinel.scheduler import Throughput, run_all
from cryptosentinel.team import AgentTask, Team, TeamDecision, derive_seed


@dataclass(frozen=True)
class _Branch:
    """A rollout that begins as `origin`, whose exchanges before the branch are `past`."""

    origin: Rollout
    number: int
    seed: int
    past: Sequence[AnsweredRequests]


def answer_again(
    team: Team,
    engine: Engine,
    groups: Sequence[Sequence[Rollout]],
    notes: Sequence[Sequence[Sequence[AnsweredRequests]]],
    roles: Collection[str],
    number: int,
    settings: RolloutSettings,
    seed: int,
    throughput: Throughput | None = None,
) -> list[list[Rollout]]:
    """`number` further rollouts of each query, as one list a query; none of a query in which none of `roles` was asked.

    `groups` are the rollouts of each query and `notes` their exchanges, as `collect` has them. `seed` and the query's
    key fix the draw and all sampling.
    """
    branches = [
        _branches(group, exchanges, roles, number, seed) for group, exchanges in zip(groups, notes, strict=True)
    ]
    every = [branch for row in branches for branch in row]
    guards = [Guard(settings.limits) for _ in every]
    anew: list[list[AnsweredRequests]] = [[] for _ in every]
    tasks = [
        noted(repeated(_decision(team, branch, guard), branch.past), exchanges)
        for branch, guard, exchanges in zip(every, guards, anew, strict=True)
    ]
    decisions = run_all(tasks, engine, throughput=throughput)
    further: list[list[Rollout]] = []
    done = iter(zip(every, decisions, guards, anew, strict=True))
    for row in branches:
        scorer = settings.scorer(row[0].origin.query) if row else None
        further.append([])
        for _ in row:
            assert scorer is not None  # the row is not empty
            branch, decision, guard, exchanges = next(done)
            subs = decision.transcripts[1:]
            sampled_anew = [was_sampled(exchanges, branch.seed, sub.role, sub.ordinal) for sub in subs]
            past = Repeated(branch.origin.number, sampled_anew.count(False), sampled_tokens(exchanges, MANAGER.key))
            further[-1].append(scored(scorer, branch.number, branch.seed, decision, guard, settings, past))
    return further


def _branches(
    group: Sequence[Rollout],
    notes: Sequence[Sequence[AnsweredRequests]],
    roles: Collection[str],
    number: int,
    seed: int,
) -> list[_Branch]:
    """The further rollouts of a query, all from one call."""
    query = group[0].query
    asked = sorted({call.role for rollout in group for call in rollout.subs} & set(roles))
    if not asked:
        return []
    rng = np.random.default_rng(derive_seed(seed, "resampled", query.key))
    role = asked[rng.integers(len(asked))]
    calls = [(place, call.ordinal) for place, rollout in enumerate(group) for call in rollout.subs if call.role == role]
    place, ordinal = calls[rng.integers(len(calls))]
    origin = group[place]
    past = before_call(notes[place], origin.seed, role, ordinal)
    numbers = range(len(group), len(group) + number)
    return [_Branch(origin, one, derive_seed(seed, "resampled", query.key, one), past) for one in numbers]


def _decision(team: Team, branch: _Branch, guard: Guard) -> AgentTask[TeamDecision]:
    query = branch.origin.query
    return team.decide(query.view(), query.account(), query.symbols, guard, branch.seed)
