"""Recordings: write the calls of a team to a file, and replay them later without a model or a connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from backend.builders.loaded_team import LoadedTeam
from backend.config.schema import TeamConfig
from cryptosentinel.conversation.budget import Price
from cryptosentinel.llm.engine import Sampling
from cryptosentinel.llm.recording import Recorder, Replay, record
from cryptosentinel.team import Team
from cryptosentinel.team_settings import TeamSettings
from simulator.errors import UserError


def recording(loaded: LoadedTeam, path: Path) -> tuple[LoadedTeam, Recorder]:
    """The team with a recorder around its engine, and the recorder, which the caller closes. Calls that the file
    already has are not made again. Raises `UserError` for a file that cannot be used."""
    price = None if loaded.price is None else asdict(loaded.price)
    settings = {"name": loaded.name, "team": asdict(loaded.team.settings), "price": price}
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
            name, Team(replay.codec, replay.policy_version, _settings(team)), replay, price, replayed=True
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path}, line 1 does not describe a team ({error}): record the run again") from error
    return loaded


def _settings(document: Mapping[str, Any]) -> TeamSettings:
    """The recorded settings."""
    typed: dict[str, Any] = {name: tuple(document[name]) for name in ("roles", "tools")}
    typed["sampling"] = Sampling(**document["sampling"])
    settings = TypeAdapter(TeamSettings).validate_python({**document, **typed})
    # What a team's configuration could not say, a recording may not say either.
    TeamConfig.model_validate(
        {name: getattr(settings, name) for name in TeamConfig.model_fields if hasattr(settings, name)}
    )
    return settings
