"""Training by services equals training in one loop, to the bit, however often they die and however files travel."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from backend.config.schema import Config
from backend.distributed.driver import CoordinatorState
from backend.distributed.files import RunFiles
from backend.distributed.role_trainer import RoleTrainerService
from backend.store.records import TrajectoryRecord
from backend.store.store import Store
from backend.training.trainer import Trainer
from cryptosentinel.agents.registry import ROLES
from simulator.errors import RunFailed
from tests.backend.distributed.services_here import Crash, begin_run, last_parameters, mortal, open_run
from tests.small_world import RUN, one_process_trainer, records_of, small_market, smaller_config

STEPS = 3  # one of stage 1, two of stage 2; test_ray.py has six


def config_of(nano: Path, **training: Any) -> Config:
    options = {"base_model": str(nano), "stage1_max_steps": 1, "stage2_steps": STEPS - 1, "shards": 2}
    # What a role's trainer must remember from step to step, and what changes from step to step.
    options |= {"alignment": "duplicate_drop", "lr_end": 0.1}
    return smaller_config(**options | training)


@pytest.fixture(scope="module")
def joint(nano: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Trainer, list[Any]]:
    """The same training in one loop: its folder, the trainer at its end, and all that it stored."""
    folder = tmp_path_factory.mktemp("joint")
    with Store.open("mem://") as opened:
        config = config_of(nano)
        begin_run(opened, config)
        trainer = one_process_trainer(config, small_market(), opened, folder, nano)
        trainer.run()
        return folder, trainer, records_of(opened, STEPS)


def metrics(folder: Path) -> list[dict[str, Any]]:
    """All metrics but those of how busy the engine was: they are lost with the process that they are of."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if not name.startswith("engine/")} for line in lines]


def assert_equal_to(joint: tuple[Path, Trainer, list[Any]], folder: Path, store: Store) -> None:
    for role in ROLES:
        mine, theirs = last_parameters(folder, role), last_parameters(joint[0], role)
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine), f"{role} has become another"
    state, expected = CoordinatorState(folder).load(), joint[1].state
    assert state is not None
    assert (state.step, state.stage, state.best_step, state.best_score) == (
        expected.step, expected.stage, expected.best_step, expected.best_score
    )  # fmt: skip
    assert records_of(store, STEPS) == joint[2], "a trajectory was lost, or made twice"
    assert metrics(folder) == metrics(joint[0])


def test_two_workers_and_four_trainers_end_where_one_process_does(
    joint: tuple[Path, Trainer, list[Any]], nano: Path, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(nano)
    begin_run(store, config)
    trainer, services = open_run(config, nano, tmp_path, store, monkeypatch)
    trainer.run()
    assert_equal_to(joint, tmp_path, store)
    assert {mark.shard for mark in store.shards(RUN, 0)} == {0, 1} and len(services) == 2 + len(ROLES)


def test_deaths_at_any_write_change_nothing(
    joint: tuple[Path, Trainer, list[Any]], nano: Path, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifteen deaths of services, before or after a write, and of the driver after each step, before its state is
    saved: the trainers are a step ahead of the one that is resumed."""
    config = config_of(nano)
    begin_run(store, config)
    opened, deaths, save = mortal(3, 15), 0, CoordinatorState.save
    for life in range(STEPS + 1):
        trainer, services = open_run(config, nano, tmp_path, store, monkeypatch, opened=opened)

        def die(states: CoordinatorState, state: Any, life: int = life) -> None:
            if state.step > life:
                raise Crash
            save(states, state)

        with monkeypatch.context() as patch:
            patch.setattr(CoordinatorState, "save", die)
            if life < STEPS:
                with pytest.raises(Crash):
                    trainer.run()
            else:
                trainer.run()
        deaths += sum(one.deaths for one in services.values())
    assert deaths == 15, "too few died for this to mean anything"
    assert_equal_to(joint, tmp_path, store)


def test_files_that_travel_by_a_url_change_nothing(
    joint: tuple[Path, Trainer, list[Any]], nano: Path, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every service has a folder of its own, which is lost with it: a trainer goes on from what it has sent."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config = config_of(nano)
    begin_run(store, config)
    url = f"file://{tmp_path / 'bucket'}"
    trainer, services = open_run(config, nano, tmp_path / "run", store, monkeypatch, url=url, opened=mortal(5, 10))
    trainer.run()
    assert sum(one.deaths for one in services.values()) == 10
    assert not list((tmp_path / "run" / "services").glob("*/checkpoints")), "a trainer wrote into the driver's folder"
    cache = tmp_path / "cache" / "cryptosentinel" / "ray" / RUN
    for role in ROLES:
        RunFiles(tmp_path / "run", url).fetch_folder(f"services/{role}/checkpoints")
    assert cache.is_dir()
    assert_equal_to(joint, tmp_path / "run", store)


def test_a_damaged_file_of_weights_is_refused(
    nano: Path, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(nano)
    begin_run(store, config)
    trainer, _ = open_run(config, nano, tmp_path, store, monkeypatch)
    trainer.start()
    [record] = store.published(RUN, 0, "trader")
    path = tmp_path / record.path
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    again, _ = open_run(config, nano, tmp_path, store, monkeypatch)
    with pytest.raises(RunFailed, match="its SHA-256 is not the one in its record"):
        again.start()


def test_conversations_with_other_weights_are_refused(
    nano: Path, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a worker of another run would write them under this one's name."""

    class Foreign:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def add_shard(self, mark: Any, queries: Any, rollouts: Any, trajectories: list[TrajectoryRecord]) -> None:
            others = [replace(one, policy_version="other") for one in trajectories]
            store.add_shard(mark, queries, rollouts, others)

    config = config_of(nano)
    begin_run(store, config)
    trainer, _ = open_run(config, nano, tmp_path, store, monkeypatch, opened=lambda one, name: cast("Store", Foreign()))
    with pytest.raises(RunFailed, match=r"step 0 holds conversations of .* with weights other, which its trainer did"):
        trainer.run()
    assert not store.rewards(RUN), "something was learnt from them"


def test_of_two_trainers_of_a_role_the_first_publishes(nano: Path, tmp_path: Path, store: Store) -> None:
    """One that was thought dead comes late, with other weights: the step keeps those that are being rolled out."""
    config = config_of(nano)
    begin_run(store, config)
    first = RoleTrainerService(config, nano, "trader", store, RUN, RunFiles(tmp_path / "a"))
    assert first.publish() == 0
    [record] = store.published(RUN, 0, "trader")
    other = RoleTrainerService(config_of(nano, seed=7), nano, "trader", store, RUN, RunFiles(tmp_path / "b"))
    with pytest.raises(RunFailed, match="another trainer of trader has published other weights for step 0"):
        other._publish({"metrics": {}, "rolled_back": False, "failure": None})
    assert store.published(RUN, 0, "trader") == [record]
    same = RoleTrainerService(config, nano, "trader", store, RUN, RunFiles(tmp_path / "c"))
    same._publish({"metrics": {}, "rolled_back": False, "failure": None})
    assert store.published(RUN, 0, "trader")[0].version == record.version
