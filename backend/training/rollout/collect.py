"""Rollouts: K decisions of the team on the same state of each query, scored, as trajectories ready to train on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from backend.builders.market import account_leverage, limits_of
from backend.builders.plugins import reward_of
from backend.config.schema import Config
from backend.training.algorithm.rewards import NO_TAIL, Outcome, Tail
from backend.training.algorithm.trajectory import Trajectory, failure_kind
from backend.training.curriculum.queries import Query
from backend.training.rollout.scoring import SHIPPED, RewardFunctions, RolloutScorer, tail_of
from cryptosentinel.agents.manager import AskAboutPosition, AskAnalyst, Question, Side
from cryptosentinel.agents.registry import SUB_AGENTS
from cryptosentinel.conversation.transcript import Transcript
from cryptosentinel.guard.guard import Guard
from cryptosentinel.guard.limits import GuardLimits
from cryptosentinel.llm.engine import Engine
from cryptosentinel.scheduler import Throughput, run_all
from cryptosentinel.team import Team, TeamDecision, derive_seed
from simulator.exchange.costs import Costs
from simulator.exchange.orders import Order


@dataclass(frozen=True)
class Rollout:
    """One decision on a query: the main trajectory, the sub-trajectories in the order of the calls, the outcome.
    `later` is what the guard held back of a decision on a portfolio and would send at the next close.
    """

    query: Query
    number: int
    seed: int
    decision: TeamDecision
    outcome: Outcome
    main: Trajectory
    subs: tuple[Trajectory, ...]
    later: tuple[Order, ...] = ()

    @property
    def shared_outcome(self) -> float:
        """The team's outcome as sub-agents share it: 0 where the manager's format was invalid."""
        return self.outcome.score if self.main.valid else 0.0


@dataclass(frozen=True)
class Practice:
    """Each sub-agent asked once, directly: there is no manager, and so no outcome of a team to share."""

    query: Query
    number: int
    transcripts: tuple[Transcript, ...]
    subs: tuple[Trajectory, ...]
    shared_outcome: float = 0.0


@dataclass(frozen=True)
class RolloutSettings:
    """Named as in the configuration: K, the simulated scenarios of a query, their length in bars. `tail`,
    `question_cost` and `functions` are those of `RolloutScorer`, `limits` the guard's."""

    rollouts_per_query: int
    scenario_paths: int
    horizon_bars: int
    costs: Costs
    max_leverage: float
    limits: GuardLimits
    tail: Tail = NO_TAIL
    question_cost: float = 0.0
    functions: RewardFunctions = SHIPPED

    def scorer(self, query: Query) -> RolloutScorer:
        """Who scores what is said and done about a query."""
        return RolloutScorer(
            query,
            self.scenario_paths,
            self.horizon_bars,
            self.costs,
            self.max_leverage,
            self.tail,
            self.question_cost,
            self.functions,
        )


def rollout_settings(config: Config, rollouts: int) -> RolloutSettings:
    """How rollouts are judged as a configuration has it, with that number for each query. Raises `UserError` for a
    reward or a score of the user's own that cannot be used."""
    return RolloutSettings(
        rollouts_per_query=rollouts,
        scenario_paths=config.training.scenario_paths,
        horizon_bars=config.team.horizon_bars,
        costs=config.costs.costs(),
        max_leverage=account_leverage(config.guard),
        limits=limits_of(config.guard),
        tail=tail_of(config.training),
        question_cost=config.team.question_price / 1e4,
        functions=reward_functions_of(config),
    )


def reward_functions_of(config: Config) -> RewardFunctions:
    """What a configuration puts in the place of formulas, and what scores are made of. Raises `UserError` as
    `rollout_settings` does."""
    training = config.training
    return RewardFunctions(reward_of(training), training.advice_weight, training.verdict_weight)


def collect(
    team: Team,
    engine: Engine,
    queries: Sequence[Query],
    settings: RolloutSettings,
    seed: int,
    on_finished: Callable[[int], None] | None = None,
    throughput: Throughput | None = None,
    scorers: Sequence[RolloutScorer] | None = None,
) -> list[list[Rollout]]:
    """K rollouts of each query, as one list a query. `seed` and the query's key fix all sampling. `scorers` are those
    of the queries where they are there already."""
    seeds = [
        [derive_seed(seed, "rollout", query.key, number) for number in range(settings.rollouts_per_query)]
        for query in queries
    ]
    guards = [[Guard(settings.limits) for _ in row] for row in seeds]
    tasks = [
        team.decide(query.view(), query.account(), query.symbols, guard, rollout_seed)
        for query, row, watched in zip(queries, seeds, guards, strict=True)
        for rollout_seed, guard in zip(row, watched, strict=True)
    ]
    decisions = iter(run_all(tasks, engine, on_finished=on_finished, throughput=throughput))
    groups: list[list[Rollout]] = []
    for number_of_query, (query, row, watched) in enumerate(zip(queries, seeds, guards, strict=True)):
        scorer = settings.scorer(query) if scorers is None else scorers[number_of_query]
        groups.append(
            [
                scored(scorer, number, one, next(decisions), guard, settings)
                for number, (one, guard) in enumerate(zip(row, watched, strict=True))
            ]
        )
    return groups


def sent_later(query: Query, guard: Guard, orders: Sequence[Order]) -> list[Order]:
    """What `guard`, which has just let `orders` through, would send at the next close of a portfolio's decision.

    One coin alone never makes room for another, so coin by coin nothing waits for it.
    """
    return guard.follow_ups(query.view(), query.account(), orders) if len(query.symbols) > 1 else []


def practise(
    team: Team,
    engine: Engine,
    queries: Sequence[Query],
    settings: RolloutSettings,
    seed: int,
    throughput: Throughput | None = None,
    roles: Callable[[Query], Collection[str]] | None = None,
) -> list[list[Practice]]:
    """K times the same question to every sub-agent of the team about each query, as one list a query; with `roles`, to
    those of them alone that it names for the query."""
    tools = [
        [tool for tool, sub_agent in team.sub_agents.items() if roles is None or sub_agent.key in roles(query)]
        for query in queries
    ]
    tasks = [
        team.consult(
            tool,
            _question(query, tool),
            query.view(),
            query.account(),
            derive_seed(seed, "practice", query.key, tool, number),
        )
        for query, row in zip(queries, tools, strict=True)
        for tool in row
        for number in range(settings.rollouts_per_query)
    ]
    answered = iter(run_all(tasks, engine, throughput=throughput))
    groups: list[list[Practice]] = []
    for query, row in zip(queries, tools, strict=True):
        scorer = settings.scorer(query)
        by_tool = [[next(answered) for _ in range(settings.rollouts_per_query)] for _ in row]
        groups.append([])
        for number in range(settings.rollouts_per_query):
            spoken = tuple(answers[number] for answers in by_tool)
            subs = tuple(_trajectory(query, number, one, scorer.expert_score(one)) for one in spoken)
            groups[-1].append(Practice(query, number, spoken, subs))
    return groups


def _question(query: Query, tool: str) -> Question:
    """What is asked about the coin of a query, the same for all its rollouts: the coin, or the largest position
    that it may have, on a side drawn by the query's seed. Where the query says what could be known, the likelier side
    is proposed more often, as a manager that knows something does: where both sides come alike, a veto is right nearly
    always."""
    if SUB_AGENTS[tool].consult.arguments is AskAnalyst:
        return AskAnalyst(symbol=query.symbol)
    rng = np.random.default_rng(derive_seed(query.seed, tool))
    side: Side = "long" if rng.random() < _chance_of_long(query) else "short"
    return AskAboutPosition(symbol=query.symbol, side=side, exposure=round(query.position_size(), 2))


def _chance_of_long(query: Query) -> float:
    """How often a position that is asked about is a long one, by the query's belief of bear, range and bull."""
    if query.belief is None or len(query.symbols) != 1:
        return 0.5
    bear, _, bull = query.belief
    return bull / (bull + bear) if bull + bear else 0.5


def scored(
    scorer: RolloutScorer,
    number: int,
    seed: int,
    decision: TeamDecision,
    guard: Guard,
    settings: RolloutSettings,
) -> Rollout:
    """A decision as rollout `number` of the scorer's query; `guard` has just let its orders through."""
    query = scorer.query
    later = sent_later(query, guard, decision.orders)
    return Rollout(
        query=query,
        number=number,
        seed=seed,
        decision=decision,
        outcome=scorer.outcome([*decision.orders, *later], len(decision.transcripts) - 1),
        main=_trajectory(query, number, decision.manager, None),
        subs=tuple(
            _trajectory(query, number, transcript, scorer.expert_score(transcript))
            for transcript in decision.transcripts[1:]
        ),
        later=tuple(later),
    )


def _trajectory(
    query: Query,
    rollout: int,
    transcript: Transcript,
    expert: float | None,
) -> Trajectory:
    """A conversation as it is learnt from."""
    return Trajectory(
        role=transcript.role,
        query=query.key,
        rollout=rollout,
        ordinal=transcript.ordinal,
        ids=np.asarray(transcript.ids, np.int32),
        mask=np.asarray(transcript.mask, np.bool_),
        sampled_logps=np.asarray(transcript.logps, np.float32),
        policy_version=transcript.policy_version,
        valid=transcript.valid,
        format_score=1.0 / (1 + transcript.retries) if transcript.valid else 0.0,
        expert=expert,
        truncated=transcript.truncated,
        failure=failure_kind(transcript.reason),
        thought_tokens=transcript.usage.reasoning,
        thoughts_cut=transcript.thoughts_cut,
    )
