"""Dynamic sampling apart: all workers draw the same further windows, and the roles learn what they learn in a loop."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from backend.config.schema import Config
from backend.distributed.step_records import closing_marker, is_complete
from backend.store.records import ShardRecord
from backend.store.store import Store
from cryptosentinel.agents.registry import ROLES
from tests.backend.distributed.process_threads import Mortal, begin_run, last_parameters, processes, run_in_threads
from tests.small_world import RUN, one_process_trainer, small_market, smaller_config

STEPS = 3


def config_of(nano: Path) -> Config:
    # Two rollouts a window are often alike, so that windows are missing in most steps.
    return smaller_config(
        base_model=str(nano), stage1_max_steps=1, stage2_steps=STEPS - 1, shards=2, dynamic_rounds=2,
        rollouts_per_query=2, queries_per_step=3, alpha=(1.0, 0.0), hard_share=0.7,
    )  # fmt: skip


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.open("mem://") as opened:
        yield opened


@pytest.fixture(scope="module")
def joint(nano: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any], list[dict[str, float]]]:
    folder = tmp_path_factory.mktemp("joint")
    with Store.open("mem://") as opened:
        config = config_of(nano)
        begin_run(opened, config)
        one_process_trainer(config, small_market(), opened, folder, nano).run()
        return folder, records(opened), [one.values for one in opened.metrics(RUN)]


def records(store: Store) -> list[Any]:
    read = (store.queries, store.rollouts, store.trajectories, store.rewards)
    return [record for step in range(STEPS) for kind in read for record in kind(RUN, step)]


def sampled(metrics: list[dict[str, float]]) -> list[tuple[float, float]]:
    return [
        (one["dynamic/queries"], one["dynamic/missing"]) for one in metrics if "dynamic/queries" in one
    ]  # of the steps of stage 2


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_further_windows_are_those_of_a_loop(
    workers: int, joint: tuple[Path, list[Any], list[dict[str, float]]], nano: Path, tmp_path: Path, store: Store
) -> None:
    config = config_of(nano)
    begin_run(store, config)
    run_in_threads(store, processes(config, nano, tmp_path, workers))
    assert_equal(joint, tmp_path, store)
    assert max(further for further, _ in sampled(joint[2])) > 0, "no window was missing, so nothing was tested"
    assert any("hard/gap/max" in one for one in joint[2]), "no window was drawn by what the team leaves lying"


@pytest.mark.slow
def test_deaths_change_nothing(
    joint: tuple[Path, list[Any], list[dict[str, float]]], nano: Path, tmp_path: Path, store: Store
) -> None:
    """The leader and the other worker die at points drawn by a seed, also between two rounds of a step."""
    config, rng, left = config_of(nano), random.Random(5), Counter({"rollout-0": 8, "rollout-1": 8})
    begin_run(store, config)

    def opened(one: Store, name: str) -> Store:
        left[name] -= 1
        return cast("Store", Mortal(one, rng.randrange(40))) if left[name] >= 0 else one

    deaths = run_in_threads(store, processes(config, nano, tmp_path, 2), opened)
    assert min(deaths["rollout-0"], deaths["rollout-1"]) >= 3, "too few died for this to mean anything"
    assert_equal(joint, tmp_path, store)


def assert_equal(joint: tuple[Path, list[Any], list[dict[str, float]]], folder: Path, store: Store) -> None:
    assert records(store) == joint[1], "a window was lost, or another one was drawn"
    for role in ROLES:
        mine, theirs = last_parameters(folder, role), last_parameters(joint[0], role)
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs), f"{role} has become another"
    assert sampled([one.values for one in store.metrics(RUN)]) == sampled(joint[2])


def test_a_trainer_waits_for_the_word_that_no_window_comes(nano: Path, store: Store) -> None:
    config = config_of(nano).training
    for shard in range(config.shards):
        store.add_shard(ShardRecord(RUN, 0, shard, 0, 0, 0))
    assert not is_complete(store, RUN, 0, config), "further windows may come"
    closing = closing_marker(config)
    assert closing is not None and closing > config.shards * config.experimental.dynamic_rounds + config.shards - 1
    store.add_shard(ShardRecord(RUN, 0, closing, 0, 0, 0))
    assert is_complete(store, RUN, 0, config)
    without = config.experimental.model_copy(update={"dynamic_rounds": 0})
    assert is_complete(store, RUN, 0, config.model_copy(update={"experimental": without}))
