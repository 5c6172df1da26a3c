"""Files of runs that lie with a store: backups hold them, a check reads them, compaction removes what nobody names."""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import backend.store
from backend.runs.store_check import check_store
from backend.store import Store, StoreError
from backend.store.connection import Connection
from backend.store.lock import FolderLock
from backend.store.maintenance import backup, object_copy
from backend.store.maintenance.backup import backup_store
from backend.store.maintenance.compaction import compact_store
from backend.store.records import FileRecord, RunRecord
from backend.store.sharing.objects import ObjectFolder, object_name, object_pieces
from tests.backend.store.synthetic import add_step
from tests.command_line import program
from tests.interrupts import interrupted_at

RUN = "by-hand"
LARGE = bytes(range(256)) * 20_000  # more than one piece
A_DAY = 86_400


def nothing(what: str, done: int, total: int) -> None:
    """Shows no progress."""


def add_file(store: Store, name: str, content: bytes) -> FileRecord:
    """A file of the run as a process of it brings it to the store."""
    record = FileRecord(RUN, name, hashlib.sha256(content).hexdigest(), len(content))
    upload = hashlib.md5(name.encode()).hexdigest()
    store.objects.write(RUN, upload, 0, content)
    assert store.objects.finish(RUN, upload, "-".join(name.split("/")[:2]), record.checksum)
    store.add_file(record)
    return record


def filled(store: Store, files: int = 3) -> None:
    store.add_run(RunRecord(RUN, "train", 1, "hash", 1_000, {"config": {}}, "finished", 2_000))
    add_step(store, RUN, 0)
    add_file(store, "nano/model.safetensors", LARGE)
    for number in range(files - 1):
        add_file(store, f"services/trader/{number}.json", b"state %d" % number)


def contents(store: Store) -> dict[str, bytes]:
    return {file.name: b"".join(object_pieces(store.objects, file)) for file in store.files(RUN)}


def problems(store: Store, runs: Path) -> list[str]:
    return [problem for of_run in check_store(store, runs, nothing).problems.values() for problem in of_run]


def stray(folder: Path) -> Path:
    """A content whose process was killed before it wrote its record, two days ago."""
    path = folder / "objects" / RUN / "services-trader" / ("0" * 64)
    path.write_bytes(b"stray")
    os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 2 * A_DAY))
    return path


@pytest.mark.parametrize("way", ["files", "records"])
def test_a_backup_holds_the_files_of_runs(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than the process may have open at first; `records` is as from another machine's gateway."""
    if way == "records":
        monkeypatch.setattr(Connection, "snapshot", lambda connection: None)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Store.open(tmp_path / "s") as store:
        filled(store, files=60)
        stray(tmp_path / "s")
        before = contents(store)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 30, limits[1]))
        try:
            stored = backup_store(store, tmp_path / "b", nothing)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert len(before) == stored["file"] == 60
    assert not list((tmp_path / "s" / ".snapshots").glob("*"))
    shutil.rmtree(tmp_path / "s")
    with Store.open(tmp_path / "b") as copy:
        assert contents(copy) == before and problems(copy, tmp_path) == []
        named = {object_name(file) for file in copy.files(RUN)}
    assert set(ObjectFolder(tmp_path / "b" / "objects").names()) == named, "nobody knows the copy: no stray is needed"


@pytest.mark.parametrize("way", ["files", "records"])
def test_a_damaged_file_is_in_no_backup(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "records":
        monkeypatch.setattr(Connection, "snapshot", lambda connection: None)
    with Store.open(tmp_path / "s") as store:
        filled(store, files=2)
        [model, state] = store.files(RUN)
        path = tmp_path / "s" / "objects" / object_name(state)
        path.write_bytes(b"state X")
        with pytest.raises(StoreError, match=rf"{state.name} of run {RUN} lies with the store, and .*SHA-256 differs"):
            backup_store(store, tmp_path / "b", nothing)
        assert [entry.name for entry in tmp_path.iterdir()] == ["s"]
        assert problems(store, tmp_path) == [
            f"{state.name} lies with the store, and its content is not what was written: the SHA-256 differs"
        ]
        path.unlink()
        [problem] = problems(store, tmp_path)
        assert problem.startswith(f"{state.name} lies with the store, and its content cannot be read")
        assert model.name not in problem


def test_files_that_are_replaced_meanwhile_are_copied_as_of_one_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of a checkpoint's files goes while the first is copied: both are of the next checkpoint."""
    with Store.open(tmp_path / "s") as store:
        filled(store)
        pieces, replaced = object_pieces, list[FileRecord]()

        def replacing(objects: Any, file: FileRecord) -> Any:
            if not replaced:
                for former in [file for file in store.files(RUN) if file.name.startswith("services")]:
                    replaced.append(add_file(store, former.name, f"next {former.name}".encode()))
                    store.objects.remove(RUN, "services-trader", [former.checksum])
            return pieces(objects, file)

        monkeypatch.setattr(Connection, "snapshot", lambda connection: None)
        monkeypatch.setattr(object_copy, "object_pieces", replacing)
        stored = backup_store(store, tmp_path / "b", nothing)
        later = contents(store)
    with Store.open(tmp_path / "b") as copy:
        assert len(replaced) == 2 and contents(copy) == later and stored["file"] == 3
        assert len(ObjectFolder(tmp_path / "b" / "objects").names()) == 3


def test_a_run_whose_deletion_was_cut_short_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files go before their records."""
    monkeypatch.setattr(Connection, "snapshot", lambda connection: None)
    with Store.open(tmp_path / "s") as store:
        filled(store)
        store.mark_deleting(RUN)
        store.objects.remove_run(RUN)
        before = Counter(file.name for file in store.files(RUN))
        backup_store(store, tmp_path / "b", nothing)
    with Store.open(tmp_path / "b") as copy:
        assert Counter(file.name for file in copy.files(RUN)) == before
        assert copy.delete_run(RUN) > 0


def test_compaction_removes_what_no_record_names(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        filled(store)
        before = contents(store)
        old, young = stray(tmp_path), tmp_path / "objects" / RUN / "services-trader" / ("1" * 64)
        young.write_bytes(b"its record is on the way")
        found = check_store(store, tmp_path, nothing)
        assert found.problems == {} and any("1 files in objects" in note for note in found.notes)
        backup_paths = ObjectFolder(tmp_path / "objects").names()
    assert compact_store(tmp_path, nothing).strays == 1
    assert not old.exists() and young.exists() and len(backup_paths) == 5
    with Store.open(tmp_path) as store:
        assert contents(store) == before


def test_an_export_says_which_files_it_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = program(tmp_path, monkeypatch, capsys)
    with Store.open(tmp_path / "runs" / "store") as store:
        filled(store)
    exported = run("runs", "export", RUN, "run.gz")
    assert exported.code == 0 and "3 files of this run lie with the store and are not in it" in exported.out


# -- Ctrl-C ------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt in a destructor
def test_ctrl_c_at_any_place_of_a_backup_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also between taking its lock and the block that gives it back, and while it removes what it has made."""

    def copied(source: Store, target: Path, on_copied: object) -> dict[str, int]:
        target.mkdir()
        (target / "file").write_bytes(b"whole")
        return {}

    monkeypatch.setattr(backup, "_copy", copied)
    own = (str(Path(backend.store.__file__).parent), shutil.__file__)
    target, left = tmp_path / "b", tmp_path / ".b.partial"
    places, whole = 0, False
    with Store.open("mem://") as store:
        while not whole:
            places += 1
            whole = not interrupted_at(places, own, lambda: backup_store(store, target, nothing))
            assert not left.exists(), f"after the interrupt at place {places}"
            if target.exists():
                assert (target / "file").read_bytes() == b"whole"
                shutil.rmtree(target)
            FolderLock(left).release()  # nobody has it any more
            shutil.rmtree(left)
    assert places > 50
