"""One process at a time holds a folder, and what remains when a process dies."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from backend.store import Store, StoreError
from backend.store.lock import FolderHeld, FolderLock

HOLD = """
import sys, time
from backend.store import Store
store = Store.open(sys.argv[1])
print("open", flush=True)
time.sleep(60)
"""
# Says which steps are committed while it goes on writing.
WRITE = """
import sys
from backend.store import RunRecord, Store
store = Store.open(sys.argv[1])
store.add_run(RunRecord("r", "train", 1, "hash", 0, {}))
for step in range(100_000):
    store.add_metrics("r", step, {f"m{n}": float(step) for n in range(40)})
    print(step, flush=True)
"""
FILL = """
import resource, signal, sys
from pathlib import Path
from backend.store import Store, StoreError
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


def start(script: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", script, str(folder)], stdout=subprocess.PIPE, text=True)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_the_second_opener_is_told_who_holds_it_until_that_one_dies(tmp_path: Path) -> None:
    holder = start(HOLD, tmp_path)
    try:
        assert line(holder) == "open"
        with pytest.raises(FolderHeld, match=rf"in use by process {holder.pid}, which opened it at 20.* UTC"):
            FolderLock(tmp_path)
    finally:
        holder.kill()
        holder.wait()
    Store.open(tmp_path).close()


@pytest.mark.parametrize("note", [b"", b"{", b"[1]", b'{"pid": "x", "since": 0}'])
def test_a_note_that_cannot_be_read_does_not_matter(tmp_path: Path, note: bytes) -> None:
    (tmp_path / "lock").write_bytes(note)
    lock = FolderLock(tmp_path)
    (tmp_path / "lock").write_bytes(note)
    with pytest.raises(StoreError, match="in use by another process"):
        FolderLock(tmp_path)
    lock.release()
    lock.release()
    FolderLock(tmp_path).release()


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match=r"file: cannot use this folder \(.*\); choose a folder"):
        Store.open(tmp_path / "file")


def test_what_was_committed_survives_a_kill(tmp_path: Path) -> None:
    writer = start(WRITE, tmp_path)
    while int(line(writer)) < 30:
        pass
    writer.send_signal(signal.SIGKILL)
    assert writer.stdout is not None
    committed = [int(step) for step in writer.stdout.read().split()] or [30]
    writer.wait()
    with Store.open(tmp_path) as store:
        metrics = store.metrics("r")
        assert [record.step for record in metrics] == list(range(len(metrics)))
        assert len(metrics) > committed[-1]
        assert all(set(record.values.values()) == {float(record.step)} for record in metrics)
        # Nobody can still be at it, for the folder is ours.
        assert store.run("r").status == "interrupted"
        store.add_metrics("r", 0, {"again": 1.0})
        assert store.metrics("r")[0].values["again"] == 1.0


def test_a_full_disk_is_told_and_costs_nothing_that_was_stored(tmp_path: Path) -> None:
    filler = subprocess.run([sys.executable, "-c", FILL, str(tmp_path)], capture_output=True, text=True, check=True)
    failed_at, _, message = filler.stdout.partition(" ")
    assert "is the disk full? Free some space" in message
    with Store.open(tmp_path) as store:
        assert [record.step for record in store.metrics("r")] == list(range(int(failed_at)))
