"""Two hundred rollout workers on one store, as many as a large training has: each signs in, sends heartbeats, claims
shards of a step, and writes their windows, rollouts, conversations and markers behind its fences. Nothing is computed.
No worker is refused, no record is lost or written twice, and the gateway's memory is bounded."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from backend.store.records import QueryRecord, Record, RolloutRecord, RunRecord, ServiceRecord, TrajectoryRecord
from backend.store.store import Store
from benchmarks.run import Result

WORKERS, SHARDS = 200, 400
ROLLOUTS, TOKENS = 4, 400  # of a shard, and of each of its conversations
PROCESSES = 4  # among which the workers are divided, each with a connection of its own
MOST_MEMORY = 1_000  # MB of the process that holds the store
_ACCOUNT = {"CRYPTOSENTINEL_STORE_USER": "bench", "CRYPTOSENTINEL_STORE_PASSWORD": "of two hundred workers"}
_WORKERS = """
import sys, threading
import numpy, safetensors.numpy  # which the store imports when it writes tokens: threads may not do so at once
from backend.distributed.heartbeat import Heartbeat
from backend.store.records import ClaimRecord, QueryRecord, RolloutRecord, ShardRecord, TrajectoryRecord
from backend.store.sharing.fences import Fence, claim_order
from backend.store.store import Store
url, first, workers, shards, rollouts, tokens = sys.argv[1], *map(int, sys.argv[2:])
failures = []
together = threading.Barrier(workers)
def roll_out(store, shard):
    store.clear_shard("bench", 0, shard, [shard])
    store.add_queries([QueryRecord("bench", 0, shard, 2, ("A",), 7, 1, 9)])
    store.add_rollouts([
        RolloutRecord("bench", 0, shard, one, 5, True, 0.5, {"trader": 1}, {"fees": 0.1}) for one in range(rollouts)
    ])
    text = tuple(range(tokens)), (True,) * tokens, (-0.5,) * tokens
    callers = {"manager": None, "trader": ("manager", 0)}
    store.add_trajectories([
        TrajectoryRecord("bench", 0, shard, one, role, 0, "v", *text, caller=caller)
        for one in range(rollouts) for role, caller in callers.items()
    ], shard)
    store.add_shard(ShardRecord("bench", 0, shard, 1, rollouts, 2 * rollouts))
def next_shard(store, heartbeat):
    claimed = store.claims("bench", 0)
    for shard in claim_order([shard for shard in range(shards) if shard not in claimed], heartbeat.process):
        claim = ClaimRecord("bench", 0, shard, heartbeat.name, heartbeat.process)
        if store.claim_shard(claim, 600.0):
            return shard
def worker(number):
    try:
        with Store.open(url) as store, Heartbeat(store, "bench", f"rollout-{number}", "rollout") as heartbeat:
            together.wait()
            while (shard := next_shard(store, heartbeat)) is not None:
                roll_out(heartbeat.store.fenced(Fence("claim", ("bench", 0, shard), heartbeat.process)), shard)
    except Exception as error:
        failures.append(f"{type(error).__name__}: {error}")
        together.abort()
threads = [threading.Thread(target=worker, args=(first + number,)) for number in range(workers)]
for thread in threads: thread.start()
for thread in threads: thread.join()
sys.exit("; ".join(failures[:3]) or 0)
"""


def run() -> list[Result]:
    """The row `store.clients`; the value is the most memory of the gateway in MB."""
    with tempfile.TemporaryDirectory() as folder:
        return [_measured(Path(folder))]


def _measured(folder: Path) -> Result:
    environment = os.environ | _ACCOUNT
    command = [sys.executable, "-m", "backend.cli", "serve", "store", "--path", str(folder / "store"), "--port", "0"]
    gateway = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    try:
        assert gateway.stdout is not None
        url = next(word.rstrip(",;") for word in gateway.stdout.readline().split() if word.startswith("ws://"))
        with Store.open(folder / "store") as store:
            store.add_run(RunRecord("bench", "train", 1, "none", 1, {}))
            each, began = WORKERS // PROCESSES, time.perf_counter()
            sizes = [str(each), str(SHARDS), str(ROLLOUTS), str(TOKENS)]
            groups = [
                subprocess.Popen([sys.executable, "-c", _WORKERS, url, str(first), *sizes], env=environment)
                for first in range(0, WORKERS, each)
            ]
            refused = sum(group.wait() != 0 for group in groups)
            seconds = time.perf_counter() - began
            lost = _lost(store)
        peak = _peak_memory(gateway.pid)
    finally:
        gateway.terminate()
        gateway.wait()
    return {
        "name": "store.clients",
        "value": peak,
        "unit": "MB",
        "against": f"{MOST_MEMORY} MB; {WORKERS} workers, {SHARDS} shards of {2 * ROLLOUTS} conversations in "
        f"{seconds:.0f} s: {lost} records lost, {refused} of {PROCESSES} groups of workers with a refusal",
        "ratio": MOST_MEMORY / peak,
        "target": 1.0,
        "met": peak <= MOST_MEMORY and not lost and not refused,
    }


def _lost(store: Store) -> int:
    """Records that are not there, or more than once, and conversations whose tokens are not what was written."""
    expected: dict[type[Record], int] = {
        ServiceRecord: WORKERS, QueryRecord: SHARDS, RolloutRecord: SHARDS * ROLLOUTS,
        TrajectoryRecord: 2 * SHARDS * ROLLOUTS,
    }  # fmt: skip
    lost = sum(abs(number - store.count(kind, "bench")) for kind, number in expected.items())
    lost += SHARDS - len(store.shards("bench", 0))
    there = store.conversation_tokens("bench", 0, "trader")
    return lost + sum(tokens.ids.tolist() != list(range(TOKENS)) for _, tokens in there)


def _peak_memory(process: int) -> float:
    """The most resident memory that a process has had, in MB."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024
