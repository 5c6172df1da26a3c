"""A training on a Ray cluster of this machine, whose actors and driver are killed, ends where one process does."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import ray
import torch

from backend.builders.market import load_market
from backend.config.schema import Config
from backend.distributed.cluster import LOCAL, cluster
from backend.distributed.driver import CoordinatorState, RayRequest, run_ray
from backend.store.run_record import recorded_run
from backend.store.store import Store
from backend.training.trainer import Progress
from cryptosentinel.agents.registry import ROLES
from simulator.data.archive import write_market
from simulator.errors import Interrupted, RunFailed, UserError
from simulator.market.market import Market
from tests.backend.distributed.services_here import begin_run, last_parameters
from tests.small_world import RUN, one_process_trainer, small_config, small_market

STEPS = 6
KILLS = int(os.environ.get("KILLS", "12"))


@dataclass(frozen=True)
class World:
    """A training, and where it ends in one process."""

    config: Config
    market: Market
    joint: Path
    best_score: float | None


@pytest.fixture(scope="module")
def world(nano: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Six steps over a market in files, as processes load it."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("world")
    write_market(small_market(), folder / "market")
    config = small_config(base_model=str(nano), stage1_max_steps=1, stage2_steps=STEPS - 1, shards=2)
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
    state = CoordinatorState(folder).load()
    assert state is not None and (state.step, state.best_score) == (STEPS, world.best_score)


def train(world: World, folder: Path, workers: int = 2, files: str = "", on_step: object = None) -> None:
    """The run on a cluster of its own, from where it stopped."""
    where = str(folder / "store")

    def progress(one: Progress) -> None:
        if callable(on_step):
            on_step(one.step)

    with Store.open(where) as store:
        record = (store, RUN, "train", 1, world.market.content_hash, world.config)
        with recorded_run(*record, resumes=True), cluster(LOCAL):
            run_ray(
                world.config, world.market, store, RUN, folder / RUN, RayRequest(where, workers, files),
                lambda what, done, total: None, progress,
            )  # fmt: skip


def actors() -> list[int]:
    """The processes of this machine that are a service of ours."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.read_bytes().startswith(b"ray::ServiceActor"):
                found.append(int(path.parent.name))
    return found


@contextmanager
def killer(kills: int) -> Iterator[list[int]]:
    """Kill actors at random moments for a block; what was killed."""
    rng, killed, over = random.Random(1), list[int](), threading.Event()

    def work() -> None:
        while len(killed) < kills and not over.wait(rng.uniform(0.5, 4.0)):
            if alive := [one for one in actors() if one not in killed]:
                victim = rng.choice(alive)
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                    killed.append(victim)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


@pytest.mark.slow
def test_two_workers_are_bit_equal_after_six_steps_whoever_is_killed(world: World, tmp_path: Path) -> None:
    with killer(KILLS) as killed:
        train(world, tmp_path)
    assert len(killed) >= min(KILLS, 5), "the run was over before it was disturbed"
    assert_equal(world, tmp_path / RUN)


@pytest.mark.slow
def test_an_interrupted_driver_goes_on_and_its_cluster_leaves_nothing(world: World, tmp_path: Path) -> None:
    """With files that travel: no actor uses the run's folder."""
    url = f"file://{tmp_path / 'bucket'}"

    def interrupt(step: int) -> None:
        if step == 2:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="--resume"):
        train(world, tmp_path, 1, url, interrupt)
    until = time.monotonic() + 30
    while actors() and time.monotonic() < until:
        time.sleep(0.2)
    assert not ray.is_initialized() and not actors()
    train(world, tmp_path, 2, url)
    state = CoordinatorState(tmp_path / RUN).load()
    assert state is not None and (state.step, state.best_score) == (STEPS, world.best_score)
    assert not (tmp_path / RUN / "services" / "trader").exists()


@pytest.mark.slow
def test_what_an_actor_raises_is_said_in_its_words(world: World, tmp_path: Path) -> None:
    where = str(tmp_path / "store")
    with (
        Store.open(where) as store,
        pytest.raises((UserError, RunFailed), match="is trained on other data than"),
        recorded_run(store, RUN, "train", 1, "other", world.config),
        cluster(LOCAL),
    ):
        run_ray(
            world.config, world.market, store, RUN, tmp_path / RUN, RayRequest(where, 1),
            lambda what, done, total: None, lambda one: None,
        )  # fmt: skip
