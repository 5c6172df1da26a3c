"""A process that hangs is told from one that is slow, and not started again for ever."""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.builders.market import load_market
from backend.distributed import heartbeat, local_launcher, silence
from backend.distributed.heartbeat import Heartbeat
from backend.distributed.local_launcher import run_processes
from backend.distributed.silence import MOST_HANGS, SilenceWatch
from backend.store.records import RunRecord, ServiceRecord
from backend.store.run_record import recorded_run
from backend.store.store import Store
from cryptosentinel.agents.registry import ROLES
from simulator.data.archive import write_market
from simulator.errors import RunFailed
from tests.backend.distributed.disturber import Disturber
from tests.backend.distributed.process_threads import begin_run, last_parameters
from tests.small_world import RUN, one_process_trainer, small_config, small_market

NAME = "trainer-trader"
STOPS = 20
STEPS = 16


def record(pid: int, beat: int, step: int = 0) -> ServiceRecord:
    return ServiceRecord(RUN, NAME, "trainer", "trader", "v", f"{pid}@host/ab", "working", step, beat)


@settings(deadline=None)
@given(st.lists(st.floats(0.1, 30.0), min_size=1, max_size=20))
def test_who_is_silent_for_too_long_hangs_and_nobody_else(pauses: list[float]) -> None:
    """Whatever the times between two heartbeats; the database's clock plays no part."""
    watch, now, hung = SilenceWatch(silent_seconds=10.0), 0.0, 0
    watch.look(NAME, 7, [record(7, 0)], now)
    for beat, pause in enumerate(pauses, 1):
        now += pause
        hangs = watch.look(NAME, 7, [record(7, beat - 1, beat)], now)
        assert (hangs is not None) == (pause > 10.0)
        hung += hangs is not None
        assert watch.look(NAME, 7, [record(7, beat, beat)], now) is None
    assert hung == sum(pause > 10.0 for pause in pauses)


def test_one_that_is_started_again_has_its_time_and_the_former_ones_beats_are_not_its_own() -> None:
    watch = SilenceWatch(silent_seconds=10.0, start_seconds=100.0)
    assert watch.look(NAME, 7, [], 0.0) is None
    assert watch.look(NAME, 7, [], 99.0) is None, "it is still loading"
    assert "sent no first heartbeat for 100 s before its first step" in str(watch.look(NAME, 7, [], 101.0))
    assert watch.look(NAME, 8, [record(7, 5)], 102.0) is None
    assert watch.look(NAME, 8, [record(7, 6)], 190.0) is None
    assert watch.look(NAME, 8, [record(7, 7)], 203.0) is not None


def test_one_that_hangs_in_one_step_again_and_again_ends_the_run() -> None:
    watch = SilenceWatch(silent_seconds=1.0, start_seconds=1.0)
    for life in range(MOST_HANGS):
        assert watch.look(NAME, life, [record(life, 1, 5)], 10.0 * life) is None
        assert watch.look(NAME, life, [record(life, 1, 5)], 10.0 * life + 2.0) is not None
    assert watch.look(NAME, 77, [record(77, 1, 5)], 1000.0) is None
    with pytest.raises(RunFailed, match=r"trainer-trader has hung 4 times at step 5: it was killed and started again"):
        watch.look(NAME, 77, [record(77, 1, 5)], 1002.0)


def test_one_whose_work_never_ends_kills_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a call that never returns: the heartbeat's thread lives on and would hide it."""
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.02)
    monkeypatch.setattr(heartbeat, "_STUCK_LEAST", 0.05)
    monkeypatch.setattr(heartbeat.os, "kill", lambda pid, number: killed.append((pid, number)))
    with Store.open("mem://") as store, caplog.at_level(logging.ERROR):
        store.add_run(RunRecord(RUN, "train", 1, "hash", 1, {}))
        with Heartbeat(store, RUN, NAME, "trainer", "trader") as own:
            own.report("waiting", 0, "for rollouts")
            time.sleep(0.3)
            assert not killed, "who waits is not stuck"
            own.report("working", 0)
            own.report("working", 1)
            until = time.monotonic() + 20
            while not killed and time.monotonic() < until:
                time.sleep(0.01)
    assert killed[0] == (os.getpid(), signal.SIGKILL)
    assert "stuck: at one piece of work" in caplog.text


class Stopper:
    """Stops processes with SIGSTOP. Some of them go on later (SIGCONT), when another has their place or has not."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def __call__(self, process: int) -> None:
        os.kill(process, signal.SIGSTOP)
        if self._rng.random() < 0.3:
            threading.Timer(self._rng.uniform(1.0, 20.0), self._go_on, (process,)).start()

    @staticmethod
    def _go_on(process: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)


@pytest.mark.slow
def test_processes_that_are_stopped_end_where_one_loop_does(
    nano: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "SILENT_SECONDS", 12.0)
    monkeypatch.setattr(silence, "START_SECONDS", 60.0)
    monkeypatch.setattr(silence, "MOST_HANGS", STOPS)  # they hang for no reason of their own
    monkeypatch.setattr(local_launcher, "_LOOK", 0.5)
    write_market(small_market(), tmp_path / "market")
    config = small_config(base_model=str(nano), stage1_max_steps=1, stage2_steps=STEPS - 1, queries_per_step=4)
    data = config.market.model_copy(update={"data": str(tmp_path / "market")})
    config = config.model_copy(update={"market": data})
    market = load_market(config.market, config.costs)
    joint, apart = tmp_path / "joint", tmp_path / "apart"
    joint.mkdir()
    with Store.open("mem://") as store:
        begin_run(store, config)
        one_process_trainer(config, market, store, joint, nano).run()
    address = str(tmp_path / "store")
    with Store.open(address) as store:
        stopper = Disturber(store, Stopper(2), 1, STOPS, (0.5, 4.0))
        with recorded_run(store, RUN, "train", 1, market.content_hash, config):
            run_processes(address, RUN, apart, 1, lambda step: None, stopper.started)
    print(stopper)
    assert not stopper.left, "the run was over before it was disturbed enough"
    assert stopper.at_work >= 0.6 * STOPS, "too few were stopped in the middle of a step"
    for role in ROLES:
        mine, theirs = last_parameters(apart / RUN, role), last_parameters(joint, role)
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs), f"{role} has become another"
