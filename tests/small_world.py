"""A market, a warm-started nano and training runs, all as small as they can be while everything still happens."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.builders.loaded_team import team_settings
from backend.builders.teams import model_team
from backend.config.load import config_from_dict
from backend.config.schema import Config, NanoConfig
from backend.models.manifest import TeamManifest, write_manifest
from backend.policies.adapters import save_versions
from backend.policies.build import role_policies
from backend.policies.role_policies import RolePolicies
from backend.store.records import RunRecord
from backend.store.run_record import recorded_run
from backend.store.store import Store
from backend.training.checkpoints import TrainingState
from backend.training.components import TrainingParts
from backend.training.curriculum.queries import QueryPool, gross_limit
from backend.training.in_process import local_learners, local_trainer
from backend.training.learning.learner import Learner
from backend.training.recorder import TrainingRecorder
from backend.training.rl_job import run_rl, training_parts
from backend.training.rollout.collect import RolloutSettings
from backend.training.sft.warm_start import make_nano
from backend.training.trainer import Progress, Trainer
from cryptosentinel.agents.registry import roles_of
from cryptosentinel.llm.engine import Engine
from cryptosentinel.llm.local.engine import LocalEngine
from simulator.errors import Interrupted
from simulator.exchange.costs import Costs
from simulator.market.market import Market
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.standard_limits import guard_limits

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


def smaller_config(**training: Any) -> Config:
    """`small_config` with two rollouts of a query, for tests to which their number is nothing."""
    return small_config(**{"rollouts_per_query": 2, "scenario_paths": 2} | training)


def small_nano(folder: Path, hidden: int = 64, steps: int = 200, decisions: int = 150) -> Path:
    """Write a nano that has learnt just enough of the format for every role to answer now and then."""
    nano = NanoConfig(hidden_size=hidden, layers=2, decisions=decisions, teacher_share=0.3, steps=steps)
    pool = QueryPool(small_market(), *TRAIN, HORIZON)
    make_nano(folder, [pool], team_settings(small_config().team, 1.0), nano, 1, lambda what, done, total: None)
    return folder


def rollout_settings(config: Config) -> RolloutSettings:
    """Those of the config, with the exchange's defaults."""
    training = config.training
    return RolloutSettings(training.rollouts_per_query, training.scenario_paths, HORIZON, Costs(), 1.0, guard_limits())


@dataclass(frozen=True)
class SmallTraining:
    """A trainer in one process, and what it is composed of."""

    trainer: Trainer
    parts: TrainingParts
    learners: dict[str, Learner]

    @property
    def state(self) -> TrainingState:
        return self.trainer.state

    @property
    def policies(self) -> RolePolicies:
        return self.parts.policies

    @property
    def engine(self) -> Engine:
        return self.parts.engine

    @property
    def recorder(self) -> TrainingRecorder:
        return self.parts.recorder

    def run(self) -> TrainingState:
        return self.trainer.run()

    def step(self) -> dict[str, float]:
        return self.trainer.step()

    def publish(self) -> None:
        """Let the engine answer with the policies as they are."""
        self.parts.publisher.publish(self.policies.roles)


def open_trainer(config: Config, nano: Path, folder: Path, store: Store, stage: int = 1) -> SmallTraining:
    """A trainer in `folder`, as `backend.training.rl_job` builds it, resumed from its newest checkpoint; without one it
    begins in `stage`."""
    folder.mkdir(parents=True, exist_ok=True)
    store.resume_run(RunRecord(RUN, "train", 1, small_market().content_hash, 1_700_000_000_000, {}))
    policies, codec = role_policies(nano, config.training)
    loaded = model_team(RUN, policies, codec, config.team, config.training.temperature, config.training.precision)
    assert isinstance(loaded.engine, LocalEngine)
    pool, validation = (
        QueryPool(small_market(), *part, HORIZON, gross_limit=gross_limit(config)) for part in (TRAIN, VALIDATION)
    )
    recorder = TrainingRecorder(store, RUN, folder)
    parts = TrainingParts(
        config.training,
        rollout_settings(config),
        loaded.team,
        loaded.engine,
        policies,
        pool,
        validation,
        recorder,
        folder,
    )
    learners = local_learners(parts)
    trainer = local_trainer(parts, learners)
    if not trainer.resume():
        trainer.state.stage = stage
    return SmallTraining(trainer, parts, learners)


def one_process_trainer(config: Config, market: Market, store: Store, folder: Path, base: Path) -> Trainer:
    """The trainer of the run `RUN` in one process, as `backend.training.rl_job.train` has it."""
    parts = training_parts(config, market, store, RUN, folder, base, folder)
    return local_trainer(parts, local_learners(parts))


def train_as_told(
    config: Config, folder: Path, store: Store, stop_after: int | None = None, market: Market | None = None
) -> None:
    """The training run `RUN` as the command line does it; Ctrl-C comes after `stop_after` steps."""

    def stop(progress: Progress) -> None:
        if progress.step == stop_after:
            raise KeyboardInterrupt

    market = market or small_market()
    with recorded_run(store, RUN, "train", 1, market.content_hash, config, resumes=True):
        run_rl(config, market, store, RUN, folder, lambda what, done, total: None, stop)


def records_of(store: Store, steps: int) -> list[Any]:
    """What the run `RUN` stored of its first steps, but for its metrics."""
    found: list[Any] = []
    for step in range(steps):
        found += [*store.queries(RUN, step), *store.rollouts(RUN, step)]
        found += [*store.trajectories(RUN, step), *store.rewards(RUN, step)]
    return found


def train_and_resume(config: Config, folder: Path, stop_after: int, market: Market | None = None) -> list[Any]:
    """Train in `folder / "whole"` at a stretch and in `folder / "cut"` with an interrupt; both must leave the same
    files and records. The records."""
    with Store.open("mem://") as whole, Store.open("mem://") as cut:
        train_as_told(config, folder / "whole", whole, market=market)
        with pytest.raises(Interrupted):
            train_as_told(config, folder / "cut", cut, stop_after, market)
        train_as_told(config, folder / "cut", cut, market=market)
        steps = len(whole.metrics(RUN))
        assert records_of(whole, steps) == records_of(cut, steps)
        mine, theirs = tree(folder / "whole"), tree(folder / "cut")
        if Path(config.training.base_model).is_dir():  # the manifest names it by its place relative to the folder
            assert mine.pop("team.json") and theirs.pop("team.json")
        assert mine == theirs
        return records_of(whole, steps)


class Files(dict[str, bytes]):
    """Contents by name, shown by their sizes and checksums: where two differ, pytest compares what is shown, and bytes
    of tables would take it an hour."""

    def __repr__(self) -> str:
        return "\n".join(
            f"{name}: {len(content)} bytes, {sha256(content).hexdigest()}" for name, content in self.items()
        )


def tree(folder: Path, hidden: str = "") -> Files:
    """Every file below `folder` by its path there, but TensorBoard's, whose events carry the time. `hidden` is left out
    of the contents, as a run's name."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and "tensorboard" not in path.parts]
    return Files({str(path.relative_to(folder)): path.read_bytes().replace(hidden.encode(), b"") for path in files})


def disturb(policies: RolePolicies, *roles: str, size: float = 0.02, seed: int = 3) -> RolePolicies:
    """Other weights for these roles, else for every one, near the former ones: the same on any hardware. At their start
    half of the gradient of an adapter is 0."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in (one for role in roles or policies.roles for one in policies.trainable(role)):
            parameter.add_(size * torch.randn(parameter.shape, generator=rng).to(parameter.device))
    return policies


def team_in(folder: Path, nano: Path, **training: Any) -> Path:
    """A team as `train` leaves it, over a nano of its own."""
    shutil.copytree(nano, folder / "nano")
    config = small_config(**training)
    policies, _ = role_policies(folder / "nano", config.training, roles=roles_of(config.team.roles))
    save_versions(disturb(policies), folder / "adapters" / "step-000007", folder.name, 7)
    write_manifest(folder, TeamManifest.of(config, base="nano", adapters="adapters/step-000007"))
    return folder
