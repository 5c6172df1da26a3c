"""What the store costs: `store.large` opens one of 200,000 conversations in a process of its own (seconds and memory),
`store.share` is its share of a training step of the nano team, in the folder of a run, all writes included.

The team of `store.share` is a small nano after a short warm start, so that its conversations are those of a training;
the step has the demo's number of windows and rollouts. `python -m benchmarks.bench_store 20000` makes a smaller store
than `store.large`: making it takes most of the time.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from backend.builders.market import load_market
from backend.config.load import load_config
from backend.config.schema import Config
from backend.store.maintenance import size_of
from backend.store.records import MetricRecord, QueryRecord, RewardRecord, RolloutRecord, RunRecord, TrajectoryRecord
from backend.store.store import Store
from backend.training.components import TrainingParts
from backend.training.in_process import local_learners, local_trainer
from backend.training.rl_job import training_parts
from backend.training.start import begin
from backend.training.trainer import Progress
from benchmarks.run import Result, at_most, table

BY_NAME_ONLY = True
TRAJECTORIES = 200_000
TOKENS = 200
ROLES = ("manager", "market_analyst", "risk_analyst", "trader")
A_STEP = 512  # conversations: 128 rollouts with one of each role
A_RUN = 39  # steps
OPENINGS = 5
MOST_SECONDS, MOST_MEGABYTES = 1.0, 200.0

# Opens the store, lists its runs, reads one role's step, and prints how long each took and the memory at most.
OPEN = """
import json, re, sys, time
from pathlib import Path
from backend.store.store import Store
times = [time.perf_counter()]
with Store.open(sys.argv[1]) as store:
    times.append(time.perf_counter())
    # Of this program alone; what `resource` gives begins with the memory of the process that started it.
    memory = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
    run = store.runs()[-1].run
    times.append(time.perf_counter())
    assert store.trajectories(run, 3, "trader")
    times.append(time.perf_counter())
print(json.dumps([memory, *(after - before for before, after in zip(times, times[1:]))]))
"""

STEPS = 5
LIMIT = 0.04
SETTINGS = (
    "training.queries_per_step=16", "training.rollouts_per_query=8", "training.stage1_steps=0",
    "training.stage1_max_steps=0", f"training.stage2_steps={STEPS + 1}", "training.validation_every=1000",
    "training.validation_queries=4", "training.scenario_paths=16",
)  # fmt: skip


def run() -> list[Result]:
    """The rows `store.share` and `store.large`."""
    return share() + large()


def large(trajectories: int = TRAJECTORIES) -> list[Result]:
    """The slowest of several openings, each in a process of its own: with a cold page cache and with a warm one."""
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "s"
        made = make_store(folder, trajectories)
        size = f"{made:,} conversations of {TOKENS} tokens, {size_of(folder / 'db') / 1e6:,.0f} MB"
        for state in ("cold", "warm"):
            runs = [open_once(folder, state == "cold") for _ in range(OPENINGS)]
            memory, seconds, listing, reading = (max(values) for values in zip(*runs, strict=True))
            results += [
                at_most(f"store.large.{state}.open", seconds, f"s, {size}", MOST_SECONDS),
                at_most(f"store.large.{state}.list", listing, f"s to list the runs, {size}", MOST_SECONDS),
                at_most(f"store.large.{state}.read", reading, f"s to read a role's step, {size}", MOST_SECONDS),
                Result(name=f"store.large.{state}.memory", value=memory, unit=f"MB, {size}",
                       against=f"{MOST_MEGABYTES:.0f} MB", ratio=memory / MOST_MEGABYTES, target="<= 1.0",
                       met=memory <= MOST_MEGABYTES),
            ]  # fmt: skip
    return results


def make_store(folder: Path, trajectories: int) -> int:
    """A store of runs with at least that many conversations, their edges, rewards and rollouts; returns how many."""
    made = 0
    with Store.open(folder) as store:
        for number in range(-(-trajectories // (A_STEP * A_RUN))):
            name = f"train-{number}"
            store.add_run(RunRecord(name, "train", 1, "hash", number, {"config": {}}, "finished", number + 1))
            for step in range(A_RUN):
                if made < trajectories:
                    _write_step(store, name, step)
                    made += A_STEP
    return made


def open_once(folder: Path, cold: bool) -> list[float]:
    """Megabytes at the end of opening; seconds to open, to list, to read."""
    for path in folder.rglob("*") if cold else ():
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    root = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-c", OPEN, str(folder)]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    return [float(value) for value in json.loads(printed)]


def _write_step(store: Store, run: str, step: int) -> None:
    tokens = (tuple(range(TOKENS)), (True,) * TOKENS, (-0.25,) * TOKENS)
    calls = {"market_analyst": 1, "risk_analyst": 1, "trader": 1}
    rollouts, trajectories, rewards = [], [], []
    for query in range(A_STEP // 16):
        store.put(QueryRecord(run, step, query, 2, ("A",), 7, 1_000, 9))
        for rollout in range(4):
            rollouts.append(RolloutRecord(run, step, query, rollout, 5, True, 0.5, calls, {"fees": 0.1}))
            for role in ROLES:
                key = (run, step, query, rollout, role, 0)
                caller = None if role == "manager" else ("manager", 0)
                trajectories.append(TrajectoryRecord(*key, "v1", *tokens, caller=caller, format_score=1.0))
                rewards.append(RewardRecord(*key, 0.5, {"format": 1.0}, 0.1))
    store.put(*rollouts)
    store.put(*trajectories)
    store.put(*rewards)
    store.put(MetricRecord(run, step, {"team/outcome": 0.5}))


class _Timed:
    """A store that adds up the time spent in it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def timed(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return found(*arguments, **named)
            finally:
                self.seconds += time.perf_counter() - began

        return timed


def share() -> list[Result]:
    """The row `store.share`; the value is the median share over the steps after the first."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        shares = _shares()
    finally:
        torch.set_num_threads(threads)
    median = statistics.median(shares)
    return [
        {
            "name": "store.share",
            "value": median,
            "unit": "of a step",
            "against": "a training step of a small nano team, 16 windows x 8 rollouts, one thread",
            "ratio": median,
            "target": f"<= {LIMIT}",
            "met": median <= LIMIT,
        }
    ]


def _shares() -> list[float]:
    shares: list[float] = []
    with tempfile.TemporaryDirectory() as scratch, Store.open(Path(scratch) / "store") as store:
        timed: Any = _Timed(store)
        last = time.perf_counter()

        def stepped(progress: Progress) -> None:
            nonlocal last
            now = time.perf_counter()
            if progress.step > 1:  # the first step warms up, and had a validation before it
                shares.append(timed.seconds / (now - last))
            last, timed.seconds = now, 0.0

        train(load_config("quick", SETTINGS), store, timed, Path(scratch) / "run", stepped).recorder.close()
    return shares


def train(
    config: Config, store: Store, recorded: Any, folder: Path, stepped: Callable[[Progress], None] | None = None
) -> TrainingParts:
    """Train from the warm start on in `folder`, in stage 2, with all records going to `recorded`, which is `store` or
    stands before it; the caller closes the recorder."""
    market = load_market(config.market, config.costs)
    silent: Callable[[str, int, int], None] = lambda what, done, total: None  # noqa: E731  # a callback of no interest
    folder.mkdir()
    store.add_run(RunRecord("bench", "train", 1, market.content_hash, 1, {}))
    base = begin(config, market, folder, silent)
    parts = training_parts(config, market, recorded, "bench", folder, base, folder)
    trainer = local_trainer(parts, local_learners(parts))
    trainer.state.stage = 2
    trainer.run(stepped)
    return parts


if __name__ == "__main__":
    from rich.console import Console

    Console(width=200).print(table(large(int(sys.argv[1]) if len(sys.argv) > 1 else TRAJECTORIES)))
