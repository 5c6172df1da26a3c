"""A market, a warm-started nano and training runs, all as small as they can be while everything still happens."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from backend.builders.teams import model_team, team_settings
from backend.config.load import config_from_dict
from backend.config.schema import Config, NanoConfig
from backend.policies.build import role_policies
from backend.store.records import RunRecord
from backend.store.store import Store
from backend.training.curriculum.queries import QueryPool
from backend.training.recorder import Journal
from backend.training.rollout.collect import RolloutSettings
from backend.training.sft.warm_start import make_nano
from backend.training.trainer import Trainer
from cryptosentinel.guard.guard import GuardLimits
from cryptosentinel.llm.local.engine import LocalEngine
from simulator.exchange.costs import Costs
from simulator.market.market import Market
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate

HORIZON = 6
TRAIN, VALIDATION = (0, 280), (286, 394)
RUN = "train-test"


@cache
def small_market() -> Market:
    """One coin, 400 bars of 4h."""
    return generate(SyntheticConfig(bars=400, seed=3, symbols=("AAAUSDT",)))


def small_config(**training: Any) -> Config:
    """Two queries of four rollouts a step; every gate open. `training` overrides that section."""
    return config_from_dict(
        {
            "team": {"horizon_bars": HORIZON},
            "training": {
                "stage1_steps": 1, "stage1_max_steps": 2, "stage2_steps": 3, "queries_per_step": 2,
                "rollouts_per_query": 4, "scenario_paths": 4, "lora_rank": 2, "validation_every": 1,
                "validation_queries": 2, "gate_format": 0.0, "rollback_format": 0.0, "warmup_steps": 1,
            } | training,
        },
        "small config",
    )  # fmt: skip


def small_nano(folder: Path, hidden: int = 64, steps: int = 200, decisions: int = 150) -> Path:
    """Write a nano that has learnt just enough of the format for every role to answer now and then."""
    nano = NanoConfig(
        vocab_size=512,
        hidden_size=hidden,
        layers=2,
        intermediate_size=2 * hidden,
        decisions=decisions,
        teacher_share=0.3,
        steps=steps,
        batch_tokens=1024,
        learning_rate=6e-3,
        seed=1,
    )
    pool = QueryPool(small_market(), *TRAIN, HORIZON)
    make_nano(folder, pool, team_settings(small_config().team, 1.0), nano, lambda what, done, total: None)
    return folder


def rollout_settings(config: Config) -> RolloutSettings:
    """Those of the config, with the exchange's defaults."""
    training = config.training
    return RolloutSettings(training.rollouts_per_query, training.scenario_paths, HORIZON, Costs(), 1.0, GuardLimits())


def open_trainer(config: Config, nano: Path, folder: Path, store: Store) -> Trainer:
    """A trainer in `folder`, as `backend.training.rl_job` builds it, resumed from its newest checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    store.add_run(RunRecord(RUN, "train", 1, small_market().content_hash, 1_700_000_000_000, {}))
    policies, codec = role_policies(nano, config.training)
    loaded = model_team(RUN, policies, codec, config.team, config.training.temperature)
    assert isinstance(loaded.engine, LocalEngine)
    pool, validation = (QueryPool(small_market(), *part, HORIZON) for part in (TRAIN, VALIDATION))
    journal = Journal(store, RUN, folder, HORIZON)
    trainer = Trainer(
        config.training,
        rollout_settings(config),
        loaded.team,
        loaded.engine,
        policies,
        pool,
        validation,
        journal,
        folder,
    )
    trainer.resume()
    return trainer


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below `folder` by its path there, but TensorBoard's, whose events carry the time."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and "tensorboard" not in path.parts]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
