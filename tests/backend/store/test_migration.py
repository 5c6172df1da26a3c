"""From an older schema to this one: by itself, whole or not at all, and never backwards."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from backend.store import DecisionRecord, PublishedRecord, ShardRecord, Store, StoreError, TrajectoryRecord
from backend.store.connection import Connection, folder_url
from backend.store.migration import SCHEMA_VERSION, migrate, transaction
from tests.backend.store.gateways import GatewayThread, environment
from tests.backend.store.old_records import STORY
from tests.backend.store.old_stores import write_old_store

# Opens a store with a pause after statement number N of the migration, in which it is killed.
PAUSED = """
import sys
from backend.store import Store, connection, migration
whole, at = migration.transaction, int(sys.argv[2])
def slow(current):
    statements = [part for part in whole(current).split(";\\n")]
    return ";\\n".join([*statements[:at], "SLEEP 30s", *statements[at:]])
migration.transaction = slow
query = connection.Connection.query
def told(self, text, parameters=None):
    if "SLEEP" in text:
        print("migrating", flush=True)
    return query(self, text, parameters)
connection.Connection.query = told
Store.open(sys.argv[1])
"""


OLD = range(1, SCHEMA_VERSION)


def shape(store: Store) -> dict[str, Any]:
    """Every definition of the database."""
    tables = store._connection.query("INFO FOR DB")["tables"]
    return {
        name: (text, *(store._connection.query(f"INFO FOR TABLE {name}")[part] for part in ("fields", "indexes")))
        for name, text in tables.items()
    }


def old(step: int, role: str) -> TrajectoryRecord:
    caller = None if role == "manager" else ("manager", 0)
    return TrajectoryRecord("old", step, 0, 0, role, 0, "v1", (1, 2), (False, True), (0.0, -0.5), caller=caller)


def check(store: Store) -> None:
    """All that was there is there, and what is new can be written."""
    assert [record.run for record in store.runs()] == ["old"]
    for step in range(2):
        assert store.trajectories("old", step) == [old(step, "manager"), old(step, "trader")]
        assert store.trajectories("old", step)[0].format_score is None
        assert [edge.caller for edge in store.delegations("old", step)] == [("manager", 0)]
    assert store.decisions("old") == [
        DecisionRecord("old", "team", ordinal, 7 + ordinal, json.loads(STORY)) for ordinal in range(2)
    ]
    shard = ShardRecord("old", 0, 0, 1, 1, 2)
    published = PublishedRecord("old", "trader", 0, "v2", "p", "c", {})
    store.add_shard(shard)
    store.add_published(published)
    assert (store.shards("old"), store.published("old")) == ([shard], [published])


@pytest.mark.parametrize("version", OLD)
def test_an_old_store_is_upgraded_when_it_is_opened(tmp_path: Path, version: int) -> None:
    write_old_store(tmp_path, version)
    for _ in range(2):
        with Store.open(tmp_path) as store:
            check(store)
            assert store._connection.query("SELECT VALUE version FROM store:schema") == [SCHEMA_VERSION]


@pytest.mark.parametrize("version", OLD)
def test_calls_of_an_old_store_are_counted(tmp_path: Path, version: int) -> None:
    write_old_store(tmp_path, version, more=True)
    with Store.open(tmp_path) as store:
        assert store.calls_per_rollout("old") == {"analyst": {0: 2}, "trader": {1: 2}}


@pytest.mark.parametrize("version", OLD)
def test_an_upgraded_store_has_the_shape_of_a_new_one(tmp_path: Path, version: int) -> None:
    write_old_store(tmp_path, version)
    with Store.open(tmp_path) as upgraded, Store.open("mem://") as new:
        assert shape(upgraded) == shape(new)


STATEMENTS = {version: transaction(version).count(";\n") for version in OLD}
CUTS = [
    *((1, at) for at in (1, 3, STATEMENTS[1] // 2, STATEMENTS[1] - 1)),
    *((2, at) for at in (3, STATEMENTS[2] - 1)),
]


@pytest.mark.parametrize(("version", "at"), CUTS)
def test_killed_between_two_statements_it_is_as_before_and_upgrades_again(
    tmp_path: Path, version: int, at: int
) -> None:
    write_old_store(tmp_path, version)
    arguments = [sys.executable, "-c", PAUSED, str(tmp_path), str(at)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment())
    assert process.stdout is not None and process.stdout.readline() == "migrating\n"
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)  # it is in the pause
    process.kill()
    process.wait()
    connection = Connection(tmp_path)
    assert connection.query("SELECT VALUE version FROM store:schema") == [version]
    assert ("shard" in connection.query("INFO FOR DB")["tables"]) == (version > 1)
    assert [row["story"] for row in connection.query("SELECT * FROM decision")] == [STORY, STORY]
    connection.close()
    with Store.open(tmp_path) as store:
        check(store)


@pytest.mark.parametrize("version", [0, SCHEMA_VERSION + 1, 99])
def test_a_version_that_cannot_be_upgraded_is_refused_and_let_go(tmp_path: Path, version: int) -> None:
    write_old_store(tmp_path, 1)
    connection = Connection(tmp_path)
    connection.query("UPDATE store:schema SET version = $version", {"version": version})
    connection.close()
    advice = "newer program" if version > SCHEMA_VERSION else "program that wrote it"
    for _ in range(2):  # the second time shows that the first let the folder go
        with pytest.raises(
            StoreError, match=f"version {version} of the schema, .* version {SCHEMA_VERSION}: open it with .*{advice}"
        ):
            Store.open(tmp_path)


def test_a_database_of_something_else_is_refused(tmp_path: Path) -> None:
    connection = Connection(tmp_path)
    connection.query("DEFINE TABLE coins; CREATE coins:1")
    connection.close()
    with pytest.raises(StoreError, match="has no version of the schema: it holds something else"):
        Store.open(tmp_path)


@pytest.mark.parametrize("version", [*OLD, None])
def test_of_processes_that_migrate_at_once_all_succeed(tmp_path: Path, version: int | None) -> None:
    if version is not None:
        write_old_store(tmp_path, version)
    running = GatewayThread(url=folder_url(tmp_path))
    identities: list[str] = []

    def open_it() -> None:
        connection = Connection(running.url)
        identities.append(migrate(connection))
        connection.close()

    try:
        threads = [threading.Thread(target=open_it) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        running.stop()
    assert len(identities) == 6 and len(set(identities)) == 1
