"""Training apart equals training in one loop, to the bit, however its parts meet and however often they die."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from backend.config import Config
from backend.services.lead import leader_state
from backend.store.store import Store
from backend.training.job import made
from backend.training.trainer import Trainer
from cryptosentinel.agents.registry import ROLES
from tests.backend.services.worlds import Mortal, begin, last_parameters, lives, play
from tests.small_world import RUN, small_config, small_market

STEPS = 3  # one of stage 1, two of stage 2


def config_of(nano: Path, **training: Any) -> Config:
    options = {"base_model": str(nano), "stage1_max_steps": 1, "stage2_steps": STEPS - 1, "shards": 2}
    return small_config(**options | training)


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.open("mem://") as opened:
        yield opened


@pytest.fixture(scope="module")
def joint(nano: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Trainer, list[Any]]:
    """The same training in one loop: its folder, the trainer at its end, and all that it stored."""
    folder = tmp_path_factory.mktemp("joint")
    with Store.open("mem://") as opened:
        config = config_of(nano)
        begin(opened, config)
        trainer = made(Trainer, config, small_market(), opened, RUN, folder, nano, folder)
        trainer.run()
        return folder, trainer, records(opened)


def records(store: Store) -> list[Any]:
    """What is stored of the steps, but for when it was."""
    found: list[Any] = []
    for step in range(STEPS):
        found += store.queries(RUN, step)
        found += store.rollouts(RUN, step)
        found += store.trajectories(RUN, step)
        found += store.rewards(RUN, step)
    return found


def assert_equal_to(joint: tuple[Path, Trainer, list[Any]], folder: Path, store: Store) -> None:
    for role in ROLES:
        mine, theirs = last_parameters(folder, role), last_parameters(joint[0], role)
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine), f"{role} has become another"
    state, expected = leader_state(folder), joint[1].state
    assert (state.step, state.stage, state.best_step, state.best_score) == (
        expected.step, expected.stage, expected.best_step, expected.best_score
    )  # fmt: skip
    assert records(store) == joint[2], "a trajectory was lost, or made twice"


def test_five_processes_end_where_one_does(
    joint: tuple[Path, Trainer, list[Any]], nano: Path, tmp_path: Path, store: Store
) -> None:
    config = config_of(nano)
    begin(store, config)
    deaths = play(store, lives(config, nano, tmp_path))
    assert not any(deaths.values())
    assert_equal_to(joint, tmp_path, store)
    told = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    once = [json.loads(line) for line in (joint[0] / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in told] == [line["step"] for line in once]
    for mine, theirs in zip(told, once, strict=True):
        assert mine == {**theirs, **{name: 0.0 for name in mine if name.endswith("/staleness")}}
    assert {one.state for one in store.services(RUN)} == {"stopped"}


def test_two_workers_share_the_shards_and_change_nothing(
    joint: tuple[Path, Trainer, list[Any]], nano: Path, tmp_path: Path, store: Store
) -> None:
    config = config_of(nano)
    begin(store, config)
    play(store, lives(config, nano, tmp_path, workers=2))
    assert_equal_to(joint, tmp_path, store)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_hundred_deaths_change_nothing(
    seed: int, joint: tuple[Path, Trainer, list[Any]], nano: Path, tmp_path: Path, store: Store
) -> None:
    """Every process dies again and again, before or after one of its next writes, and a new one takes its place."""
    config = config_of(nano)
    begin(store, config)
    rng = random.Random(seed)
    left = dict.fromkeys(lives(config, nano, tmp_path), 200)

    def opened(one: Store, name: str) -> Store:
        left[name] -= 1
        # Long enough a life for a whole shard now and then; at last one that is not cut short.
        return cast("Store", Mortal(one, rng.randrange(24 if name == "rollout-0" else 3))) if left[name] >= 0 else one

    deaths = play(store, lives(config, nano, tmp_path), opened)
    assert sum(deaths.values()) >= 50 and min(deaths.values()) >= 3, "too few died for this to mean anything"
    assert_equal_to(joint, tmp_path, store)
