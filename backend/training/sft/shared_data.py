"""Data sets of conversations that were made elsewhere: a folder as `sft` writes it into `data`.

They are what somebody else chose: what they hold is text, which is learnt and never run. Rows are checked before
anything is trained.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from backend.training.sft.datasets import (
    DATA_MANIFEST,
    TRAIN,
    VALIDATION,
    SftRow,
    read_data_manifest,
    read_rows,
)
from cryptosentinel.agents.registry import ROLES
from simulator.errors import DataError


def is_data_set(source: str) -> bool:
    """Whether a source of `sft --from` is a data set and no team: a folder with a data set's manifest."""
    folder = Path(source)
    return (folder / DATA_MANIFEST).is_file() and any(folder.glob("*.parquet"))


def shared_rows(source: str, roles: Collection[str]) -> list[SftRow]:
    """The rows of the roles in the data set in the folder `source`. Raises `DataError` where it has none of
    them, and for a file or a row that cannot be learnt from."""
    folder = Path(source)
    names = read_data_manifest(folder)["sha256"]
    rows = [
        row
        for role in roles
        if f"{role}.parquet" in names
        for number, row in enumerate(read_rows(folder, role))
        if _checked(row, role, f"{source}: row {number + 1} of {role}.parquet")
    ]
    if not rows:
        raise DataError(f"{source} has no conversation of {', '.join(roles)}: choose another data set")
    return rows


def with_counts(counts: Mapping[str, Mapping[str, int]], rows: Iterable[SftRow]) -> dict[str, dict[str, int]]:
    """What was collected, with rows that were chosen elsewhere: each was collected, kept, and is of its split."""
    added = {role: dict(count) for role, count in counts.items()}
    for row in rows:
        for name in ("collected", "kept", row.split):
            added[row.role][name] += 1
    return added


def _checked(row: SftRow, role: str, place: str) -> bool:
    problem = ""
    if row.role != role or role not in ROLES:
        problem = f"is of the role {row.role!r}"
    elif row.split not in (TRAIN, VALIDATION):
        problem = f"is of the split {row.split!r}, and there are {TRAIN} and {VALIDATION}"
    elif not (isinstance(row.score, float) and math.isfinite(row.score) and 0.0 <= row.score <= 1.0):
        problem = f"has the score {row.score!r}, and scores are from 0 to 1"
    elif not row.messages or not all(isinstance(turn, dict) and turn.get("content") for turn in row.messages):
        problem = "has a turn without words"
    else:
        try:
            schemas: Any = row.schemas()
        except ValueError:
            problem = "has schemas of tools that are not JSON"
        else:
            if schemas is not None and not isinstance(schemas, list):
                problem = "has schemas of tools that are not a list"
    if problem:
        raise DataError(f"{place} {problem}: fix the data set, or choose another")
    return True
