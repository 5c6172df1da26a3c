"""Strikes hit processes in the middle of a step by what these have reported, whatever the clock says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from backend.store.records import RunRecord, ServiceRecord, ServiceState
from backend.store.store import Store
from tests.backend.distributed.disturber import AT_WORK_SHARE, Disturber, strike_at
from tests.small_world import RUN

STRIKES = 10
SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.open("mem://") as opened:
        opened.add_run(RunRecord(RUN, "train", 1, "hash", 1, {}))
        yield opened


@pytest.fixture
def process() -> Iterator[int]:
    with subprocess.Popen(SLEEPS) as child:
        yield child.pid
        child.kill()


def report(store: Store, process: int, state: ServiceState, step: int | None = 0, beat: int = 1) -> None:
    store.report_service(
        ServiceRecord(RUN, f"worker-{process}", "rollout", None, "v", f"{process}@h", state, step, beat)
    )


def state_of(process: int) -> str:
    """As the system has it: T of one that is stopped."""
    with open(f"/proc/{process}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def test_one_that_waits_is_spared_and_goes_on(store: Store, process: int) -> None:
    struck: list[int] = []
    idle: list[tuple[ServiceState, int | None]] = [("starting", None), ("waiting", 3), ("stopped", 3)]
    for state, step in idle:
        report(store, process, state, step)
        assert strike_at(store, process, struck.append, only_at_work=True) is None
        assert not struck and state_of(process) != "T"
        assert strike_at(store, process, struck.append, only_at_work=False) is False
        assert struck.pop() == process
        os.kill(process, signal.SIGCONT)
    report(store, process, "working", 3)
    assert strike_at(store, process, struck.append, only_at_work=True) is True
    assert struck == [process] and state_of(process) == "T", "it went on before it was struck"


def test_the_share_of_strikes_at_work_is_that_of_the_plan(store: Store) -> None:
    """Processes that are at work for a third of the time, and a new one in the place of each that is killed."""
    children: dict[str, subprocess.Popen[bytes]] = {}
    over = threading.Event()
    disturber = Disturber(store, lambda process: os.kill(process, signal.SIGKILL), 3, STRIKES, (0.0, 0.01), 2)

    def begin(name: str) -> None:
        children[name] = subprocess.Popen(SLEEPS)
        disturber.started(name, children[name].pid)

    def live() -> None:
        beat = 0
        while not over.wait(0.1):
            for name, child in list(children.items()):
                if child.poll() is None:
                    beat += 1
                    report(store, child.pid, "working" if beat // 4 % 3 == 0 else "waiting", 0, beat)
                else:
                    begin(name)

    for name in ("a", "b"):
        begin(name)
    thread = threading.Thread(target=live)
    thread.start()
    try:
        disturber.join(600)
    finally:
        over.set()
        thread.join()
        for child in children.values():
            child.kill()
            child.wait()
    assert not disturber.left and len(disturber.disturbed) == STRIKES
    assert disturber.at_work >= AT_WORK_SHARE * STRIKES
