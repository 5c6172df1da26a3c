"""A full disk and a file system that cannot be written: what is stored is kept, and deleting makes room."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from backend.store.errors import StoreError
from backend.store.holding import RESERVE_FILE
from backend.store.store import Store
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


def test_a_file_system_that_cannot_be_written_is_refused_with_the_way_out(disk: Path) -> None:
    make_runs(disk / "runs")
    mount("-o", "remount,ro", str(disk))
    with pytest.raises(StoreError, match=r"Read-only file system\); choose one that can be written, or copy it there"):
        Store.open(disk / "runs" / "store")
    mount("-o", "remount,rw", str(disk))
    with Store.open(disk / "runs" / "store") as store:
        assert {one.run: one.status for one in store.runs()} == {"a": "finished", "b": "finished"}


# Writes until no file may grow any more, as on a full disk.
FILL = """
import resource, signal, sys
from pathlib import Path
from backend.store.errors import StoreError
from backend.store.store import Store
store = Store.open(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
size = max(path.stat().st_size for path in Path(sys.argv[1]).rglob("*") if path.is_file())
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50_000, size + 50_000))
for step in range(1_000):
    try:
        store.add_metrics("r", step, {f"m{n}": float(step) for n in range(40)})
    except StoreError as error:
        print(step, error)
        break
"""


def test_a_full_disk_is_told_and_costs_nothing_that_was_stored(tmp_path: Path) -> None:
    filler = subprocess.run([sys.executable, "-c", FILL, str(tmp_path)], capture_output=True, text=True, check=True)
    failed_at, _, message = filler.stdout.partition(" ")
    assert "is the disk full? Free some space" in message
    with Store.open(tmp_path) as store:
        assert [record.step for record in store.metrics("r")] == list(range(int(failed_at)))
