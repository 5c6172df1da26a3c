"""`serve lead` twice on one run, as processes: one goes on where the other was killed or stopped in the middle of a
step, and the run ends where an undisturbed one does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from backend.builders.market import load_market
from backend.config.ownership import digest_of
from backend.config.schema import Config
from backend.distributed.coordinator import coordinator_state
from backend.distributed.heartbeat import COORDINATOR
from backend.store.records import ServiceRecord
from backend.store.store import Store
from cryptosentinel.agents.registry import ROLES
from simulator.data.archive import write_market
from simulator.market.market import Market
from tests.backend.distributed.disturber import strike_at
from tests.backend.distributed.process_threads import begin_by_hand, begin_run, last_parameters
from tests.backend.store.servers import environment
from tests.small_world import RUN, one_process_trainer, small_config, small_market

STEPS, STRUCK_AT = 8, 2
LIMIT = 900.0  # seconds for each thing that is waited for: a busy machine takes its time


class Commands:
    """`serve` commands on one store and one folder of runs, as on one machine, each with a log of its own."""

    def __init__(self, top: Path, store: str, approved: str) -> None:
        self._top, self._options = top, ["--store", store, "--approved", approved, "--runs", str(top / "runs")]
        self.children: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str) -> None:
        """Start a command by the name `name`."""
        command = [sys.executable, "-m", "backend.cli", "serve", *arguments, *self._options]
        variables = environment(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
        with (self._top / f"{name}.log").open("wb") as log:
            self.children[name] = subprocess.Popen(command, stdout=log, stderr=log, env=variables)

    def log(self, name: str) -> str:
        """What a command has written."""
        return (self._top / f"{name}.log").read_text()

    def end_of(self, name: str) -> int:
        """The exit code of a command that ends by itself."""
        return self.children[name].wait(LIMIT)

    def wait_until(self, what: str, is_so: Callable[[], bool]) -> None:
        """Wait for something; no command may fail meanwhile."""
        until = time.monotonic() + LIMIT
        while not is_so():
            failed = [name for name, child in self.children.items() if (child.poll() or 0) > 0]
            assert not failed, f"{failed[0]} failed before {what}: {self.log(failed[0])[-2000:]}"
            assert time.monotonic() < until, f"never {what}"
            time.sleep(0.05)


@contextmanager
def commands(top: Path, store: str, approved: str) -> Iterator[Commands]:
    """Commands for a block; what is left of them is killed."""
    started = Commands(top, store, approved)
    try:
        yield started
    finally:
        for child in started.children.values():
            child.send_signal(signal.SIGCONT)
            child.kill()
            child.wait()


@pytest.fixture
def world(nano: Path, tmp_path: Path) -> tuple[Config, Market, Path, float | None]:
    """A training of a few steps over a market in files; the folder and the best score of it in one loop."""
    write_market(small_market(), tmp_path / "market")
    config = small_config(base_model=str(nano), stage1_max_steps=1, stage2_steps=STEPS - 1, shards=2)
    data = config.market.model_copy(update={"data": str(tmp_path / "market")})
    config = config.model_copy(update={"market": data})
    market = load_market(config.market, config.costs)  # as the processes load it
    joint = tmp_path / "joint"
    joint.mkdir()
    with Store.open("mem://") as store:
        begin_run(store, config)
        state = one_process_trainer(config, market, store, joint, nano).run()
    return config, market, joint, state.best_score


def leader_of(store: Store) -> ServiceRecord | None:
    return next((service for service in store.services(RUN) if service.name == COORDINATOR), None)


@pytest.mark.slow
@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_leader_that_is_gone_is_replaced_in_the_middle_of_a_step(
    blow: signal.Signals, world: tuple[Config, Market, Path, float | None], tmp_path: Path
) -> None:
    """Both work in the same folder. One that was stopped goes on when the other leads: it writes nothing and ends."""
    config, market, joint, best_score = world
    address = str(tmp_path / "store")
    with Store.open(address) as store, commands(tmp_path, address, digest_of(config.to_dict())) as serve:
        begin_by_hand(store, config, market)
        serve.start("first", "lead", RUN)
        serve.wait_until("somebody leads", lambda: leader_of(store) is not None)
        serve.start("second", "lead", RUN)
        serve.wait_until("another stands by", lambda: "standing by" in serve.log("second"))
        for role in ROLES:  # the leader has waited for them
            serve.start(f"trainer-{role}", "trainer", RUN, "--role", role)
        first = serve.children["first"].pid

        def is_struck() -> bool:
            leader = leader_of(store)
            assert leader is not None and leader.state != "stopped", "the run was over before its leader was struck"
            is_there = (leader.step or 0) >= STRUCK_AT and leader.state == "working"
            return is_there and bool(strike_at(store, first, lambda pid: os.kill(pid, blow), only_at_work=True))

        serve.wait_until(f"the leader was at work at step {STRUCK_AT}", is_struck)

        def is_replaced() -> bool:
            leader = leader_of(store)
            return leader is not None and leader.process.startswith(f"{serve.children['second'].pid}@")

        serve.wait_until("the other leads", is_replaced)
        serve.children["first"].send_signal(signal.SIGCONT)
        assert serve.end_of("second") == 0, serve.log("second")[-3000:]
        if blow is signal.SIGSTOP:
            assert serve.end_of("first") != 0
            assert "another process" in serve.log("first") and "Traceback" not in serve.log("first")
        for role in ROLES:
            assert serve.end_of(f"trainer-{role}") == 0, serve.log(f"trainer-{role}")[-3000:]
        assert store.run(RUN).status == "finished"
        assert [record.step for record in store.metrics(RUN)] == list(range(STEPS + 1))
    folder = tmp_path / "runs" / RUN
    assert (folder / "team.json").is_file()
    assert coordinator_state(folder).best_score == best_score
    for role in ROLES:
        mine = last_parameters(folder / "processes" / f"trainer-{role}", role)
        theirs = last_parameters(joint, role)
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs), f"{role} has become another"
