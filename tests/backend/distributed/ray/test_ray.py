"""A training on a Ray cluster of this machine: killed, with files that travel, it ends where one loop does."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from ray.cluster_utils import Cluster

from backend.builders.market import load_market
from backend.config.schema import Config
from backend.distributed.coordinator import coordinator_state
from backend.distributed.local_launcher import run_processes
from backend.distributed.ray import launcher
from backend.distributed.ray.actors import Machine
from backend.distributed.ray.cluster import cluster, cluster_token
from backend.distributed.ray.launcher import RayProcesses, run_ray
from backend.policies.temporary import temporary_folder
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


class Nodes:
    """Nodes of a cluster on this machine: in the middle of step `at` those that have no head are killed with all that
    runs there, and another with so many CPUs comes."""

    def __init__(self, cluster: Cluster, at: int, cpus: int) -> None:
        self.cluster, self.at, self.cpus = cluster, at, cpus
        self.homes: dict[str, int] = {}  # of each process, the raylet that has started it, as its node has one
        self.lost: list[str] = []
        self.starts: list[str] = []

    def started(self, name: str, process: int) -> None:
        self.starts.append(name)
        self.homes[name] = parent(process)

    def step(self, step: int) -> None:
        if step != self.at or self.lost:
            return
        for node in list(self.cluster.worker_nodes):
            [raylet] = node.all_processes["raylet"]
            self.lost += [name for name, home in self.homes.items() if home == raylet.process.pid]
            self.cluster.remove_node(node, allow_graceful=False)
        self.cluster.add_node(num_cpus=self.cpus)


@pytest.fixture
def make_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Cluster]]:
    """Makes a cluster whose head has so many CPUs."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    # As a cluster of our own has it: Ray reads it once for all clusters of a process, and one without tokens takes a
    # driver that asks for them to have dropped its actors.
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", cluster_token())
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    files = temporary_folder("ray", prefix="cs-", inside=lambda: "/tmp")  # the paths of sockets must be short
    monkeypatch.setenv("RAY_TMPDIR", str(files))
    (files / "ray").mkdir()
    made: list[Cluster] = []

    def make(cpus: int) -> Cluster:
        made.append(Cluster(initialize_head=True, head_node_args={"num_cpus": cpus, "include_dashboard": False}))
        return made[-1]

    yield make
    for one in made:
        one.shutdown()
    shutil.rmtree(files, ignore_errors=True)


@pytest.mark.slow
def test_a_killed_node_is_replaced_and_changes_nothing(
    world: World, tmp_path: Path, make_cluster: Callable[[int], Cluster]
) -> None:
    """Of two nodes, of which neither has room for all processes, one is killed and another comes in its place."""
    two_nodes = make_cluster(3)
    two_nodes.add_node(num_cpus=3)
    nodes = Nodes(two_nodes, at=2, cpus=3)
    address = str(tmp_path / "store")
    with Store.open(address) as store:
        with recorded_run(store, RUN, "train", 1, world.market.content_hash, world.config):
            run_ray(address, RUN, tmp_path, 2, nodes.step, nodes.started, two_nodes.address)
        assert {one.step for one in store.published(RUN)} == set(range(6))
    assert len(nodes.lost) == 3, "the node was not killed while half of the processes were there"
    assert sorted(nodes.starts) == sorted([*nodes.homes, *nodes.lost])
    assert_equal(world, tmp_path / RUN)


@pytest.mark.slow
def test_further_workers_wait_for_room_and_wait_anew_when_their_machine_goes(
    tmp_path: Path, make_cluster: Callable[[int], Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Actors that do nothing stand for the processes, on a cluster with room for one worker and the trainers."""

    class Idle:
        def __init__(self, file_server: Any) -> None:
            self.file_server = file_server

        def identify(self) -> tuple[int, str]:
            return os.getpid(), ray.get_runtime_context().get_node_id()

        def run(self, incarnation: Any) -> tuple[int, str]:
            time.sleep(3600.0)
            return 0, ""

    monkeypatch.setattr(launcher, "RayProcess", Idle)
    nodes = make_cluster(1 + len(ROLES))
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text("{}")  # nobody reads it
    (tmp_path / RUN / "services").mkdir(parents=True)
    config = small_config(base_model=str(base))
    starts: list[str] = []

    def look(processes: RayProcesses, count: int, seconds: float = 120.0) -> list[str]:
        """Who has begun, once that many have, or after that time."""
        until = time.monotonic() + seconds
        while len(starts) < count and time.monotonic() < until:
            assert processes.join(lambda name, process: starts.append(name)) == []
            time.sleep(0.1)
        return sorted(starts)

    first = sorted(["rollout-0", *(f"trainer-{role}" for role in ROLES)])
    with cluster(nodes.address):
        processes = RayProcesses(config, tmp_path / RUN, "mem://", 1, more_workers=2)
        processes.start(lambda name, process: starts.append(name))
        assert look(processes, len(first) + 1, 3.0) == first, "a worker began where there was no room"
        node = nodes.add_node(num_cpus=1)
        [joined] = set(look(processes, len(first) + 1)) - set(first)
        assert joined in ("rollout-1", "rollout-2")
        nodes.remove_node(node, allow_graceful=False)
        assert len(launcher.survey(tmp_path / RUN)) == 1, "a machine that has just gone is asked no more"
        gone: list[str] = []
        while not gone:
            gone = [name for name, _ in processes.ended(1.0)]
        assert gone == [joined], "another process went with the machine"
        processes.restart(joined, lambda name, process: starts.append(name))
        starts.clear()
        nodes.add_node(num_cpus=2)
        assert look(processes, 2) == ["rollout-1", "rollout-2"]
        processes.end()


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


def parent(process: int) -> int:
    """The process that has started another one."""
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()[1])


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
