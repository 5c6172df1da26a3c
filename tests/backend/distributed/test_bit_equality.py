"""Training apart equals training in one loop, to the bit, however its parts meet and however often they die."""

from __future__ import annotations

import errno
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors import SafetensorError

from backend.config.schema import Config
from backend.distributed import heartbeat, rollout_worker
from backend.distributed.coordinator import coordinator_state
from backend.errors import message_and_code
from backend.policies import tensor_files
from backend.store.records import TrajectoryRecord
from backend.store.store import Store
from backend.training.trainer import Trainer
from cryptosentinel.agents.registry import ROLES
from simulator.errors import RunFailed
from tests.backend.distributed.process_threads import (
    Mortal,
    begin_by_hand,
    begin_run,
    last_parameters,
    processes,
    processes_by_hand,
    run_in_threads,
)
from tests.small_world import RUN, one_process_trainer, small_market, smaller_config

STEPS = 3  # one of stage 1, two of stage 2


def config_of(nano: Path, **training: Any) -> Config:
    options = {"base_model": str(nano), "stage1_max_steps": 1, "stage2_steps": STEPS - 1, "shards": 2}
    # What a role's trainer must remember from step to step, and what changes from step to step.
    options |= {"alignment": "duplicate_drop", "alignment_window": 2, "schedule": "cosine", "beta_end": [0.1, 0.6, 0.3]}
    options |= {"resampled_answers": 2}
    return smaller_config(**options | training)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """In a folder, where tokens lie in files; `joint` has them in rows."""
    with Store.open(tmp_path / "store") as opened:
        yield opened


@pytest.fixture(scope="module")
def joint(nano: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Trainer, list[Any]]:
    """The same training in one loop: its folder, the trainer at its end, and all that it stored."""
    folder = tmp_path_factory.mktemp("joint")
    with Store.open("mem://") as opened:
        config = config_of(nano)
        begin_run(opened, config)
        trainer = one_process_trainer(config, small_market(), opened, folder, nano)
        trainer.run()
        return folder, trainer, records(opened)


def records(store: Store, steps: int = STEPS) -> list[Any]:
    """What is stored of the steps, but for when it was."""
    found: list[Any] = []
    for step in range(steps):
        found += store.queries(RUN, step)
        found += store.rollouts(RUN, step)
        found += store.trajectories(RUN, step)
        found += store.rewards(RUN, step)
    return found


def assert_equal_to(
    joint: tuple[Path, Trainer, list[Any]], folder: Path, store: Store, trainers: Mapping[str, Path] | None = None
) -> None:
    """The run in `folder`; `trainers` are the folders of the roles' trainers where these are others."""
    for role in ROLES:
        mine, theirs = last_parameters((trainers or {}).get(role, folder), role), last_parameters(joint[0], role)
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine), f"{role} has become another"
    state, expected = coordinator_state(folder), joint[1].state
    assert (state.step, state.stage, state.best_step, state.best_score) == (
        expected.step, expected.stage, expected.best_step, expected.best_score
    )  # fmt: skip
    assert records(store) == joint[2], "a trajectory was lost, or made twice"


def test_five_processes_end_where_one_does(
    joint: tuple[Path, Trainer, list[Any]], nano: Path, tmp_path: Path, store: Store
) -> None:
    config = config_of(nano)
    begin_run(store, config)
    deaths = run_in_threads(store, processes(config, nano, tmp_path))
    assert not any(deaths.values())
    assert_equal_to(joint, tmp_path, store)
    assert any("resampled_from" in one.parts for one in store.rollouts(RUN, STEPS - 1)), (
        "no question was answered again"
    )
    told = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    once = [json.loads(line) for line in (joint[0] / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in told] == [line["step"] for line in once]
    for mine, theirs in zip(told, once, strict=True):
        assert mine == {**theirs, **{name: 0.0 for name in mine if name.endswith("/staleness")}}
    assert {one.state for one in store.services(RUN)} == {"stopped"}


def test_a_role_whose_updates_are_never_finite_ends_the_run(
    nano: Path, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(nano)
    begin_run(store, config)
    monkeypatch.setattr("backend.training.learning.learner.MAX_SKIPPED", 1)
    nothing = torch.tensor(float("nan"))
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda parameters, norm: nothing)
    with pytest.raises(RunFailed, match=r"every update of \w+ was skipped in 1 steps in a row"):
        run_in_threads(store, processes(config, nano, tmp_path))
    assert store.run(RUN).status == "failed"


def test_two_workers_share_the_shards_and_change_nothing(
    joint: tuple[Path, Trainer, list[Any]], nano: Path, tmp_path: Path, store: Store
) -> None:
    config = config_of(nano)
    begin_run(store, config)
    run_in_threads(store, processes(config, nano, tmp_path, workers=2))
    assert_equal_to(joint, tmp_path, store)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_hundred_deaths_change_nothing(
    seed: int, joint: tuple[Path, Trainer, list[Any]], nano: Path, tmp_path: Path, store: Store
) -> None:
    """Every process dies again and again, before or after one of its next writes, and a new one takes its place."""
    config = config_of(nano)
    begin_run(store, config)
    rng = random.Random(seed)
    left = dict.fromkeys(processes(config, nano, tmp_path), 200)

    def opened(one: Store, name: str) -> Store:
        left[name] -= 1
        # Long enough a life for a whole shard now and then; at last one that is not cut short.
        return cast("Store", Mortal(one, rng.randrange(24 if name == "rollout-0" else 3))) if left[name] >= 0 else one

    deaths = run_in_threads(store, processes(config, nano, tmp_path), opened)
    assert sum(deaths.values()) >= 50 and min(deaths.values()) >= 3, "too few died for this to mean anything"
    assert_equal_to(joint, tmp_path, store)


@pytest.mark.parametrize("deaths", [1, pytest.param(12, marks=pytest.mark.slow)])
def test_a_leader_that_dies_is_replaced_by_one_that_stands_by(
    deaths: int,
    joint: tuple[Path, Trainer, list[Any]],
    nano: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It goes on where the first was, though it has none of its files. The first comes back and stands by in turn."""
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.1)
    for module in (heartbeat, rollout_worker):
        monkeypatch.setattr(module, "DEAD_AFTER", 1.0)
    config, rng, left = config_of(nano), random.Random(deaths), deaths

    def opened(one: Store, name: str) -> Store:
        nonlocal left
        if not name.startswith("lead"):
            return one
        left -= 1
        return cast("Store", Mortal(one, rng.randrange(4, 16))) if left >= 0 else one

    with Store.open(tmp_path / "store") as store:  # one in memory keeps no files
        begin_by_hand(store, config)
        died = run_in_threads(store, processes_by_hand(config, tmp_path, monkeypatch), opened)
        assert died["lead-0"] + died["lead-1"] >= deaths, "too few died for this to mean anything"
        assert store.run(RUN).status == "finished"
        [team] = tmp_path.glob(f"lead-*/{RUN}/team.json")
        folders = {role: tmp_path / role / RUN / "processes" / f"trainer-{role}" for role in ROLES}
        assert_equal_to(joint, team.parent, store, folders)


class FullDisk:
    """A disk that is full for files whose path holds `part`, as the operating system and safetensors tell it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.part: str | None = None
        for owner, name in ((Path, "open"), (Path, "write_text"), (tensor_files, "save_file")):
            monkeypatch.setattr(owner, name, self._failing(getattr(owner, name), name))

    def _failing(self, write: Any, name: str) -> Any:
        def failing(*args: Any, **named: Any) -> Any:
            path = str(args[1] if name == "save_file" else args[0])
            mode = args[1] if name == "open" and len(args) > 1 else "w" if name != "open" else "r"
            if self.part is not None and self.part in path and ({*mode} & {*"wax+"}):
                if name == "save_file":
                    raise SafetensorError("I/O error: No space left on device (os error 28)")
                raise OSError(errno.ENOSPC, "No space left on device", path)
            return write(*args, **named)

        return failing


# In the order in which a run of three steps still has such files to write.
FULL_FOR = (
    "adapters/", "metrics.jsonl", "manager/checkpoints/", "trader/published/", "risk_analyst/last_metrics",
    "services/coordinator",
)  # fmt: skip


@pytest.mark.slow  # one process: tests/backend/training/test_trainer.py
def test_a_full_disk_ends_the_run_and_it_goes_on_when_there_is_room(
    joint: tuple[Path, Trainer, list[Any]], nano: Path, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run meets a full disk at each kind of file that its processes write; the others notice and end too."""
    config, disk = config_of(nano), FullDisk(monkeypatch)
    for part in FULL_FOR:
        begin_run(store, config)
        disk.part = part
        with pytest.raises((OSError, RunFailed), match=part) as told:
            run_in_threads(store, processes(config, nano, tmp_path))
        known = message_and_code(told.value)
        assert known is not None and known[1] == 1, f"{part}: told as a defect, not as a full disk"
        assert "ree some space" in known[0]
        assert store.run(RUN).status == "failed"
    begin_run(store, config)
    disk.part = None
    run_in_threads(store, processes(config, nano, tmp_path))
    assert_equal_to(joint, tmp_path, store)


def test_conversations_with_other_weights_are_refused(nano: Path, tmp_path: Path, store: Store) -> None:
    """As a worker of another run would write them under this one's name."""

    class Foreign(Mortal):
        def add_trajectories(self, records: list[TrajectoryRecord], shard: int | None = None) -> None:
            store.add_trajectories([replace(one, policy_version="other") for one in records], shard)

    config = config_of(nano)
    begin_run(store, config)
    with pytest.raises(
        RunFailed, match=r"step 0 holds conversations of .* with weights other, which its trainer did not"
    ):
        run_in_threads(store, processes(config, nano, tmp_path), lambda one, name: cast("Store", Foreign(one, 10**6)))
    assert not store.rewards(RUN), "something was learnt from them"
