"""What readers cost a training that holds the store: two programs that look at it all the time, as the page and `serve
status` do, and none. The training is that of `store.share`; with the same seeds it does the same work each time.

Processor time of the training's process is compared, step by step: readers have a core of their own, and what they take
from the training is what its gateway and its engine do for them.
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

import torch

from backend.store.store import Store
from backend.training.trainer import Progress
from benchmarks.bench_store_share import train
from benchmarks.run import Result

READERS = 2
PAUSE = 1.0  # seconds between two looks
ROUNDS = 2
LIMIT = 0.02
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
    """The row `store.readers`: the share of a step that two readers cost, as a median over the steps."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone, read = _quickest(0), _quickest(READERS)
    finally:
        torch.set_num_threads(threads)
    share = statistics.median(with_them / without - 1.0 for with_them, without in zip(read, alone, strict=True))
    return [
        {
            "name": "store.readers",
            "value": share,
            "unit": "of a step's processor time",
            "against": f"the same steps without readers; {READERS} programs, a look at the run every {PAUSE:g} s",
            "ratio": share,
            "target": f"<= {LIMIT}",
            "met": share <= LIMIT,
        }
    ]


def _quickest(readers: int) -> list[float]:
    """Processor seconds of each step, the least of several rounds."""
    rounds = [_steps(readers) for _ in range(ROUNDS)]
    return [min(seconds) for seconds in zip(*rounds, strict=True)]


def _steps(readers: int) -> list[float]:
    seconds: list[float] = []
    last = 0.0

    def stepped(progress: Progress) -> None:
        nonlocal last
        now = time.process_time()
        if progress.step > 1:  # the first step warms up, and had a validation before it
            seconds.append(now - last)
        last = now

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "store"
        with Store.open(folder) as store, _looking(folder, readers):
            train(store, store, Path(scratch) / "run", stepped)
    return seconds


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
