"""Backup: what it leaves is the same store."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from surrealdb import RecordID

from backend.store.errors import StoreError
from backend.store.maintenance import backup_store, size_of
from backend.store.records import ALL_KINDS, RunRecord
from backend.store.store import Store
from tests.backend.store.servers import environment, server_thread
from tests.backend.store.synthetic import add_step, add_training

WRITE = """
import sys
from backend.store.store import Store
with Store.open(sys.argv[1]) as store:
    print("open", flush=True)
    for step in range(100_000):
        store.add_metrics("r", step, {"loss": float(step)})
        print(step, flush=True)
"""


def everything(store: Store) -> dict[str, list[str]]:
    """All rows of a store but its leases, by table."""
    return {kind.table: [repr(row) for row in store.connection.query(f"SELECT * FROM {kind.table}")]
            for kind in ALL_KINDS}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Store.open(tmp_path / "store") as store:
        for name in ("a", "a-1", "b"):
            add_training(store, name)
        store.add_metrics("a", 9, {"loss": float("nan")})
    return tmp_path / "store"


def test_a_backup_is_the_same_store(folder: Path, tmp_path: Path) -> None:
    with Store.open(folder) as store:
        store.add_run(RunRecord("running", "train", 1, "h", 1, {}))
        copied = backup_store(store, tmp_path / "copies" / "copy")
        before, identity = everything(store), store.identity
        store.add_metrics("b", 77, {"after": 1.0})  # which the copy has not, and neither does the source lose
        assert [one.step for one in store.metrics("b")] == [0, 1, 2, 77]
        with pytest.raises(StoreError, match="exists already: give another folder"):
            backup_store(store, tmp_path / "copies" / "copy")
    assert copied == sum(map(len, before.values())) > 100
    assert [path.name for path in (tmp_path / "copies").iterdir()] == ["copy"]
    with Store.open(tmp_path / "copies" / "copy") as copy:
        assert copy.identity == identity
        assert copy.run("running").status == "interrupted", "nobody is at work on the run of a copy"
        after = everything(copy)
        assert {**before, "run": []} == {**after, "run": []} and len(after["run"]) == 4
    shutil.rmtree(folder / "db")
    shutil.copytree(tmp_path / "copies" / "copy" / "db", folder / "db")
    with Store.open(folder) as store:
        assert len(store.trajectories("a", 0)) == 6


def test_a_backup_is_made_while_another_program_writes(tmp_path: Path) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITE, str(tmp_path / "store")], stdout=subprocess.PIPE, text=True, env=environment()
    )
    try:
        assert writer.stdout is not None and writer.stdout.readline() == "open\n"
        with Store.open(tmp_path / "store") as store:
            for number in range(3):
                acknowledged = int(writer.stdout.readline())
                backup_store(store, tmp_path / str(number))
                with Store.open(tmp_path / str(number)) as copy:
                    steps = [one.step for one in copy.metrics("r")]
                assert steps == list(range(len(steps))) and len(steps) > acknowledged
            assert writer.poll() is None and len(store.metrics("r")) >= len(steps)
    finally:
        writer.kill()
        writer.communicate()


def test_a_backup_of_a_server_is_a_folder(tmp_path: Path) -> None:
    with server_thread() as server, Store.open(server.url) as store:
        add_training(store, "a")
        backup_store(store, tmp_path / "copy")
        with Store.open(tmp_path / "copy") as copy:
            assert everything(copy) == everything(store)


def test_a_backup_has_no_space_of_deleted_records(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.store.store._ROWS_READ", 7)  # so that a table has several pages
    with Store.open(folder) as store:
        for step in range(3, 40):
            add_step(store, "a", step, rollouts=8)
        store.delete_run("a")
    with Store.open(folder) as store:
        before = everything(store)
        backup_store(store, tmp_path / "copy")
    assert size_of(tmp_path / "copy" / "db") < size_of(folder / "db") / 2
    with Store.open(tmp_path / "copy") as copy:
        assert everything(copy) == before
        add_training(copy, "a")  # it goes on as a store


def test_a_copy_that_differs_is_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages, opened = Store.pages, []

    def wrong(store: Store, keys: RecordID) -> object:
        opened.append(keys)
        rows = list(pages(store, keys))
        return rows if len(opened) < len(ALL_KINDS) + 2 else rows[:-1]

    monkeypatch.setattr(Store, "pages", wrong)
    with Store.open(folder) as store, pytest.raises(StoreError, match="does not hold what was written to it"):
        backup_store(store, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
