"""Cassettes: record the calls of a team in a folder, and replay them later without a model or a connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from backend.builders.loaded_team import LoadedTeam, team_settings
from backend.config.schema import TeamConfig
from cryptosentinel.conversation.budget import Budget, Price, SpendingLimits
from cryptosentinel.llm.cassette.engine import CallRecorder, Cassette, record
from cryptosentinel.llm.cassette.files import HEADER
from cryptosentinel.llm.endpoint.engine import EndpointEngine
from cryptosentinel.llm.engine import Sampling
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.team import Team
from cryptosentinel.team_settings import TeamSettings
from simulator.errors import UserError


def is_cassette(folder: Path) -> bool:
    """Whether calls were recorded in `folder`."""
    return (folder / HEADER).is_file()


def recording(loaded: LoadedTeam, folder: Path) -> tuple[LoadedTeam, CallRecorder]:
    """The team with a recorder around its engine, and the recorder, which the caller closes. Calls that the folder
    already has are not made again. Raises `UserError` for a folder that cannot be used."""
    in_bytes = isinstance(loaded.engine, ScriptedEngine | EndpointEngine)
    settings = {"name": loaded.name, "team": asdict(loaded.team.settings), "budget": asdict(loaded.budget)}
    recorder = record(
        loaded.engine,
        folder,
        loaded.team.codec,
        [loaded.team.manager.key, *(role.key for role in loaded.team.sub_agents.values())],
        settings,
        None if in_bytes else loaded.team.codec.tokenizer,
    )
    return replace(loaded, engine=recorder), recorder


def replayed_team(folder: Path) -> LoadedTeam:
    """The team that was recorded in `folder`: it repeats the recorded answers. Raises `UserError` if damaged."""
    cassette = Cassette(folder)
    try:
        name, team, budget = (cassette.settings[key] for key in ("name", "team", "budget"))
        if not isinstance(name, str):
            raise TypeError(f"name is {type(name).__name__}")
        loaded = LoadedTeam(
            name,
            Team(cassette.codec, cassette.policy_version, _settings(team)),
            cassette,
            _budget(budget),
            replayed=True,
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{folder / HEADER} does not describe a team ({error}): record the run anew") from error
    return loaded


def _settings(document: Mapping[str, Any]) -> TeamSettings:
    """The recorded settings. What was not a setting yet has its default, but for headlines: calls that were recorded
    before they were masked hold them as they were."""
    defaults = {**asdict(team_settings(TeamConfig(), 1.0)), "headlines": "shown"}
    typed: dict[str, Any] = {"roles": tuple(document["roles"]), "tools": tuple(document.get("tools", ()))}
    typed["sampling"] = Sampling(**document["sampling"])
    settings = TypeAdapter(TeamSettings).validate_python({**defaults, **document, **typed})
    # What a team's configuration could not say, a recording may not say either.
    TeamConfig.model_validate(
        {name: getattr(settings, name) for name in TeamConfig.model_fields if hasattr(settings, name)}
    )
    return settings


def _budget(document: Mapping[str, Any]) -> Budget:
    spans = {name: TypeAdapter(SpendingLimits).validate_python(document[name]) for name in ("decision", "day", "run")}
    return Budget(**spans, price=TypeAdapter(Price | None).validate_python(document["price"]))
