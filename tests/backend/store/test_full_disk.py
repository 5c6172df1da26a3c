"""A full disk and a file system that cannot be written: runs are listed and exported, and deleting makes room."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from backend.store import Store, StoreError
from backend.store.holding import RESERVE_FILE
from tests.backend.store.servers import environment
from tests.command_line import Result, program
from tests.stored_runs import add_backtest_run

LARGE = 3_000_000


def mount(*arguments: str) -> None:
    try:
        subprocess.run(["mount", *arguments], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this user cannot mount a file system here")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount("-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder))
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> None:
    with (folder / "other").open("wb", 0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert os.statvfs(folder).f_bavail == 0


def make_runs(runs: Path) -> None:
    with Store.open(runs / "store") as store:
        for name in ("a", "b"):
            add_backtest_run(store, name)
            (runs / name).mkdir()
            (runs / name / "checkpoints").write_bytes(bytes(LARGE))


def commands(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Result]:
    run = program(folder, monkeypatch, capsys)
    yield run("runs")
    yield run("runs", "show", "a")
    yield run("runs", "export", "a", str(folder.parent / "a.jsonl.gz"))


def test_on_a_full_disk_runs_are_listed_exported_and_deleted(
    disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_runs(disk / "runs")
    fill(disk)
    for _ in range(3):  # as often as one likes
        for done in commands(disk, monkeypatch, capsys):
            assert done.code == 0 and "a" in done.out, done.err
        (disk.parent / "a.jsonl.gz").unlink()
    deleted = program(disk, monkeypatch, capsys)("runs", "delete", "a", "--yes")
    assert deleted.code == 0, deleted.err
    assert os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize > LARGE / 2, "there is room again"
    with Store.open(disk / "runs" / "store") as store:
        assert [one.run for one in store.runs()] == ["b"] and len(store.backtests("b")) == 3
    (disk / "other").unlink()
    Store.open(disk / "runs" / "store").close()
    assert (disk / "runs" / "store" / RESERVE_FILE).stat().st_size > 100_000, "it is kept for the next time"


def test_a_store_is_not_begun_on_a_full_disk(disk: Path) -> None:
    """The engine would never return."""
    fill(disk)
    with pytest.raises(StoreError, match=r"(the disk is full|No space left on device).*free some space"):
        Store.open(disk / "store")


def test_a_read_only_file_system_is_listed(
    disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_runs(disk / "runs")
    mount("-o", "remount,ro", str(disk))
    for done in commands(disk, monkeypatch, capsys):
        assert done.code == 0 and "a" in done.out, done.err
    refused = program(disk, monkeypatch, capsys)("runs", "delete", "a", "--yes")
    assert refused.code in (1, 2) and "Traceback" not in refused.err and "Read-only file system" in refused.err
    mount("-o", "remount,rw", str(disk))
    with Store.open(disk / "runs" / "store") as store:
        assert {one.run: one.status for one in store.runs()} == {"a": "finished", "b": "finished"}


AS_ANOTHER = """
import os, sys
from backend.store import Store, StoreError
Store.open("mem://").close()  # all that it imports is imported
os.setgid(12345), os.setuid(12345)
with Store.open(sys.argv[1], reads_only=True) as store:
    print(*[run.run for run in store.runs()], len(store.backtests("a")))
try:
    Store.open(sys.argv[1])
except StoreError as error:
    print(error)
"""


def test_a_folder_of_another_user_is_read_by_a_copy(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    place = Path("/tmp") / f"cs-test-{os.getpid()}"  # pytest's own folders are closed to others
    make_runs(place / "runs")
    try:
        place.chmod(0o755)
        for path in place.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        command = [sys.executable, "-c", AS_ANOTHER, str(place / "runs" / "store")]
        said = subprocess.run(command, env=environment(HOME="/tmp"), capture_output=True, text=True, check=False)
        if "Permission denied" in said.stderr:
            pytest.skip("the program's own files are closed to other users here")
        listed, refused = said.stdout.splitlines()
        assert sorted(listed.split()[:2]) == ["a", "b"] and listed.endswith(" 3")
        assert "only programs of that user can use it" in refused or "cannot use this folder" in refused
        assert not [path for path in Path("/tmp").glob("cs-copy-*") if path.stat().st_uid == 12_345]
    finally:
        subprocess.run(["rm", "-rf", str(place)], check=True)
