"""Records of runs in SurrealDB: `Store` and the record types."""

from backend.store import client_library as client_library  # first of all: how the library is imported
from backend.store.errors import StoreError
from backend.store.records import (
    AdapterRecord,
    BacktestRecord,
    DecisionRecord,
    EvaluationRecord,
    JournalRecord,
    MetricRecord,
    PublishedRecord,
    QueryRecord,
    RewardRecord,
    RolloutRecord,
    RunRecord,
    RunStatus,
    ShardRecord,
    TrajectoryRecord,
)
from backend.store.store import Store

__all__ = [
    "AdapterRecord",
    "BacktestRecord",
    "DecisionRecord",
    "EvaluationRecord",
    "JournalRecord",
    "MetricRecord",
    "PublishedRecord",
    "QueryRecord",
    "RewardRecord",
    "RolloutRecord",
    "RunRecord",
    "RunStatus",
    "ShardRecord",
    "Store",
    "StoreError",
    "TrajectoryRecord",
]
