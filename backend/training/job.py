"""A whole training run: market, warm start, M-GRPO, and a team folder at the end that `backtest` and `evaluate`
read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from backend.config import Config, ConfigError
from backend.markets import costs_of, limits_of, split
from backend.store.store import Store
from backend.teams import TeamManifest, model_team, role_policies, team_settings, write_manifest
from backend.training.checkpoints import TrainingState
from backend.training.journal import Journal
from backend.training.queries import QueryPool
from backend.training.rollouts import RolloutSettings
from backend.training.sft import SftSettings
from backend.training.trainer import Progress, Trainer
from backend.training.warm_start import NanoSettings, Report, make_nano
from cryptosentinel.agents.registry import STANDARD
from cryptosentinel.llm.transformers_engine import TransformersEngine
from simulator.market import Market

NANO = "nano"


@dataclass(frozen=True)
class TrainingResult:
    """`state` at the end; the team is in the run's folder."""

    folder: Path
    state: TrainingState


def warm_started_base(config: Config, market: Market, folder: Path, report: Report) -> Path:
    """The base model of a run: `config.training.base_model`, or nano, made in `folder` unless it is there already."""
    if config.training.base_model:
        return Path(config.training.base_model)
    base = folder / NANO
    if not base.is_dir():
        horizon, nano = config.team.horizon_bars, config.nano
        pool = QueryPool(market, *split(market, config.market, horizon).train, horizon)
        settings = NanoSettings(
            vocab_size=nano.vocab_size,
            hidden_size=nano.hidden,
            layers=nano.layers,
            intermediate_size=nano.intermediate,
            decisions=nano.decisions,
            expert_share=nano.teacher_share,
            sft=SftSettings(steps=nano.steps, batch_tokens=nano.batch_tokens, lr=nano.learning_rate, seed=nano.seed),
        )
        make_nano(base, pool, team_settings(config.team, 1.0), settings, nano.seed, report)
    return base


def train(
    config: Config,
    market: Market,
    store: Store,
    run: str,
    folder: Path,
    report: Report,
    on_progress: Callable[[Progress], None],
) -> TrainingResult:
    """Train a team in `folder`, going on from its newest checkpoint if there is one.

    Raises `UserError` for a configuration or data that cannot be used, `RunFailed` where training cannot go on.
    """
    if config.team.roles != STANDARD:
        named, standard = ", ".join(config.team.roles), ", ".join(STANDARD)
        raise ConfigError(f"team.roles = {named}: what is trained is the team of {standard}; leave team.roles out")
    folder.mkdir(parents=True, exist_ok=True)
    training, horizon = config.training, config.team.horizon_bars
    parts = split(market, config.market, horizon)
    pools = QueryPool(market, *parts.train, horizon), QueryPool(market, *parts.validation, horizon)
    base = warm_started_base(config, market, folder, report)
    policies, codec = role_policies(base, training)
    loaded = model_team(run, policies, codec, config.team, training.temperature)
    assert isinstance(loaded.engine, TransformersEngine)
    settings = RolloutSettings(
        group_size=training.rollouts_per_query,
        paths=training.futures_paths,
        horizon=horizon,
        costs=costs_of(config.costs),
        max_leverage=config.costs.max_leverage,
        limits=limits_of(config.guard),
    )
    journal = Journal(store, run, folder)
    try:
        trainer = Trainer(training, settings, loaded.team, loaded.engine, policies, *pools, journal, folder)
        trainer.resume()
        state = trainer.run(on_progress)
    finally:
        journal.close()
    adapters = None if state.best_step is None else str(trainer.adapters(state.best_step).relative_to(folder))
    base_name = NANO if base == folder / NANO else str(base.resolve())
    write_manifest(folder, TeamManifest(base=base_name, adapters=adapters, config=config))
    return TrainingResult(folder, state)
