"""What it takes to open a store of 200,000 conversations in a process of its own: seconds and memory.

`python -m benchmarks.bench_store_large 20000` makes a smaller one: making it takes most of the time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from backend.store import MetricRecord, QueryRecord, RewardRecord, RolloutRecord, RunRecord, Store, TrajectoryRecord
from backend.store.maintenance import size_of
from benchmarks.pace import within
from benchmarks.run import Result, table

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
from backend.store import Store
times = [time.perf_counter()]
with Store.open(sys.argv[1], reads_only=True) as store:
    times.append(time.perf_counter())
    # Of this program alone; what `resource` gives begins with the memory of the process that started it.
    memory = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
    run = store.runs()[-1].run
    times.append(time.perf_counter())
    assert store.trajectories(run, 3, "trader")
    times.append(time.perf_counter())
print(json.dumps([memory, *(after - before for before, after in zip(times, times[1:]))]))
"""


def run(trajectories: int = TRAJECTORIES) -> list[Result]:
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
                within(f"store.large.{state}.open", seconds, f"s, {size}", MOST_SECONDS),
                within(f"store.large.{state}.list", listing, f"s to list the runs, {size}", MOST_SECONDS),
                within(f"store.large.{state}.read", reading, f"s to read a role's step, {size}", MOST_SECONDS),
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
        store.add_queries([QueryRecord(run, step, query, 2, ("A",), 7, 1_000, 9)])
        for rollout in range(4):
            rollouts.append(RolloutRecord(run, step, query, rollout, 5, True, 0.5, calls, {"fees": 0.1}))
            for role in ROLES:
                key = (run, step, query, rollout, role, 0)
                caller = None if role == "manager" else ("manager", 0)
                trajectories.append(TrajectoryRecord(*key, "v1", *tokens, caller=caller, format_score=1.0))
                rewards.append(RewardRecord(*key, 0.5, {"format": 1.0}, 0.1))
    store.add_rollouts(rollouts)
    store.add_trajectories(trajectories)
    store.add_rewards(rewards)
    store.put([MetricRecord(run, step, {"team/outcome": 0.5})])


if __name__ == "__main__":
    from rich.console import Console

    Console(width=200).print(table(run(int(sys.argv[1]) if len(sys.argv) > 1 else TRAJECTORIES)))
