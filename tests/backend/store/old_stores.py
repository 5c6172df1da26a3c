"""Stores as former versions of the schema wrote them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from surrealdb import BlockingEmbeddedSurrealConnection, RecordID

from backend.store.connection import DATABASE, NAMESPACE, folder_url

STORY = '{"net_return":-0.1,"conversations":[]}'  # what `DecisionRecord.document` was called up to version 2


def write_old_store(folder: Path, version: int, steps: int = 2) -> None:
    """A run with `steps` steps of two conversations, one delegating the other, and two decisions, as `version` left
    it."""
    document = "document" if version > 2 else "story"
    schema = Path(__file__).with_name(f"schema_{version}.surql").read_text(encoding="utf-8")
    folder.mkdir(parents=True, exist_ok=True)
    with BlockingEmbeddedSurrealConnection(folder_url(folder)) as database:
        database.use(NAMESPACE, DATABASE)

        def run(text: str, parameters: dict[str, Any] | None = None) -> None:
            answer = database.query_raw(text, parameters)
            assert all(statement["status"] == "OK" for statement in answer["result"]), answer

        run(f"BEGIN; {schema} UPSERT store:schema SET version = {version}, identity = $identity; COMMIT",
            {"identity": "the store" if version > 1 else None})  # fmt: skip
        record = {"run": "old", "kind": "train", "seed": 1, "data_hash": "hash", "started_at": 5, "config": "{}"}
        run("UPSERT $id CONTENT $row", {"id": RecordID("run", ["old"]), "row": {**record, "status": "finished"}})
        for ordinal in range(2):
            row = {"run": "old", "backtest": "team", "ordinal": ordinal, "time": 7 + ordinal, document: STORY}
            run("UPSERT $id CONTENT $row", {"id": RecordID("decision", ["old", "team", ordinal]), "row": row})
        for step in range(steps):
            ends = []
            for role, caller in (("manager", None), ("trader", ["manager", 0])):
                key = ["old", step, 0, 0, role, 0]
                row = {
                    **dict(zip(("run", "step", "query", "rollout", "role", "ordinal"), key, strict=True)),
                    "policy_version": "v1",
                    "ids": np.array([1, 2], "<i4").tobytes(),
                    "mask": np.array([False, True]).tobytes(),
                    "sampled_logps": np.array([0.0, -0.5], "<f4").tobytes(),
                    "valid": True,
                    "truncated": False,
                    "caller": caller,
                }
                ends.append(RecordID("trajectory", key))
                run("UPSERT $id CONTENT $row", {"id": ends[-1], "row": row})
            edge = {
                "id": RecordID("delegated", ["old", step, 0, 0, "trader", 0]), "in": ends[0], "out": ends[1],
                "run": "old", "step": step, "query": 0, "rollout": 0, "caller": ["manager", 0], "role": "trader",
                "ordinal": 0, "position": 0,
            }  # fmt: skip
            run("INSERT RELATION INTO delegated $rows RETURN NONE", {"rows": [edge]})
