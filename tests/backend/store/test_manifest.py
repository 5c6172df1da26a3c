"""A closed store is compared with its manifest before the engine may repair anything; after a kill the log decides."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from backend.store.errors import StoreError
from backend.store.manifest import CLOSED_FILE, SCHEMA_FILE, last_write
from backend.store.records import DecisionRecord, RunRecord
from backend.store.store import Store

RUNS, LARGE = 12, 6_000  # bytes of a document, which the engine puts into a file of large values


def contents(run: str, large: bool = True) -> dict[str, str]:
    return {"k": random.Random(run).randbytes(LARGE if large else 20).hex()}


def fill(store: Store, runs: int) -> None:
    for number in range(runs):
        run = f"run-{number}"
        store.put(DecisionRecord(run, "b", 0, 5, contents(run, number % 2 == 0)))
        store.add_run(RunRecord(run, "backtest", 1, "h", number, {}, "finished"))


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("closed") / "store"
    for _ in range(2):  # with more than one table
        with Store.open(folder) as store:
            fill(store, RUNS) if not store.runs() else store.add_metrics("run-0", 0, {"loss": 1.0})
    return folder


def all_there(folder: Path) -> bool:
    with Store.open(folder) as store:
        runs = [record.run for record in store.runs()]
        documents = [store.decisions(f"run-{number}")[0].document for number in range(RUNS)]
    return sorted(runs) == sorted(f"run-{number}" for number in range(RUNS)) and documents == [
        contents(f"run-{number}", number % 2 == 0) for number in range(RUNS)
    ]


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_flipped_bit_is_refused_or_everything_is_there(closed: Path, tmp_path: Path) -> None:
    rng, refused = random.Random(3), 0
    files = [path for path in sorted((closed / "db").rglob("*")) if path.is_file() and path.stat().st_size]
    for number in range(100):
        folder = tmp_path / str(number)
        shutil.copytree(closed, folder)
        struck = folder / "db" / files[number % len(files)].relative_to(closed / "db")
        content = bytearray(struck.read_bytes())
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        struck.write_bytes(content)
        before = snapshot(folder / "db")
        try:
            assert all_there(folder), struck
        except StoreError as error:
            refused += 1
            assert "store backup" in str(error) or "has schema" in str(error), error
            assert snapshot(folder / "db") == before, "what is refused is not changed"
        shutil.rmtree(folder)
    assert refused > 80, refused


@pytest.mark.parametrize("how", ["missing", "one more", "shorter", "replaced"])
def test_whatever_differs_is_refused_with_the_way_back(how: str, closed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    shutil.copytree(closed, folder)
    table = max((folder / "db" / "sstables").iterdir(), key=lambda path: path.stat().st_size)
    if how == "missing":
        table.unlink()
    elif how == "one more":
        shutil.copy(table, table.with_name(f"{99:020d}.sst"))
    elif how == "shorter":
        os.truncate(table, table.stat().st_size - 1)
    else:
        table.write_bytes(os.urandom(table.stat().st_size))
    for _ in range(2):
        with pytest.raises(StoreError, match=r"is damaged: .*sst.*Nothing was changed: put back a copy that .*backup"):
            Store.open(folder)
    if how == "one more":
        (folder / "db" / CLOSED_FILE).unlink()  # the way that the message names
        table.with_name(f"{99:020d}.sst").unlink()
        assert all_there(folder)


def test_a_store_of_another_schema_is_refused_and_left_as_it_is(closed: Path, tmp_path: Path) -> None:
    for number, version in enumerate((b"11\n", b"13\n", b"", b"\xff\xfe", None)):
        folder = tmp_path / str(number)
        shutil.copytree(closed, folder)
        if version is None:
            (folder / "db" / SCHEMA_FILE).unlink()  # as a store of SurrealDB 2, or of this program before 1.0.0
        else:
            (folder / "db" / SCHEMA_FILE).write_bytes(version)
        before = snapshot(folder)
        with pytest.raises(StoreError, match=r"has schema '.*' and this program uses schema 1: open it with"):
            Store.open(folder)
        assert snapshot(folder) == before


def test_every_write_is_seen_from_outside(tmp_path: Path) -> None:
    assert last_write(tmp_path / "store") is None
    with Store.open(tmp_path / "store") as store:
        marks = [last_write(tmp_path / "store")]
        store.runs()
        assert last_write(tmp_path / "store") == marks[0], "reading is not writing"
        for step in range(3):
            store.add_metrics("r", step, {"loss": 1.0})
            marks.append(last_write(tmp_path / "store"))
    marks.append(last_write(tmp_path / "store"))
    assert len({*marks}) == len(marks) and None not in marks
    assert last_write(tmp_path / "store") == marks[-1]
