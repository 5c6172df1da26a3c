"""A whole training run: market, warm start, M-GRPO, and a team folder at the end that `backtest` and `evaluate`
read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from backend.builders.plugins import load_plugins, reward_of
from backend.builders.spans import spans_trained_on
from backend.config.schema import Config, ConfigError
from backend.models.manifest import TeamManifest, write_manifest
from backend.models.registry import START
from backend.models.shape import Shape, architecture_of
from backend.policies.hardware import hardware_of, machine_memory
from backend.processes import ALONE, Workers, WorkReport, cores
from backend.store.store import Store
from backend.training.checkpoints import TrainingState
from backend.training.chosen_recipe import credit_of, recipe_of
from backend.training.components import TrainingParts
from backend.training.in_process import helper_gradients, local_learners, local_trainer
from backend.training.memory_estimate import require
from backend.training.recorder import TrainingRecorder
from backend.training.rollout.sharding import begun_parts
from backend.training.rollout.shared_shards import TrainingPlace
from backend.training.start import NANO, begin, require_start, start_of
from backend.training.trainer import Progress, Trainer
from backend.training.wandb_logger import require_wandb, wandb_project
from cryptosentinel.agents.registry import STANDARD, SUB_AGENTS, roles_of, team_of
from cryptosentinel.llm.model_files import read_config
from simulator.market.market import Market
from simulator.synthetic.oracle import MOST_COINS


@dataclass(frozen=True)
class TrainingResult:
    """`state` at the end; the team is in the run's folder."""

    folder: Path
    state: TrainingState


def run_rl(
    config: Config,
    market: Market,
    store: Store,
    run: str,
    folder: Path,
    report: WorkReport,
    on_progress: Callable[[Progress], None],
    workers: Workers = ALONE,
) -> TrainingResult:
    """Train a team in `folder`, continuing from its newest checkpoint if there is one. The result does not depend on
    how many `workers` there are.

    Raises `UserError` for a configuration or data that cannot be used or a model that this machine has no room for,
    `RunFailed` where training cannot continue.
    """
    check_ready(config)
    folder.mkdir(parents=True, exist_ok=True)
    base = begin(config, market, folder, report, workers)
    _require_memory(config, Shape.of(read_config(base)))
    parts = training_parts(config, market, store, run, folder, base, folder, workers)
    gradients = helper_gradients(parts)
    trainer = local_trainer(parts, local_learners(parts, gradients), gradients)
    try:
        trainer.resume()
        state = trainer.run(on_progress)
    finally:
        parts.recorder.close()
    write_team(config, folder, base, trainer, market)
    return TrainingResult(folder, state)


def training_parts(
    config: Config,
    market: Market,
    store: Store,
    run: str,
    folder: Path,
    base: Path,
    metrics_folder: Path,
    workers: Workers = ALONE,
) -> TrainingParts:
    """What trains or rolls out over the base model in `base`, with the weights that the run in `folder` begins with;
    the files of its metrics go to `metrics_folder`. `workers` share the shards of a step."""
    start = start_of(config.training, folder)
    rolling = begun_parts(config, market, run, base, start)
    recorder = TrainingRecorder(store, run, metrics_folder, wandb_project(), config.store.keep)
    place = TrainingPlace(config, base, start)
    return TrainingParts(**vars(rolling), recorder=recorder, folder=folder, workers=workers, place=place)


def write_team(config: Config, folder: Path, base: Path, trainer: Trainer, market: Market) -> None:
    """Make the run's folder one that `load_team` reads: the base, the adapters of the best validation, and which bars
    of the `market` all of it was learnt from."""
    best = trainer.state.best_step
    adapters = None if best is None else str(trainer.adapters(best).relative_to(folder))
    base_name = NANO if base == folder / NANO else os.path.abspath(base)
    start = START if config.training.start_from else None
    trained_on = spans_trained_on(config, market, None if start is None else folder / start)
    places = {"base": base_name, "adapters": adapters, "start": start}
    write_manifest(folder, TeamManifest.of(config, **places, trained_on=trained_on))


def processes_for(config: Config) -> int:
    """How many processes share a training on this machine: one a core and no more than it has shards. One alone where a
    model server answers or a GPU computes."""
    training = config.training
    if config.engine.kind != "local" or hardware_of(training).kind != "cpu":
        return 1
    return min(cores(), training.shards)


def check_ready(config: Config) -> None:
    """Raise `UserError` for a training that cannot be done as it is configured, or not on this machine."""
    check_trainable(config)
    require_wandb()
    hardware_of(config.training)


def check_training(config: Config) -> None:
    """As `check_ready`, and raise `UserError` where the base or the team to begin with cannot be had or does not fit
    here: a new run is refused before anything of it is created."""
    check_ready(config)
    require_start(config.training)
    _require_memory(config, Shape.of(architecture_of(config.training, config.nano)))


def _require_memory(config: Config, shape: Shape) -> None:
    hardware = hardware_of(config.training)
    require(config, shape, hardware.kind, machine_memory(hardware.device))


def check_trainable(config: Config) -> None:
    """Raise `ConfigError` for a team that is not trained, settings about roles that are not in it, an engine whose
    samples cannot be trained on, or a market that is kept for a headline. Raises `UserError` for a team that cannot
    be."""
    load_plugins(config)
    reward_of(config.training)
    recipe_of(config.training)
    credit_of(config.training)
    for problem in _of_the_team(config):
        raise ConfigError(problem)
    if config.training.scenario_source == "beliefs" and not config.market.data and config.market.coins > MOST_COINS:
        raise ConfigError(
            f"training.scenario_source = 'beliefs' is for {MOST_COINS} coins at most, and market.coins = "
            f"{config.market.coins}: use 'truth', or fewer coins"
        )
    if config.engine.at_endpoint:
        raise ConfigError(
            f"engine.kind = {config.engine.kind} gives no log-probs of what its model sampled, so it cannot be "
            "trained: use local or vllm"
        )
    if (
        config.engine.kind == "vllm"
        and not (config.engine.url or config.engine.gpu_share)
        and hardware_of(config.training).kind == "cuda"
    ):
        raise ConfigError(
            "engine.kind = vllm reserves nine tenths of the GPU that the training is to use, too: set "
            "engine.gpu_share, for example to 0.4, or start the server on another GPU and name it in engine.url"
        )
    if config.engine.kind == "vllm" and config.training.weights == "full":
        raise ConfigError(
            "engine.kind = vllm takes adapters, and training.lora_rank = 0 has none: set a rank, or engine.kind = local"
        )


def _of_the_team(config: Config) -> Iterator[str]:
    """What `team.roles` and the settings of the training say that cannot both be meant, each with both names.

    Learning rates and practice of absent roles are not read and do no harm: presets name them.
    """
    training, sub_agents = config.training, config.team.roles
    team_of(sub_agents, tools=config.team.tools)
    team = roles_of(sub_agents)
    named = f"team.roles = '{','.join(sub_agents)}'"
    for role in sub_agents:
        if role not in STANDARD and SUB_AGENTS[f"consult_{role}"].score is None:
            yield (
                f"{named}: nothing scores what {role} says, so it cannot be trained; what is trained is the manager "
                f"with any of {', '.join(STANDARD)}, and roles with a score of their own"
            )
    for role in training.freeze:
        if role not in team:
            yield f"training.freeze lists {role}, which {named} leaves out: take it out of the one or into the other"
    if set(team) <= set(training.freeze):
        yield f"training.freeze names every role that {named} has: there is nothing to train"
    known = [one.key for one in SUB_AGENTS.values()]
    for role in sorted(set(training.practice) - set(known)):
        yield f"training.practice: '{role}' is not a sub-agent; there are {', '.join(known)}"
    if training.credit != "broadcast" and not {"risk_analyst", "trader"} & set(sub_agents):
        yield (
            f"training.credit = '{training.credit}' is for binding answers, and {named} has neither "
            "risk_analyst nor trader: use 'broadcast'"
        )
    if not sub_agents:
        for key in ("alignment", "beta"):
            if getattr(training, key) != type(training).model_fields[key].default:
                yield f"training.{key} is about sub-agents, and {named} is a single agent: leave training.{key} out"
