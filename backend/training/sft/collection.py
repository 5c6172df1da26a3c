"""Collection: what each role said about the same states, K times over, with its score; the raw stuff of a data set.

The manager is heard in rollouts of the whole team and scored by their outcome. The sub-agents are asked directly, the
same question K times, since only answers to one question can be compared, and scored by their expert scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from backend.builders.loaded_team import LoadedTeam, team_settings
from backend.builders.teams import load_team, model_team
from backend.config.schema import SCRIPTED, Config
from backend.policies.role_policies import RolePolicies
from backend.training.algorithm.trajectory import Trajectory
from backend.training.curriculum.queries import Query
from backend.training.rollout.collect import RolloutSettings, collect, practise
from backend.training.sft.conversations import messages_of
from cryptosentinel.conversation.transcript import Transcript
from cryptosentinel.llm.chat_format import ChatFormat, ChatMessages
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.scripted_team import expert_policies
from cryptosentinel.team import Team, derive_seed
from simulator.errors import UserError

WARM_START = "warm_start"


ROLLOUTS = 4  # K: conversations of each source on the same state and question


@dataclass(frozen=True)
class Source:
    """A team that is listened to, `rollouts` times on each state."""

    loaded: LoadedTeam
    rollouts: int


@dataclass(frozen=True)
class ScoredConversation:
    """One conversation of a role about a state.

    `score` is in [0, 1]; None where the answer was invalid or nothing that could be measured came of it. Only
    conversations about the same `state` with the same `question` can be compared. Invalid ones have no `messages`.
    `symbol` is the coin that was asked about; of a portfolio's manager all coins, and `exposure` what is held net.
    `tools` are the schemas in the system turn, which `messages` leave out.
    """

    role: str
    source: str
    state: str
    symbol: str
    bar: int
    exposure: float
    question: str
    rollout: int
    valid: bool
    score: float | None
    messages: ChatMessages
    tools: Sequence[Mapping[str, Any]] = ()


def sources_of(names: Sequence[str], config: Config, policies: RolePolicies, codec: ChatFormat) -> list[Source]:
    """The teams behind the names: 'scripted', 'warm_start' (the base as it is), or the folder of a trained team.

    The scripted team always says the same, so it has one rollout only. All teams are asked with the horizon and the
    masking of `config`. Raises `UserError` for a folder that holds no team.
    """
    sources: list[Source] = []
    for name in names:
        if name == SCRIPTED:
            sources.append(Source(_scripted(codec, config), 1))
        elif name == WARM_START:
            training = config.training
            loaded = model_team(WARM_START, policies, codec, config.team, training.temperature, training.precision)
            sources.append(Source(loaded, ROLLOUTS))
        else:
            loaded = load_team(name, config.team, base=config.training.base_model)
            if loaded.team.settings.portfolio != config.team.portfolio:
                trained = str(loaded.team.settings.portfolio).lower()
                raise UserError(
                    f"the team in {name} was trained with team.portfolio = {trained}: set the same here, or leave the "
                    "team out"
                )
            asked = loaded.team.settings.model_copy(update={"horizon_bars": config.team.horizon_bars})
            team = Team(loaded.team.codec, loaded.team.version_of, asked)
            sources.append(Source(replace(loaded, name=name, team=team), ROLLOUTS))
    return sources


def collect_conversations(
    source: Source, queries: Sequence[Query], settings: RolloutSettings, seed: int
) -> list[ScoredConversation]:
    """Everything that the roles of a source say about `queries`: the manager in rollouts, the others in practice."""
    loaded = source.loaded
    asked = replace(settings, rollouts_per_query=source.rollouts)
    codec = loaded.team.codec
    said: list[ScoredConversation] = []
    for group in collect(loaded.team, loaded.engine, queries, asked, derive_seed(seed, loaded.name)):
        for rollout in group:
            manager = rollout.decision.manager
            score = rollout.outcome.score if rollout.main.valid else None
            said.append(_scored_conversation(loaded.name, codec, rollout.query, rollout.number, manager, score))
    for practices in practise(loaded.team, loaded.engine, queries, asked, derive_seed(seed, loaded.name)):
        for practice in practices:
            for transcript, sub in zip(practice.transcripts, practice.subs, strict=True):
                said.append(
                    _scored_conversation(loaded.name, codec, practice.query, practice.number, transcript, _expert(sub))
                )
    return said


def _expert(trajectory: Trajectory) -> float | None:
    return trajectory.expert if trajectory.valid else None


def _scripted(codec: ChatFormat, config: Config) -> LoadedTeam:
    """The scripted team in the tokens of `codec`."""
    engine = ScriptedEngine(codec, expert_policies(config.team.roles, portfolio=config.team.portfolio))
    return LoadedTeam(SCRIPTED, Team(codec, engine.policy_version, team_settings(config.team, 1.0)), engine)


def _scored_conversation(
    source: str, codec: ChatFormat, query: Query, number: int, transcript: Transcript, score: float | None
) -> ScoredConversation:
    brief, held = transcript.brief, query.exposures()
    coins = [brief["symbol"]] if brief else list(query.symbols)  # the manager is asked nothing
    whole = transcript.valid and transcript.retries == 0  # nobody is to learn the turns that were wrong
    return ScoredConversation(
        role=transcript.role,
        source=source,
        state=query.key,
        symbol=" ".join(coins),
        bar=query.bar,
        exposure=sum(held[symbol] for symbol in coins),
        question=" ".join(str(brief[key]) for key in ("symbol", "side", "exposure") if key in brief),
        rollout=number,
        valid=whole,
        score=score,
        messages=messages_of(codec, transcript) if whole else [],
        tools=transcript.tools if whole else (),
    )
