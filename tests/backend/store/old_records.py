"""The records of a store of a former version, also of the former engine: `python old_records.py FOLDER VERSION STEPS`.

Run as a script it uses no more than surrealdb, of version 2 or 3, and Python's library. It then writes a folder as a
former program left it that was killed, with a record of each kind.
"""

from __future__ import annotations

import math
import struct
import sys
from pathlib import Path
from typing import Any

from surrealdb import BlockingEmbeddedSurrealConnection, RecordID

STORY = '{"net_return":-0.1,"conversations":[]}'  # what `DecisionRecord.document` was called up to version 2


class OldDatabase:
    """An open database that gets the schema and the records of a former version."""

    def __init__(self, database: Any, version: int) -> None:
        self._database = database
        self._version = version

    def run(self, text: str, parameters: dict[str, Any] | None = None) -> None:
        answer = self._database.query_raw(text, parameters or {})
        assert all(statement["status"] == "OK" for statement in answer["result"]), answer

    def put(self, table: str, key: list[Any], row: dict[str, Any]) -> None:
        self.run("UPSERT $id CONTENT $row", {"id": RecordID(table, key), "row": row})

    def define(self) -> None:
        schema = Path(__file__).with_name(f"schema_{self._version}.surql").read_text(encoding="utf-8")
        self.run(f"BEGIN; {schema} UPSERT store:schema SET version = {self._version}, identity = $identity; COMMIT",
            {"identity": "the store" if self._version > 1 else None})  # fmt: skip

    def fill(self, steps: int) -> None:
        """A run with `steps` steps of two conversations, one delegating the other, and two decisions."""
        document = "document" if self._version > 2 else "story"
        record = {"run": "old", "kind": "train", "seed": 1, "data_hash": "hash", "started_at": 5, "config": "{}"}
        self.put("run", ["old"], {**record, "status": "finished"})
        for ordinal in range(2):
            row = {"run": "old", "backtest": "team", "ordinal": ordinal, "time": 7 + ordinal, document: STORY}
            self.put("decision", ["old", "team", ordinal], row)
        for step in range(steps):
            ends = []
            for role, caller in (("manager", None), ("trader", ["manager", 0])):
                key = ["old", step, 0, 0, role, 0]
                row = {
                    **dict(zip(("run", "step", "query", "rollout", "role", "ordinal"), key, strict=True)),
                    "policy_version": "v1",
                    "ids": struct.pack("<2i", 1, 2),
                    "mask": bytes((0, 1)),
                    "sampled_logps": struct.pack("<2f", 0.0, -0.5),
                    "valid": True,
                    "truncated": False,
                    "caller": caller,
                }
                ends.append(RecordID("trajectory", key))
                self.run("UPSERT $id CONTENT $row", {"id": ends[-1], "row": row})
            edge = {
                "id": RecordID("delegated", ["old", step, 0, 0, "trader", 0]), "in": ends[0], "out": ends[1],
                "run": "old", "step": step, "query": 0, "rollout": 0, "caller": ["manager", 0], "role": "trader",
                "ordinal": 0, "position": 0,
            }  # fmt: skip
            self.run("INSERT RELATION INTO delegated $rows RETURN NONE", {"rows": [edge]})

    def fill_more(self, steps: int) -> None:
        """What else belongs to these steps, and a run that was running."""
        for step in range(steps):
            place = {"run": "old", "step": step, "query": 0}
            self.put("query", ["old", step, 0], {**place, "stage": 1, "symbols": ["C1", "C2"], "bar": 9, "time": 2**41,
                     "seed": -(2**63)})  # fmt: skip
            self.put("rollout", ["old", step, 0, 0], {**place, "rollout": 0, "seed": 2, "valid": True, "outcome": 1.0,
                     "calls": {"trader": 1, "analyst": 0}, "parts": {"fees": -0.1, "net": 1e-300}})  # fmt: skip
            if self._version > 6:
                self.put("call_count", ["old", step], {"run": "old", "step": step, "roles": ["analyst", "trader"],
                         "calls": [0, 1], "rollouts": [1, 1]})  # fmt: skip
            self.put("reward", ["old", step, 0, 0, "trader", 0], {**place, "rollout": 0, "role": "trader", "ordinal": 0,
                     "total": 0.1 + 0.2, "parts": {"format": 1.0}, "advantage": -0.0})  # fmt: skip
            values = {"loss": math.nan, "steps": 3.0, "manager/reward/mean": 0.1}
            self.put("metric", ["old", step], {"run": "old", "step": step, "values": values})
        self.put("adapter", ["old", "trader", "v1"], {"run": "old", "role": "trader", "version": "v1", "step": 1,
                 "path": "adapters/trader", "checksum": "c"})  # fmt: skip
        self.put("evaluation", ["old", "held out", 1], {"run": "old", "name": "held out", "step": 1,
                 "result": '{"a":[1,2.5,"\u00fc\u6570"]}'})  # fmt: skip
        self.put("backtest", ["old", "team"], {"run": "old", "name": "team", "result": "{}"})
        record = {"run": "killed", "kind": "train", "seed": 1, "data_hash": "h", "started_at": 6, "config": '{"a":1.0}'}
        self.put("run", ["killed"], {**record, "status": "running"})
        if self._version > 1:
            self.put("lease", ["killed"], {"run": "killed", "owner": "somebody", "expires_at": 7})
            self.put("shard", ["old", 0, 0], {"run": "old", "step": 0, "shard": 0, "queries": 1, "rollouts": 1,
                     "trajectories": 2})  # fmt: skip
            self.put("service", ["old", "trainer-trader"], {"run": "old", "name": "trainer-trader", "kind": "trainer",
                     "role": "trader", "code_version": "1", "process": "1", "state": "stopped", "beat": 4,
                     "updated_at": 8})  # fmt: skip
            self.put("published", ["old", "trader", 0], {"run": "old", "role": "trader", "step": 0, "version": "v1",
                     "path": "p", "checksum": "c", "metrics": "{}"})  # fmt: skip


if __name__ == "__main__":
    folder, old_version, old_steps = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    with BlockingEmbeddedSurrealConnection(f"surrealkv://{folder / 'db'}") as connection:
        connection.use("cryptosentinel", "main")
        old = OldDatabase(connection, old_version)
        old.define()
        old.fill(old_steps)
        old.fill_more(old_steps)
