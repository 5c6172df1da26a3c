"""Runs that differ in their seed alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from backend.reporting.comparison.run_table import RunRow
from backend.statistics.seed_grid import grid_interval
from backend.store.records import RunRecord

# Of a run's record: what may differ between runs that are one experiment with several seeds.
_OWN = ("versions", "hardware", "notes", "trials", "summary", "command")


@dataclass(frozen=True)
class SeedGroup:
    """Runs that are alike but for the seed: the mean of their return (a fraction) with Student's 95 % interval."""

    runs: tuple[str, ...]
    kind: str
    teams: str
    data: str
    mean: float
    low: float
    high: float


def seed_groups(runs: Sequence[RunRecord], rows: Sequence[RunRow]) -> list[SeedGroup]:
    """The groups of runs with two seeds or more that ended with a return."""
    by_key: dict[str, dict[int, RunRow]] = {}
    for run, row in zip(runs, rows, strict=True):
        if run.status == "finished" and row.total_return is not None:
            by_key.setdefault(_key(run), {}).setdefault(run.seed, row)
    groups = []
    for alike in by_key.values():
        if len(alike) > 1:
            members = list(alike.values())
            interval = grid_interval(np.array([[one.total_return] for one in members], float), nested=True)
            first = members[0]
            groups.append(
                SeedGroup(tuple(one.run for one in members), first.kind, first.teams, first.data, interval.mean,
                          interval.low, interval.high)
            )  # fmt: skip
    return groups


def _key(run: RunRecord) -> str:
    """All that decides a run but its seed."""
    compared = {name: value for name, value in run.config.items() if name not in _OWN}
    return json.dumps([run.kind, run.data_hash, _without_seeds(compared)], sort_keys=True, default=str)


def _without_seeds(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_seeds(inner) for name, inner in value.items() if name != "seed"}
    return value
