"""The team's decision as an environment for any trainer: messages and tools in, a message or a tool call out.

    env = cs.DecisionEnv()
    turn = env.reset(seed=1)
    while not turn.done:
        turn = env.step(model(turn.messages, turn.tools))
    turn.reward

Each role is a seat: played from outside, or by the scripted team. No model and no torch is needed. An episode is one
decision on one state; its reward is that of M-GRPO's trainer, over the same scenarios.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from backend.builders.loaded_team import scripted_team
from backend.builders.market import load_market, split
from backend.config.base import suggestion
from backend.config.load import load_config
from backend.config.schema import Config
from backend.training.algorithm.rewards import main_reward, sub_reward
from backend.training.curriculum.queries import QueryPool, gross_limit, pools_of
from backend.training.rollout.collect import Rollout, rollout_settings, scored
from cryptosentinel.agents.registry import MANAGER, roles_of
from cryptosentinel.guard.guard import Guard
from cryptosentinel.llm.engine import Completion, Request
from cryptosentinel.protocol.tool_calls import read_call, render_call, render_tool_calls
from cryptosentinel.team import AgentTask, TeamDecision, derive_seed
from simulator.errors import UserError
from simulator.market.market import Market

StatesOf = Literal["train", "validation", "held_out"]
SPLITS: tuple[StatesOf, ...] = ("train", "validation", "held_out")
ChatMessage = Mapping[str, Any]


@dataclass(frozen=True)
class DecisionTurn:
    """What a seat is asked, or the end of an episode.

    Attributes:
        seat: the role that is to answer; empty at the end.
        messages: its conversation in the form of OpenAI's chat completions, system turn first.
        tools: the schemas of what it may call, in the same form.
        rewards: at the end, the reward of each conversation by role, in the order of the calls; all in [0, 1]. A
            conversation without an expert's score, such as a forecast of what cannot be measured, has none (None).
        parts: at the end, what they are made of: the outcome score and the net return (a fraction of equity) of the
            decision, its costs, questions, and each conversation's format and expert scores.
    """

    seat: str = ""
    messages: tuple[ChatMessage, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    rewards: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    parts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Whether the decision is made."""
        return not self.seat

    @property
    def reward(self) -> float | None:
        """The manager's reward; None before the end."""
        return None if not self.done else self.rewards[MANAGER.key][0]


class DecisionEnv:
    """Decisions of the team on states of a market; see the module.

    Args:
        config: the world and the team, a preset, a file or a configuration; without one the shipped world.
        overrides: settings over it, such as `["team.prompts=full"]` for a model that was not trained on the short ones.
        split: which part of the market the states are drawn from. No seed of one part reaches a state of another.
        seats: the roles that are played from outside. The scripted team plays the others.

    Raises `UserError` for a part or a seat that there is not. The market is loaded once and may be shared by many
    environments: `env.another()` begins a session beside this one.
    """

    def __init__(
        self,
        config: Config | str = "demo",
        *,
        overrides: Sequence[str] = (),
        split: StatesOf = "train",
        seats: Collection[str] = (MANAGER.key,),
    ) -> None:
        self.config = load_config(config, overrides)
        roles = roles_of(self.config.team.roles)
        for seat in [seats] if isinstance(seats, str) else seats:
            if seat not in roles:
                raise UserError(f"no seat '{seat}'{suggestion(seat, list(roles))}: the team has {', '.join(roles)}")
        if split not in SPLITS:
            raise UserError(f"no split '{split}'{suggestion(split, list(SPLITS))}: choose of {', '.join(SPLITS)}")
        self.split, self.seats = split, frozenset([seats] if isinstance(seats, str) else seats)
        market = load_market(self.config.market, self.config.costs)
        self._world = _World(self.config, _pool(self.config, market, split), split)
        self._episode: _Episode | None = None

    def another(self) -> DecisionEnv:
        """A session of its own in the same world."""
        other = object.__new__(DecisionEnv)
        vars(other).update({**vars(self), "_episode": None})
        return other

    def reset(self, seed: int) -> DecisionTurn:
        """Begin the decision on the state that `seed` draws. The same seed gives the same state, scenarios and answers
        of the scripted seats."""
        self._episode = _Episode(self._world, self.seats, seed)
        return self._episode.turn

    def step(self, answer: str | ChatMessage) -> DecisionTurn:
        """Answer the seat that was asked: the text of an assistant's turn, a message in the form of OpenAI's chat
        completions with `tool_calls`, or a call `{"name": ..., "arguments": {...}}`.

        What a model did wrong, such as a call that cannot be read, comes back as an observation or ends its
        conversation, as it does in the team. Raises `UserError` for what the caller did wrong: a step before `reset`
        or after the end, and what is not an answer.
        """
        if self._episode is None:
            raise UserError("there is no episode: call reset(seed) first")
        return self._episode.answer(_text_of(answer))


@dataclass
class _World:
    """What the episodes of a part share."""

    config: Config
    pool: QueryPool
    split: str

    def __post_init__(self) -> None:
        self.loaded = scripted_team(self.config.team)
        self.settings = rollout_settings(self.config, 1)


def _pool(config: Config, market: Market, part: StatesOf) -> QueryPool:
    parts = split(market, config.market, config.team.horizon_bars)
    chosen = {"train": parts.train, "validation": parts.validation, "held_out": parts.held_out}[part]
    [pool] = pools_of(config.training, market, [chosen], config.team.horizon_bars, gross_limit(config))
    return pool


class _Episode:
    """One decision. `turn` is what is waited for."""

    def __init__(self, world: _World, seats: Collection[str], seed: int) -> None:
        self._world, self._seats = world, seats
        base_seed = derive_seed(world.config.training.seed, "environment", world.split)
        [self.query] = world.pool.draw(base_seed, seed, 1, easy=False)
        self._seed, self._guard = derive_seed(base_seed, "episode", seed), Guard(world.settings.limits)
        self._task: AgentTask[TeamDecision] = world.loaded.team.decide(
            self.query.view(), self.query.account(), self.query.symbols, self._guard, self._seed
        )
        self._wanted: list[Request] = []
        self._given: list[Completion | None] = []
        self.turn = self._advance(None)

    def answer(self, text: str) -> DecisionTurn:
        """Give the seat that is waited for its answer."""
        if self.turn.done:
            raise UserError("the decision is made: call reset(seed) for the next one")
        ids = self._world.loaded.team.codec.encode_assistant(text)
        self._given[self._given.index(None)] = Completion(tuple(ids), (0.0,) * len(ids), finished=True)
        self.turn = self._next()
        return self.turn

    def _next(self) -> DecisionTurn:
        """The next open request of those that wait, or what follows when all are answered."""
        if None in self._given:
            request = self._wanted[self._given.index(None)]
            messages = self._world.loaded.team.codec.messages(request.ids)
            return DecisionTurn(request.role, tuple(_in_openai_form(messages)), tuple(request.tools))
        return self._advance([one for one in self._given if one is not None])

    def _advance(self, completions: list[Completion] | None) -> DecisionTurn:
        """Continue with the decision until a seat is asked, or to its end."""
        while True:
            try:
                self._wanted = list(self._task.send(completions) if completions is not None else next(self._task))
            except StopIteration as end:
                return self._end(end.value)
            self._given = [
                None if one.role in self._seats else self._world.loaded.engine.generate([one])[0]
                for one in self._wanted
            ]
            if None in self._given:
                return self._next()
            completions = [one for one in self._given if one is not None]

    def _end(self, decision: TeamDecision) -> DecisionTurn:
        settings, training = self._world.settings, self._world.config.training
        rollout = scored(settings.scorer(self.query), 0, self._seed, decision, self._guard, settings)
        rewards: dict[str, list[float | None]] = {
            MANAGER.key: [main_reward(rollout.main.valid, rollout.main.format_score, rollout.outcome.score)]
        }
        for call in rollout.subs:
            rewards.setdefault(call.role, []).append(
                sub_reward(call.valid, call.format_score, rollout.shared_outcome, call.expert, training.beta)
            )
        return DecisionTurn(rewards=rewards, parts=_parts(rollout))


def _parts(rollout: Rollout) -> dict[str, Any]:
    """What the rewards of a rollout are made of."""
    outcome = rollout.outcome
    conversations = [
        {"role": one.role, "valid": one.valid, "format": one.format_score, "expert": one.expert, "failure": one.failure}
        for one in (rollout.main, *rollout.subs)
    ]
    return {
        "outcome": outcome.score,
        "net_return": outcome.net_return,
        "fees": outcome.fees,
        "spread": outcome.spread,
        "funding": outcome.funding,
        "questions": len(rollout.subs),
        "orders": len(rollout.decision.orders),
        "conversations": conversations,
    }


def _text_of(answer: str | ChatMessage) -> str:
    """An answer as the text of an assistant's turn. Raises `UserError` for what is not an answer."""
    if isinstance(answer, str):
        return answer
    if isinstance(answer, Mapping):
        if isinstance(answer.get("name"), str) and "arguments" in answer:
            return render_call(answer["name"], answer["arguments"])
        if "content" in answer or "tool_calls" in answer:
            return "\n".join(filter(None, (answer.get("content"), render_tool_calls(answer.get("tool_calls")))))
    raise UserError(
        f"{answer!r:.80} is not an answer: give the text of an assistant's turn, a message with content or tool_calls, "
        "or a call with name and arguments"
    )


def _in_openai_form(messages: Sequence[Mapping[str, str]]) -> Iterator[dict[str, Any]]:
    """Turns in the form of OpenAI's chat completions: calls apart from their text, and tools' answers by their call."""
    call = 0
    for message in messages:
        if message["role"] == "tool" and call:
            yield {"role": "tool", "tool_call_id": f"call_{call}", "content": message["content"]}
            continue
        read = read_call(message["content"]) if message["role"] == "assistant" else None
        if isinstance(read, tuple):
            call += 1
            function = {"name": read[0], "arguments": json.dumps(read[1])}
            calls = [{"id": f"call_{call}", "type": "function", "function": function}]
            yield {"role": "assistant", "content": None, "tool_calls": calls}
        else:
            yield dict(message)


class TrlDecisionEnv:
    """The manager's seat for TRL: `GRPOTrainer(environment_factory=cs.TrlDecisionEnv, ...)`. A row of the dataset has
    the column `seed`. The environment's methods are the model's tools; a model that never decides gets 0.

    All sessions of a process share one world: `TrlDecisionEnv.world = cs.DecisionEnv(...)` chooses it before training.
    """

    world: ClassVar[DecisionEnv | None] = None

    def __init__(self) -> None:
        if TrlDecisionEnv.world is None:
            TrlDecisionEnv.world = DecisionEnv()
        self._env = TrlDecisionEnv.world.another()
        self._turn = DecisionTurn()

    def reset(self, seed: int, **row: Any) -> str:
        """Begin the decision of a row; returns the manager's opening messages as text."""
        self._turn = self._env.reset(int(seed))
        return "\n\n".join(str(message["content"]) for message in self._turn.messages)

    def get_reward(self) -> float:
        """The manager's reward."""
        return self._turn.reward or 0.0 if self._turn.done else 0.0

    def consult_market_analyst(self, symbol: str) -> str:
        """Probabilities of up, flat and down for a coin.

        Args:
            symbol: the coin
        """
        return self._call("consult_market_analyst", symbol=symbol)

    def consult_risk_analyst(self, symbol: str, side: str, exposure: float) -> str:
        """A binding verdict on a proposed position.

        Args:
            symbol: the coin
            side: long, short or flat
            exposure: fraction of the decision's equity
        """
        return self._call("consult_risk_analyst", symbol=symbol, side=side, exposure=exposure)

    def consult_trader(self, symbol: str, side: str, exposure: float) -> str:
        """How the orders for an intended position are sent.

        Args:
            symbol: the coin
            side: long, short or flat
            exposure: fraction of the decision's equity
        """
        return self._call("consult_trader", symbol=symbol, side=side, exposure=exposure)

    def submit_decision(self, positions: list[dict[str, Any]]) -> str:
        """The positions to hold from the next bar on. This ends the decision.

        Args:
            positions: each with symbol, side (long, short, flat or keep) and exposure, a fraction of the equity
        """
        return self._call("submit_decision", positions=positions)

    def _call(self, name: str, **arguments: Any) -> str:
        if self._turn.done:
            return "the decision is made"
        self._turn = self._env.step({"name": name, "arguments": arguments})
        return "the decision is made" if self._turn.done else str(self._turn.messages[-1]["content"])
