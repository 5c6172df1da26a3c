"""A team that is ready to decide, its settings, the scripted team, which needs no model, and recordings: the calls of a
team in a file, which are replayed without a model or a connection. No torch is imported."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from backend.config.schema import SCRIPTED
from cryptosentinel.conversation.budget import FREE, Price
from cryptosentinel.llm.chat_codec import make_byte_codec
from cryptosentinel.llm.engine import Engine, Sampling
from cryptosentinel.llm.recording import Recorder, Replay, record
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.scripted_team import expert_policies
from cryptosentinel.teachers import Teacher
from cryptosentinel.team import Team
from cryptosentinel.team_settings import TeamConfig, TeamSettings
from simulator.errors import UserError

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
        settings = self.team.settings.model_copy(update={"mask_symbols": False})
        team = Team(self.team.codec, self.team.version_of, settings)
        return replace(self, name=f"{self.name}{UNMASKED}", team=team)

    def at_temperature(self, temperature: float) -> LoadedTeam:
        """The same team sampled at another temperature; 0 is greedy."""
        sampling = replace(self.team.settings.sampling, temperature=temperature)
        settings = self.team.settings.model_copy(update={"sampling": sampling})
        return replace(self, team=Team(self.team.codec, self.team.version_of, settings))


def team_settings(
    config: TeamConfig, temperature: float, *, context_tokens: int = 0, tools_apart: bool = False
) -> TeamSettings:
    """The team's settings from its configuration; prompts that are not named are short ones.

    `context_tokens` is a limit of its model; with `tools_apart` its engine hands the tools to the model by itself.
    """
    full = config.prompts == "full"
    sampling = Sampling(
        temperature=temperature, max_tokens=config.answer_tokens(full), thinking_tokens=config.thinking_tokens
    )
    chosen = {"prompts": "full" if full else "short", "schemas_in_prompt": full and not tools_apart}
    added = {"context_tokens": context_tokens, "sampling": sampling}
    return TeamSettings.model_validate({**dict(config), **chosen, **added})


def scripted_team(config: TeamConfig, teacher: Teacher = "expert") -> LoadedTeam:
    """The team of expert rules, or of another teacher's (`expert_policies`); needs no model."""
    policies = expert_policies(config.roles, portfolio=config.portfolio, teacher=teacher, inherits=config.inherit_tools)
    engine = ScriptedEngine(make_byte_codec(), policies)
    team = Team(make_byte_codec(), engine.policy_version, team_settings(config, 1.0))
    return LoadedTeam(SCRIPTED, team, engine)


def recording(loaded: LoadedTeam, path: Path) -> tuple[LoadedTeam, Recorder]:
    """The team with a recorder around its engine, and the recorder, which the caller closes. Calls that the file
    already has are not made again. Raises `UserError` for a file that cannot be used."""
    price = None if loaded.price is None else asdict(loaded.price)
    settings = {"name": loaded.name, "team": loaded.team.settings.model_dump(mode="json"), "price": price}
    roles = [loaded.team.manager.key, *(role.key for role in loaded.team.sub_agents.values())]
    recorder = record(loaded.engine, path, loaded.team.codec, roles, settings)
    return replace(loaded, engine=recorder), recorder


def replayed_team(path: Path) -> LoadedTeam:
    """The team that was recorded in `path`: it repeats the recorded answers. Raises `UserError` if damaged."""
    replay = Replay(path)
    try:
        name, team, stated = (replay.settings[key] for key in ("name", "team", "price"))
        if not isinstance(name, str):
            raise TypeError(f"name is {type(name).__name__}")
        price = TypeAdapter(Price | None).validate_python(stated)
        loaded = LoadedTeam(
            name,
            Team(replay.codec, replay.policy_version, TeamSettings.model_validate_json(json.dumps(team))),
            replay,
            price,
            replayed=True,
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path}, line 1 does not describe a team ({error}): record the run again") from error
    return loaded
