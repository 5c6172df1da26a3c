"""What it costs a role's trainer to read one step of a run, early in the run and 50,000 trajectories later."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from backend.store import QueryRecord, RolloutRecord, Store, TrajectoryRecord
from benchmarks.run import Result

ROLES = ("manager", "market_analyst", "risk_analyst", "trader")
QUERIES, ROLLOUTS = 32, 4  # a query has four rollouts, a rollout one conversation of each role
STEPS = 100  # of 512 trajectories each
EARLY = 3
TOKENS = 100
READS = 15
TARGET = 1.5


def run() -> list[Result]:
    """Seconds to read a step late in a run, against those to read one early.

    Each is the least of several reads: what the others took longer is the load of the machine.
    """
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder)) as store:
        for step in range(STEPS):
            _write(store, step)
            if step == EARLY:
                early = _read(store, EARLY)
        late = _read(store, STEPS - 1)
    return [
        {
            "name": "store.lookup",
            "value": late,
            "unit": "s a step and role",
            "against": f"{early:.4f} s early in the run",
            "ratio": late / early,
            "target": f"<= {TARGET}",
            "met": late <= TARGET * early,
        }
    ]


def _write(store: Store, step: int) -> None:
    tokens = (tuple(range(TOKENS)), (True,) * TOKENS, (-0.25,) * TOKENS)
    calls = {"market_analyst": 1, "risk_analyst": 1, "trader": 1}
    trajectories, rollouts = [], []
    for query in range(QUERIES):
        store.add_queries([QueryRecord("run", step, query, 2, ("A",), 7, 1_000, 9)])
        for rollout in range(ROLLOUTS):
            rollouts.append(RolloutRecord("run", step, query, rollout, 5, True, 0.5, calls, {"fees": 0.1}))
            for role in ROLES:
                caller = None if role == "manager" else ("manager", 0)
                key = ("run", step, query, rollout, role, 0)
                trajectories.append(TrajectoryRecord(*key, "v1", *tokens, caller=caller, format_score=1.0))
    store.add_rollouts(rollouts)
    store.add_trajectories(trajectories)


def _read(store: Store, step: int) -> float:
    seconds = []
    for _ in range(READS):
        began = time.perf_counter()
        found = len(store.queries("run", step)), len(store.rollouts("run", step))
        count = len(store.trajectories("run", step, "trader"))
        seconds.append(time.perf_counter() - began)
        assert (*found, count) == (QUERIES, QUERIES * ROLLOUTS, QUERIES * ROLLOUTS)
    return min(seconds)
