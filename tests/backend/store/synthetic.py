"""Runs that look like those of a training to the store: every kind of record, and any number of conversations."""

from __future__ import annotations

from backend.store.records import (
    AdapterRecord,
    BacktestRecord,
    DecisionRecord,
    EvaluationRecord,
    MetricRecord,
    PublishedRecord,
    QueryRecord,
    Record,
    RewardRecord,
    RolloutRecord,
    RunRecord,
    RunStatus,
    ShardRecord,
    TrajectoryRecord,
)
from backend.store.store import Store


def add_training(store: Store, run: str, steps: int = 3, status: RunStatus = "finished", rollouts: int = 3) -> None:
    """A training with one query a step, whose manager asks the trader in each rollout."""
    store.add_run(RunRecord(run, "train", 1, "hash", 1_000, {"config": {}}, "running"))
    for step in range(steps):
        add_step(store, run, step, rollouts)
    others: list[Record] = [
        AdapterRecord(run, "trader", "v1", 1, "adapters/step-000001/trader.safetensors", "sum"),
        PublishedRecord(run, "trader", 1, "v1", "published", "sum", {"loss": 1.0}),
        EvaluationRecord(run, "held_out", 0, {"wall_seconds": 1.0}),
        BacktestRecord(run, "team", {"equity": [1.0]}),
    ]
    for record in others:
        store.put(record)
    store.put(*[DecisionRecord(run, "team", number, 1, {"text": "x" * 50}) for number in range(4)])
    if status != "running":
        store.finish_run(run, status)


def add_step(store: Store, run: str, step: int, rollouts: int = 3) -> None:
    """What a training writes of one step."""
    store.put(QueryRecord(run, step, 0, 2, ("A",), 7, 1_000, 9))
    store.put(
        *[RolloutRecord(run, step, 0, number, 5, True, 0.5, {"trader": 1}, {"fees": 0.1}) for number in range(rollouts)]
    )
    keys = [(run, step, 0, number, role, 0) for number in range(rollouts) for role in ("manager", "trader")]
    tokens = ((step, 2), (False, True), (0.0, -0.5))
    store.put(
        *[TrajectoryRecord(*key, "v1", *tokens, caller=None if key[4] == "manager" else ("manager", 0)) for key in keys]
    )
    store.put(*[RewardRecord(*key, 0.5, {"format": 1.0}) for key in keys])
    store.put(ShardRecord(run, step, 0, 1, rollouts, len(keys)))
    store.put(MetricRecord(run, step, {"team/outcome": 0.5}))
