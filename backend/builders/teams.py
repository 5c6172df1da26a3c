"""Teams with a model, by name: a model that is only prompted, or a trained team from the folder of its run.

What runs a model here is imported where it is used: a team at an endpoint needs no torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from backend.builders.engines import LoadedEngine, load_engine, served_engine
from backend.builders.loaded_team import LoadedTeam, scripted_team, team_settings
from backend.builders.plugins import load_plugins
from backend.config.schema import PROMPTED, SCRIPTED, Config, model_named
from backend.models.manifest import read_manifest, team_folder, team_name
from backend.policies.temporary import temporary_folder
from cryptosentinel.agents.registry import roles_of
from cryptosentinel.conversation.budget import Price
from cryptosentinel.llm.chat_format import ChatFormat
from cryptosentinel.team import Team
from cryptosentinel.team_settings import TeamConfig
from simulator.errors import UserError

if TYPE_CHECKING:
    from backend.policies.role_policies import RolePolicies


def with_prompts_for(config: TeamConfig, base: Path) -> TeamConfig:
    """`config` with the prompts that the model in `base` needs, where they are not named."""
    from cryptosentinel.llm.nano import is_nano

    if config.prompts != "auto":
        return config
    return config.model_copy(update={"prompts": "short" if is_nano(base) else "full"})


def model_team(
    name: str,
    policies: RolePolicies,
    codec: ChatFormat,
    config: TeamConfig,
    temperature: float,
    precision: str,
) -> LoadedTeam:
    """A team that uses the current weights of the policies, on our own decoder: in float32, unless `precision`
    (`training.precision`) is bfloat16."""
    import torch

    from cryptosentinel.llm.architecture import positions_of
    from cryptosentinel.llm.local.engine import LocalEngine

    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    decoder = LocalEngine(codec, policies.base_config, {}, device=policies.hardware.device, dtype=dtype)
    for role in policies.roles:
        decoder.set_weights(role, policies.merged_state(role), policies.version(role))
    settings = team_settings(config, temperature, context_tokens=positions_of(policies.base_config))
    return LoadedTeam(name, Team(codec, decoder.policy_version, settings), decoder)


def team_over(name: str, loaded: LoadedEngine, config: TeamConfig, temperature: float) -> LoadedTeam:
    """A team whose roles all use a loaded engine."""
    if config.prompts == "auto" and not loaded.knows_tools:
        config = config.model_copy(update={"prompts": "full"})
    settings = team_settings(config, temperature, context_tokens=loaded.context_tokens, tools_apart=loaded.tools_apart)
    return LoadedTeam(name, Team(loaded.codec, loaded.engine.policy_version, settings), loaded.engine)


def configured_team(name: str, config: Config, *, trained: bool = True) -> LoadedTeam:
    """The team called `name`, on the engine and with the budget of `config`: `scripted`, `model`, `model=NAME`, or a
    run's folder. A trained team takes its likeliest answers, as it was measured with.

    Raises `UserError` where there is no such team or the engine cannot run it.
    """
    load_plugins(config)
    model_of_name = model_named(name)
    if model_of_name:
        config = config.model_copy(update={"engine": config.engine.model_copy(update={"model": model_of_name})})
        name = PROMPTED
    if name == SCRIPTED:
        return scripted_team(config.team)
    loaded, model, price = _on_its_engine(name, config, trained)
    settings, notes = loaded.team.settings, list[str]()
    # A model that was not trained here samples only what its tools' schemas allow, where that can be done.
    constrained = name == PROMPTED and settings.prompts == "full" and not config.engine.at_endpoint
    if constrained:
        from cryptosentinel.llm.grammar import why_no_grammar

        trouble = why_no_grammar(loaded.team.codec)
        constrained = trouble is None
        notes.append(_on_constraints(loaded, trouble))
    temperature = settings.sampling.temperature if name == PROMPTED else 0.0
    sampling = replace(settings.sampling, constrained=constrained, temperature=temperature)
    settings = settings.model_copy(update={"sampling": sampling})
    team = Team(loaded.team.codec, loaded.team.version_of, settings)
    known = config.budget.price(model, price)
    if config.engine.at_endpoint and config.budget.max_cost and known is not None and known != Price():
        notes.append(f"{loaded.name}: its requests may cost {config.budget.max_cost:g} in all (budget.max_cost)")
    return replace(loaded, team=team, price=known, notes=tuple(notes))


def _on_constraints(loaded: LoadedTeam, trouble: str | None) -> str:
    """What was chosen for a model that was not trained here."""
    settings = loaded.team.settings
    room = f"full prompts, answers of up to {settings.sampling.max_tokens} tokens, conversations of up to "
    chosen = f"{loaded.name}: {room}{settings.context_tokens:,}"
    if trouble is not None:
        return f"{chosen}; its calls are not constrained to its tools: {trouble}"
    return f"{chosen}; it was not trained here, so it may only make calls that its tools allow"


def _on_its_engine(name: str, config: Config, trained: bool) -> tuple[LoadedTeam, str, Price | None]:
    """A team on the engine of the configuration, its model's name in the table of prices, and its shipped price."""
    if name == PROMPTED:
        prompted = load_engine(config.engine, config.budget, think=config.team.thinking_tokens > 0)
        over = team_over(f"{PROMPTED} {prompted.model}", prompted, config.team, config.training.temperature)
        return over, prompted.model, prompted.price
    if config.engine.at_endpoint:
        raise UserError(
            f"the team in {name} was trained here, so it cannot run at an endpoint (engine.kind = "
            f"{config.engine.kind}): use "
            "engine.kind=local or vllm, or --team model for the endpoint's own"
        )
    from backend.models.registry import base_of_team
    from backend.policies.adapters import export_adapter, load_versions
    from backend.policies.build import role_policies

    folder = team_folder(name)
    manifest = read_manifest(folder)
    base = base_of_team(folder, manifest, config.training.base_model)
    if config.engine.kind == "local":
        loaded = load_team(name, config.team, trained=trained, base=config.training.base_model)
        settings = loaded.team.settings
        room = min(config.engine.context_tokens or settings.context_tokens, settings.context_tokens)
        limited = settings.model_copy(update={"context_tokens": room})
        team = Team(loaded.team.codec, loaded.team.version_of, limited)
        return replace(loaded, team=team), base.resolve().name, Price()
    from cryptosentinel.llm.vllm.engine import VllmEngine  # of the extra `llm`

    think = manifest.team.thinking_tokens > 0
    served = served_engine(config.engine, base, manifest.training.lora_rank, think=think)
    assert isinstance(served.engine, VllmEngine)
    weights = manifest.weights(trained=trained)
    if weights is not None:
        policies, _ = role_policies(base, manifest.training, roles=roles_of(manifest.team.roles))
        load_versions(policies, folder / weights)
        exported = temporary_folder("adapters")
        for role in policies.roles:
            adapter = export_adapter(policies, role, exported / policies.version(role))
            served.engine.publish(role, adapter.version, adapter.folder)
    working = manifest.team.model_copy(update={"tools": config.team.tools})
    return team_over(_label(folder, trained), served, working, manifest.model.temperature), served.model, Price()


def _label(folder: Path, trained: bool) -> str:
    return team_name(folder) if trained else "warm_started"


def load_team(name: str, config: TeamConfig, *, trained: bool = True, base: str = "") -> LoadedTeam:
    """`scripted`, or the folder of a training run; with `trained` False the team as the run began.

    The scripted team uses `config`. A trained team keeps the settings it was trained with, except `tools`, which
    only the user may name. `base` is the user's name of a base model that
    does not lie in the team's folder. Raises `UserError` for a folder that holds no team.
    """
    if name == SCRIPTED:
        return scripted_team(config)
    from backend.models.registry import base_of_team
    from backend.policies.adapters import load_versions
    from backend.policies.build import role_policies

    folder = team_folder(name)
    manifest = read_manifest(folder)
    load_plugins(Config(team=manifest.team))
    policies_base = base_of_team(folder, manifest, base)
    policies, codec = role_policies(
        policies_base,
        manifest.training,
        think=manifest.team.thinking_tokens > 0,
        roles=roles_of(manifest.team.roles),
    )
    weights = manifest.weights(trained=trained)
    if weights is not None:
        load_versions(policies, folder / weights)
    given = {"tools": config.tools}
    settings = with_prompts_for(manifest.team.model_copy(update=given), policies_base)
    temperature = manifest.model.temperature
    return model_team(_label(folder, trained), policies, codec, settings, temperature, manifest.model.precision)
