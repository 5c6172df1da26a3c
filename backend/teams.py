"""Teams by name: the scripted one, or one that was trained, read from the folder of its run."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from backend.config import Config, Section, TeamConfig, TrainingConfig
from backend.training.policies import LoraSettings, RolePolicies
from cryptosentinel.agents.registry import ROLES
from cryptosentinel.llm.engine import Engine, Sampling
from cryptosentinel.llm.nano import load_model
from cryptosentinel.llm.scripted_engine import ScriptedEngine
from cryptosentinel.llm.tokens import ChatCodec, make_byte_codec
from cryptosentinel.llm.transformers_engine import TransformersEngine
from cryptosentinel.teacher import expert_policies
from cryptosentinel.team import Team, TeamSettings
from simulator.errors import UserError

MANIFEST = "team.json"
SCRIPTED = "scripted"
UNMASKED = ", unmasked"  # behind the name of a team that is also shown what the coins are called


class TeamManifest(Section):
    """What `team.json` says: where base model and adapters are, relative to it, and the configuration of the run."""

    base: str
    adapters: str | None
    config: Config


@dataclass(frozen=True)
class LoadedTeam:
    """A team ready to decide."""

    name: str
    team: Team
    engine: Engine

    def renamed(self, name: str) -> LoadedTeam:
        """The same team under another name."""
        return replace(self, name=name)

    def unmasked(self) -> LoadedTeam:
        """The same team, which is shown the coins' names and the dates."""
        settings = replace(self.team.settings, mask_symbols=False)
        team = Team(self.team.codec, self.team.version_of, settings)
        return replace(self, name=f"{self.name}{UNMASKED}", team=team)

    def at_temperature(self, temperature: float) -> LoadedTeam:
        """The same team sampled at another temperature; 0 is greedy."""
        settings = replace(self.team.settings, sampling=replace(self.team.settings.sampling, temperature=temperature))
        return replace(self, team=Team(self.team.codec, self.team.version_of, settings))


def team_settings(config: TeamConfig, temperature: float) -> TeamSettings:
    """The team's settings as its configuration has them."""
    return TeamSettings(
        horizon_bars=config.horizon_bars,
        mask_symbols=config.mask_symbols,
        schemas_in_prompt=config.schemas_in_prompt,
        memory=config.memory,
        roles=config.roles,
        retries=config.retries,
        sampling=Sampling(temperature=temperature, max_tokens=config.max_tokens),
    )


def scripted_team(config: TeamConfig) -> LoadedTeam:
    """The team of expert rules; needs no model."""
    engine = ScriptedEngine(make_byte_codec(), expert_policies())
    team = Team(make_byte_codec(), engine.policy_version, team_settings(config, 1.0))
    return LoadedTeam(SCRIPTED, team, engine)


def role_policies(base: Path, training: TrainingConfig) -> tuple[RolePolicies, ChatCodec]:
    """Base model and tokenizer in `base`, with an untrained adapter (or a copy) per role. Raises `UserError`."""
    model, tokenizer = load_model(base)
    lora = LoraSettings(r=training.lora_rank, alpha=2 * training.lora_rank)
    policies = RolePolicies(model, list(ROLES), training.weights, lora, training.seed)
    return policies, ChatCodec(tokenizer)


def model_team(
    name: str, policies: RolePolicies, codec: ChatCodec, config: TeamConfig, temperature: float
) -> LoadedTeam:
    """A team that thinks with the policies as they are now."""
    engine = TransformersEngine(codec, policies.base_config, {})
    for role in policies.roles:
        engine.set_weights(role, policies.merged_state(role), policies.version(role))
    return LoadedTeam(name, Team(codec, engine.policy_version, team_settings(config, temperature)), engine)


def write_manifest(folder: Path, manifest: TeamManifest) -> None:
    """Make `folder` one that `load_team` reads."""
    (folder / MANIFEST).write_text(json.dumps(manifest.model_dump(mode="json"), indent=2) + "\n")


def read_manifest(folder: Path) -> TeamManifest:
    """The manifest in `folder`. Raises `UserError` for a folder that holds no team."""
    path = folder / MANIFEST
    if not path.is_file():
        raise UserError(
            f"no team '{folder}': give 'scripted' or the folder of a finished training run (one that holds {MANIFEST})"
        )
    try:
        return TeamManifest.model_validate_json(path.read_text())
    except (OSError, ValidationError) as error:
        raise UserError(f"{path} cannot be used: {error}. Give the folder of a finished training run") from error


def load_team(name: str, config: TeamConfig, *, trained: bool = True) -> LoadedTeam:
    """`scripted`, or the folder of a training run; with `trained` False the team as the run began, without adapters.

    `config` is used by the scripted team; a trained one works as it was trained, but for its memory, which training
    never uses. Raises `UserError` for a folder that holds no team.
    """
    if name == SCRIPTED:
        return scripted_team(config)
    folder = Path(name)
    manifest = read_manifest(folder)
    own = manifest.config
    policies, codec = role_policies(folder / manifest.base, own.training)
    if trained and manifest.adapters is not None:
        policies.load(folder / manifest.adapters)
    label = folder.resolve().name if trained else "warm_started"
    settings = own.team.model_copy(update={"memory": config.memory})
    return model_team(label, policies, codec, settings, own.training.temperature)
