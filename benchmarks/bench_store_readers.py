"""What readers cost a process that holds the store and writes a training's steps: two programs that look at the run all
the time, as the page and `serve status` do, and none.

Processor time of the holder is compared over the same time and the same writes: readers have a core of their own, and
what they take from the training is what its gateway and its engine do for them. A real training holds the store in the
same way; only its own work, which is most of its time and the same in both cases, is left out here.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from backend.store.records import MetricRecord, RunRecord
from backend.store.store import Store
from benchmarks.bench_store_write import write_step
from benchmarks.run import Result

READERS = 2
PAUSE = 1.0  # seconds between two looks
STEPS_BEFORE = 20  # of 128 rollouts and 512 conversations
STEP_SECONDS = 4.0  # a step of a nano team takes about that long
SECONDS = 16.0  # of each measurement: four steps
ROUNDS = 2
LIMIT = 0.02
METRICS = 60  # of a step, about as many as a training writes
# What a page and `serve status` ask for.
READER = """
import sys, time
from backend.store import Store
with Store.open(sys.argv[1], reads_only=True) as store:
    print("open", flush=True)
    while True:
        for run in store.runs():
            for look in (store.metrics, store.evaluations, store.services, store.calls_per_rollout):
                look(run.run)
        time.sleep(float(sys.argv[2]))
"""


def run() -> list[Result]:
    """The row `store.readers`: the share of a core that two readers cost; the median over the rounds."""
    shares = []
    with tempfile.TemporaryDirectory() as scratch, Store.open(Path(scratch)) as store:
        store.add_run(RunRecord("run", "train", 1, "hash", 1, {"config": {}}))
        for step in range(STEPS_BEFORE):
            _write(store, step)
        step = STEPS_BEFORE
        for _ in range(ROUNDS):
            spent = []
            for readers in (0, READERS):
                with _looking(Path(scratch), readers):
                    spent.append(_holder_seconds(store, step))
                step += int(SECONDS / STEP_SECONDS)
            shares.append((spent[1] - spent[0]) / SECONDS)
    share = statistics.median(shares)
    return [
        {
            "name": "store.readers",
            "value": share,
            "unit": "of a core, in the process that holds the store",
            "against": f"the same writes without readers; {READERS} programs, a look at the run every {PAUSE:g} s",
            "ratio": share,
            "target": f"<= {LIMIT}",
            "met": share <= LIMIT,
        }
    ]


def _write(store: Store, step: int) -> None:
    write_step(store, step)
    store.put([MetricRecord("run", step, {f"team/metric_{number}": 0.5 for number in range(METRICS)})])


def _holder_seconds(store: Store, step: int) -> float:
    """Processor seconds of this process in which it writes steps at the pace of a training."""
    began, before = time.monotonic(), time.process_time()
    for number in range(int(SECONDS / STEP_SECONDS)):
        _write(store, step + number)
        time.sleep(max(0.0, began + (number + 1) * STEP_SECONDS - time.monotonic()))
    return time.process_time() - before


@contextmanager
def _looking(folder: Path, readers: int) -> Iterator[None]:
    """So many readers at work for a block."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", READER, str(folder), str(PAUSE)], stdout=subprocess.PIPE, text=True, env=os.environ
        )
        for _ in range(readers)
    ]
    try:
        for process in processes:
            assert process.stdout is not None and process.stdout.readline().strip() == "open"
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()
