"""A team that is ready to decide, its settings, and the scripted team, which needs no model. No torch is imported."""

from __future__ import annotations

from dataclasses import dataclass, replace

from backend.config.schema import SCRIPTED, TeamConfig
from cryptosentinel.conversation.budget import FREE, Price
from cryptosentinel.llm.chat_codec import make_byte_codec
from cryptosentinel.llm.engine import Engine, Sampling
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.scripted_team import expert_policies
from cryptosentinel.teachers import Teacher
from cryptosentinel.team import Team
from cryptosentinel.team_settings import TeamSettings

UNMASKED = ", unmasked"  # added to the name of a team that sees the real symbols and dates


@dataclass(frozen=True)
class LoadedTeam:
    """A team that is ready to decide, and the price of its model; None where that is not known. `replayed`: its
    answers are those of a recording. `notes`: what was chosen for it, for the reader of its results."""

    name: str
    team: Team
    engine: Engine
    price: Price | None = FREE
    replayed: bool = False
    notes: tuple[str, ...] = ()

    def renamed(self, name: str) -> LoadedTeam:
        """The same team under another name."""
        return replace(self, name=name)

    def unmasked(self) -> LoadedTeam:
        """The same team with the real symbols and dates in its prompts."""
        settings = replace(self.team.settings, mask_symbols=False)
        team = Team(self.team.codec, self.team.version_of, settings)
        return replace(self, name=f"{self.name}{UNMASKED}", team=team)

    def at_temperature(self, temperature: float) -> LoadedTeam:
        """The same team sampled at another temperature; 0 is greedy."""
        settings = replace(self.team.settings, sampling=replace(self.team.settings.sampling, temperature=temperature))
        return replace(self, team=Team(self.team.codec, self.team.version_of, settings))


def team_settings(
    config: TeamConfig, temperature: float, *, context_tokens: int = 0, tools_apart: bool = False
) -> TeamSettings:
    """The team's settings from its configuration; prompts that are not named are short ones.

    `context_tokens` is a limit of its model; with `tools_apart` its engine hands the tools to the model by itself.
    """
    full = config.prompts == "full"
    return TeamSettings(
        horizon_bars=config.horizon_bars,
        mask_symbols=config.mask_symbols,
        prompts="full" if full else "short",
        schemas_in_prompt=full and not tools_apart,
        roles=config.roles,
        inherit_tools=config.inherit_tools,
        portfolio=config.portfolio,
        retries=config.retries,
        question_price_bps=config.question_price,
        tools=config.tools,
        pooled_trend=config.pooled_trend,
        context_tokens=context_tokens,
        sampling=Sampling(
            temperature=temperature, max_tokens=config.answer_tokens(full), thinking_tokens=config.thinking_tokens
        ),
    )


def scripted_team(config: TeamConfig, teacher: Teacher = "expert") -> LoadedTeam:
    """The team of expert rules, or of another teacher's (`expert_policies`); needs no model."""
    policies = expert_policies(config.roles, portfolio=config.portfolio, teacher=teacher, inherits=config.inherit_tools)
    engine = ScriptedEngine(make_byte_codec(), policies)
    team = Team(make_byte_codec(), engine.policy_version, team_settings(config, 1.0))
    return LoadedTeam(SCRIPTED, team, engine)
