"""A validation that has collapsed in a distributed training: all go back to the best version, as in one process."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from backend.config.schema import Config
from backend.distributed.coordinator import coordinator_state
from backend.distributed.heartbeat import COORDINATOR, RunOver
from backend.distributed.published_weights import as_trained
from backend.store.records import PublishedRecord
from backend.store.sharing.fences import Fence
from backend.store.store import Store
from backend.training import trainer as trainer_module
from backend.training.trainer import Trainer
from backend.training.validation import Validation
from cryptosentinel.agents.registry import ROLES
from tests.backend.distributed.process_threads import (
    Crash,
    Mortal,
    begin_run,
    last_parameters,
    processes,
    run_in_threads,
)
from tests.small_world import RUN, one_process_trainer, small_market, smaller_config

OUTCOMES = (0.5, 0.6, 0.5, 0.4, 0.58)  # of the validations after so many steps; two have collapsed
STEPS = len(OUTCOMES) - 1


def config_of(nano: Path) -> Config:
    return smaller_config(
        base_model=str(nano), stage1_max_steps=1, stage2_steps=STEPS - 1, shards=2, rollouts_per_query=2,
        queries_per_step=3, validation_every=1, collapse_margin=0.05, schedule="linear",
    )  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def planned() -> Iterator[None]:
    """Validations find `OUTCOMES`, whoever makes them and however often."""
    validate = Trainer._validate
    with pytest.MonkeyPatch.context() as patch:

        def planned_validate(self: Trainer, metrics: dict[str, float]) -> None:
            found = Validation(OUTCOMES[self.state.step], 0.0, 0.0, valid=dict.fromkeys(ROLES, 1.0), expert={})
            patch.setattr(trainer_module, "validate", lambda *_: found)
            validate(self, metrics)

        patch.setattr(Trainer, "_validate", planned_validate)
        yield


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.open("mem://") as opened:
        yield opened


Joint = tuple[Path, list[Any], list[dict[str, float]]]


@pytest.fixture(scope="module")
def joint(planned: None, nano: Path, tmp_path_factory: pytest.TempPathFactory) -> Joint:
    """What one process comes to, to be read only."""
    folder, config = tmp_path_factory.mktemp("joint") / "run", config_of(nano)
    with Store.open("mem://") as opened:
        begin_run(opened, config)
        folder.mkdir()
        trainer = one_process_trainer(config, small_market(), opened, folder, nano)
        trainer.run()
        assert (trainer.state.rejections, trainer.state.best_step) == ([2, 3], 1)
        return folder, records(opened), counted(opened)


def records(store: Store) -> list[Any]:
    read = (store.queries, store.rollouts, store.trajectories, store.rewards)
    return [record for step in range(STEPS) for kind in read for record in kind(RUN, step)]


def counted(store: Store) -> list[dict[str, float]]:
    names = ("rejections", "validation/outcome", "manager/loss", "market_analyst/lr", "trader/grad_norm")
    return [{name: one.values[name] for name in names if name in one.values} for one in store.metrics(RUN)]


def assert_equal(joint: Joint, folder: Path, store: Store) -> None:
    assert coordinator_state(folder).rejections == [2, 3]
    assert records(store) == joint[1]
    assert counted(store) == joint[2]
    for role in ROLES:
        mine, theirs = last_parameters(folder, role), last_parameters(joint[0], role)
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs), f"{role} has become another"


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_best_version_replaces_a_collapse_as_in_one_process(
    workers: int, joint: Joint, nano: Path, tmp_path: Path, store: Store
) -> None:
    config = config_of(nano)
    begin_run(store, config)
    run_in_threads(store, processes(config, nano, tmp_path, workers))
    assert_equal(joint, tmp_path, store)


class DiesReplacing:
    """The coordinator's store, which kills it after it has replaced so many records; it publishes nothing else."""

    def __init__(self, store: Store, left: list[int]) -> None:
        self._store, self._left = store, left

    def fenced(self, *fences: Fence) -> DiesReplacing:
        return DiesReplacing(self._store.fenced(*fences), self._left)

    def __getattr__(self, name: str) -> Any:
        if self._left[0] < 0:
            raise Crash
        if name != "add_published":
            return getattr(self._store, name)

        def add(record: PublishedRecord) -> None:
            self._left[0] -= 1
            if self._left[0] < 0:
                raise Crash
            self._store.add_published(record)

        return add


@pytest.mark.parametrize(  # in its first lives, of four roles in two collapses
    "replaced", [pytest.param([0, 2], marks=pytest.mark.slow), [1, 3], pytest.param([4, 0], marks=pytest.mark.slow)]
)
def test_a_coordinator_that_dies_while_it_replaces_weights_does_it_again(
    replaced: list[int], joint: Joint, nano: Path, tmp_path: Path, store: Store
) -> None:
    config, left = config_of(nano), list(replaced)
    begin_run(store, config)

    def opened(one: Store, name: str) -> Store:
        return cast("Store", DiesReplacing(one, [left.pop(0)])) if name == COORDINATOR and left else one

    deaths = run_in_threads(store, processes(config, nano, tmp_path, 2), opened)
    assert deaths[COORDINATOR] == len(replaced)
    assert_equal(joint, tmp_path, store)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [5, 6, 7])
def test_deaths_change_nothing(seed: int, joint: Joint, nano: Path, tmp_path: Path, store: Store) -> None:
    """Everybody dies at points drawn by a seed."""
    config, rng = config_of(nano), random.Random(seed)
    everybody = processes(config, nano, tmp_path, 2)
    left = Counter({COORDINATOR: 12} | {name: 3 for name in everybody if name != COORDINATOR})
    begin_run(store, config)

    def opened(one: Store, name: str) -> Store:
        left[name] -= 1
        return cast("Store", Mortal(one, rng.randrange(20))) if left[name] >= 0 else one

    deaths = run_in_threads(store, everybody, opened)
    assert deaths[COORDINATOR] >= 3 and sum(deaths.values()) >= 8, "too few died for this to mean anything"
    assert_equal(joint, tmp_path, store)


class Interrupted:
    """The coordinator's store, which ends the run after the validation of step 2 and before its state is kept."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def fenced(self, *fences: Fence) -> Interrupted:
        return Interrupted(self._store.fenced(*fences))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def add_metrics(self, run: str, step: int, values: dict[str, float]) -> None:
        self._store.add_metrics(run, step, values)
        if step == 2:
            self._store.finish_run(run, "interrupted")
            raise RunOver


class Watched:
    """The coordinator's store, which notes the steps whose metrics it writes."""

    def __init__(self, store: Store, steps: list[int]) -> None:
        self._store, self._steps = store, steps

    def fenced(self, *fences: Fence) -> Watched:
        return Watched(self._store.fenced(*fences), self._steps)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def add_metrics(self, run: str, step: int, values: dict[str, float]) -> None:
        self._steps.append(step)
        self._store.add_metrics(run, step, values)


def test_a_run_with_the_former_names_goes_on(
    joint: Joint, nano: Path, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state was in `leader.json`, and its records called replaced weights `put_back`."""
    config = config_of(nano)
    everybody = processes(config, nano, tmp_path, 2)
    begin_run(store, config)
    run_in_threads(store, everybody, lambda one, name: cast("Store", Interrupted(one)) if name == COORDINATOR else one)
    services = tmp_path / "services"
    assert coordinator_state(tmp_path).step == 1
    (services / "coordinator.json").rename(services / "leader.json")
    trained = [as_trained(record).version for record in store.published(RUN, 2)]
    for record in store.published(RUN, 2):
        metrics = dict(record.metrics)
        store.add_published(replace(record, metrics=metrics | {"put_back": metrics.pop("replaced_weights")}))
    begin_run(store, config)
    steps: list[int] = []
    run_in_threads(
        store, everybody, lambda one, name: cast("Store", Watched(one, steps)) if name == COORDINATOR else one
    )
    assert steps == [2, 3, 4], "steps that were done already were done again"
    assert [as_trained(record).version for record in store.published(RUN, 2)] == trained
    assert_equal(joint, tmp_path, store)


def test_metrics_under_their_former_name_are_published(nano: Path, tmp_path: Path, store: Store) -> None:
    """A trainer was killed between its checkpoint and what it publishes, when the file was `told.json`."""
    config, services = config_of(nano), tmp_path / "services" / "trader"
    begin_run(store, config)
    store.finish_run(RUN, "interrupted")
    services.mkdir(parents=True)
    saved = {"metrics": {"trader/loss": 0.25}, "rolled_back": True}
    (services / "told.json").write_text(json.dumps({"step": 0, **saved}))
    with pytest.raises(RunOver):
        processes(config, nano, tmp_path)["trainer-trader"](store)
    [record] = store.published(RUN, 0, "trader")
    assert record.metrics == saved
