"""When a step is complete: the markers of its shards in the store."""

from __future__ import annotations

from backend.config.training import TrainingConfig
from backend.store.store import Store


def closing_shard(config: TrainingConfig) -> int | None:
    """The number of the marker that says that a step gets no further shards, beyond all that it may get; None where
    none is needed, as every step has the same ones. The leader writes it."""
    return config.shards * (config.dynamic_rounds + 1) if config.dynamic_rounds else None


def is_complete(store: Store, run: str, step: int, config: TrainingConfig) -> bool | None:
    """True once everything of a step is there, to the last record; None before."""
    return store.step_complete(run, step, config.shards, closing_shard(config)) or None
