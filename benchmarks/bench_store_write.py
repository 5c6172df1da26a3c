"""What it costs to store one training step: 128 rollouts, 512 conversations of 100 tokens, their rewards and edges."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from backend.store import RewardRecord, RolloutRecord, Store, TrajectoryRecord
from benchmarks.pace import within
from benchmarks.run import Result

ROLLOUTS = 128
TOKENS = 100
ROUNDS = 5
TARGET_SECONDS = 0.3


def run() -> list[Result]:
    """Median seconds of a step's writes, against the target itself."""
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder)) as store:
        seconds = [write_step(store, step) for step in range(ROUNDS)]
    return [within("store.write", statistics.median(seconds), "s a step", TARGET_SECONDS)]


def write_step(store: Store, step: int, run: str = "run") -> float:
    """Seconds to write one step of a run."""
    tokens = (tuple(range(TOKENS)), (True,) * TOKENS, (-0.25,) * TOKENS)
    rollouts, trajectories, rewards = [], [], []
    for rollout in range(ROLLOUTS):
        calls = {"market_analyst": 1, "risk_analyst": 0, "trader": 2}
        rollouts.append(RolloutRecord(run, step, 0, rollout, 5, True, 0.5, calls, {"fees": 0.1}))
        for role, ordinal in (("manager", 0), ("market_analyst", 0), ("trader", 0), ("trader", 1)):
            caller = None if role == "manager" else ("manager", 0)
            key = (run, step, 0, rollout, role, ordinal)
            trajectories.append(TrajectoryRecord(*key, "v1", *tokens, caller=caller))
            rewards.append(RewardRecord(*key, 0.5, {"format": 1.0, "outcome": 0.4, "expert": 0.3}, 0.1))
    began = time.perf_counter()
    store.add_rollouts(rollouts)
    store.add_trajectories(trajectories)
    store.add_rewards(rewards)
    return time.perf_counter() - began
