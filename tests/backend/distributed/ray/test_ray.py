"""A training on a Ray cluster of this machine: killed, with files that travel, it ends where one loop does."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import ray
import torch

from backend.builders.market import load_market
from backend.config.schema import Config
from backend.distributed.coordinator import coordinator_state
from backend.distributed.local_launcher import run_processes
from backend.distributed.ray import launcher
from backend.distributed.ray.actors import Machine
from backend.distributed.ray.launcher import run_ray
from backend.store.run_record import recorded_run
from backend.store.store import Store
from cryptosentinel.agents.registry import ROLES
from simulator.data.archive import write_market
from simulator.errors import Interrupted, RunFailed
from simulator.market.market import Market
from tests.backend.distributed.process_threads import begin_run, last_parameters
from tests.small_world import RUN, one_process_trainer, small_config, small_market


@dataclass(frozen=True)
class World:
    """A training, and what comes of it in one loop."""

    config: Config
    market: Market
    joint: Path
    best_score: float | None


class Killer:
    """Kills an actor in the middle of a step, and its machine's copies with it; `at` says which one in which step."""

    def __init__(self, at: dict[int, str], cache: Path) -> None:
        self.at, self.cache = at, cache
        self.alive: dict[str, int] = {}
        self.starts: list[str] = []

    def started(self, name: str, process: int) -> None:
        self.alive[name] = process
        self.starts.append(name)

    def step(self, step: int) -> None:
        name = self.at.pop(step, None)
        if name is not None:
            os.kill(self.alive[name], signal.SIGKILL)
            shutil.rmtree(self.cache / "cryptosentinel" / "ray" / name, ignore_errors=True)


@pytest.fixture(scope="module")
def world(nano: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Five steps over a market in files, as processes load it, and where one loop ends with them."""
    folder = tmp_path_factory.mktemp("world")
    write_market(small_market(), folder / "market")
    config = small_config(base_model=str(nano), stage1_max_steps=1, stage2_steps=4, queries_per_step=2, shards=2)
    data = config.market.model_copy(update={"data": str(folder / "market")})
    config = config.model_copy(update={"market": data})
    market = load_market(config.market, config.costs)
    joint = folder / "joint"
    joint.mkdir()
    with Store.open("mem://") as store:
        begin_run(store, config)
        trainer = one_process_trainer(config, market, store, joint, nano)
        trainer.run()
    return World(config, market, joint, trainer.state.best_score)


def assert_equal(world: World, folder: Path) -> None:
    for role in ROLES:
        mine, theirs = last_parameters(folder, role), last_parameters(world.joint, role)
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs), f"{role} has become another"
    assert coordinator_state(folder).best_score == world.best_score


@pytest.mark.slow
def test_actors_end_where_one_loop_does(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of them are killed, and they believe that they share no folder."""
    survey = launcher.survey

    def strangers(folder: Path) -> dict[str, Machine]:
        return {node: replace(one, shared=False) for node, one in survey(folder).items()}

    monkeypatch.setattr(launcher, "survey", strangers)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    killer = Killer({1: "trainer-manager", 2: "rollout-1", 3: "rollout-0"}, tmp_path / "cache")
    address = str(tmp_path / "store")
    with Store.open(address) as store:
        with recorded_run(store, RUN, "train", 1, world.market.content_hash, world.config):
            run_ray(address, RUN, tmp_path, 2, killer.step, killer.started)
        assert {one.step for one in store.published(RUN)} == set(range(6))
    assert len(killer.starts) == 2 + len(ROLES) + 3, "the run was over before it was disturbed"
    assert_equal(world, tmp_path / RUN)
    logs = [f"rollout-{number}.log" for number in range(2)] + [f"trainer-{role}.log" for role in ROLES]
    assert {path.name for path in (tmp_path / RUN / "services").glob("*.log")} == set(logs)


@pytest.mark.slow
def test_what_ray_began_processes_finish(world: World, tmp_path: Path) -> None:
    """After Ctrl-C, of which everybody hears; and a cluster of our own leaves nothing behind."""

    def interrupt(step: int) -> None:
        if step == 2:
            raise KeyboardInterrupt

    address = str(tmp_path / "store")
    with Store.open(address) as store:
        record = (store, RUN, "train", 1, world.market.content_hash, world.config)
        with pytest.raises(Interrupted, match="--resume"), recorded_run(*record):
            run_ray(address, RUN, tmp_path, 1, interrupt)
        assert not ray.is_initialized() and not children("gcs_server", "raylet")
        assert {(one.state, one.message) for one in store.services(RUN)} == {("stopped", "interrupted")}
        with recorded_run(*record):
            run_processes(address, RUN, tmp_path, 1, lambda step: None)
    assert_equal(world, tmp_path / RUN)


@pytest.mark.slow
def test_an_actor_that_fails_and_a_cluster_that_ends_are_told(world: World, tmp_path: Path) -> None:
    def end(name: str, process: int) -> None:
        for one in children("gcs_server"):
            os.kill(one, signal.SIGKILL)

    address = str(tmp_path / "store")
    with Store.open(address) as store:
        with (
            pytest.raises(RunFailed, match=r"rollout-0 ended with code 2: .*trained on other data"),
            recorded_run(store, RUN, "train", 1, "other", world.config),
        ):
            run_ray(address, RUN, tmp_path, 1, lambda step: None)
        assert store.run(RUN).status == "failed"
        with (
            pytest.raises(RunFailed, match=r"the Ray cluster at .* has ended"),
            recorded_run(store, RUN, "train", 1, world.market.content_hash, world.config),
        ):
            run_ray(address, RUN, tmp_path, 1, lambda step: None, end)
        assert store.run(RUN).status == "failed"


def children(*names: str) -> list[int]:
    """The processes of these names that this one has started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            number, _, rest = stat.read_text().partition(" (")
            name, _, state = rest.rpartition(") ")
            if name in names and int(state.split()[1]) == os.getpid():
                found.append(int(number))
    return found
