"""One process holds a folder and serves it; the others use it through that one, and hold it when that one has gone."""

from __future__ import annotations

import ast
import json
import logging
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Client, answer_challenge
from pathlib import Path

import pytest

import backend.store
from backend.store import connection, local_server
from backend.store.errors import StoreError
from backend.store.lock import FolderHeld, FolderLock
from backend.store.records import RunRecord
from backend.store.store import Store
from tests.backend.store.servers import environment

ADDRESS = Path("socket", "address.json")
RUN = RunRecord("r", "train", 1, "hash", 1_000, {})

# Writes records of its own run with a number each, and says which are acknowledged.
WRITE = """
import sys
from backend.store.records import RunRecord
from backend.store.store import Store
folder, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Store.open(folder) as store:
    store.add_run(RunRecord(name, "train", 1, "hash", 0, {}))
    print("open", store._connection.holds, flush=True)
    for step in range(count):
        store.add_metrics(name, step, {"loss": float(step)})
        print(step, flush=True)
    store.finish_run(name, "finished")
"""
# Reads all that is there, again and again, and fails if a record that it has seen is gone.
READ = """
import sys
from backend.store.store import Store
seen = 0
with Store.open(sys.argv[1]) as store:
    print("open", store._connection.holds, flush=True)
    while True:
        found = len(store.metrics(sys.argv[2]))
        assert found >= seen, (found, seen)
        assert [one.step for one in store.metrics(sys.argv[2])][:found] == list(range(found))
        seen = found
        print(seen, flush=True)
"""
HOLD = """
import sys, time
from backend.store.store import Store
with Store.open(sys.argv[1]) as store:
    print("open", store._connection.holds, flush=True)
    time.sleep(600)
"""


def holds(store: Store) -> bool:
    return store.connection.holds


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *(str(argument) for argument in arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def kill(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        process.kill()
        process.communicate()


@contextmanager
def holding(script: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the folder for a block, and is killed then."""
    holder = start(script, *arguments)
    try:
        assert line(holder) == "open True"
        yield holder
    finally:
        kill(holder)


def test_others_read_and_write_while_one_holds_it(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.add_run(RUN)
        reader, writer = start(READ, tmp_path, "other"), start(WRITE, tmp_path, "other", 30)
        try:
            assert line(reader) == line(writer) == "open False"
            for step in range(30):
                store.add_metrics("r", step, {"loss": 1.0})
            _, errors = writer.communicate(timeout=120)
            assert writer.returncode == 0, errors
            while line(reader) != "30":
                assert reader.poll() is None
        finally:
            kill(reader, writer)  # in the middle of whatever the reader does
        assert [one.step for one in store.metrics("r")] == [one.step for one in store.metrics("other")] == [*range(30)]
        assert {one.run: one.status for one in store.runs()} == {"r": "running", "other": "finished"}


def test_when_the_holder_is_killed_another_goes_on_with_what_was_acknowledged(tmp_path: Path) -> None:
    with holding(WRITE, tmp_path, "holder", 100_000) as holder, Store.open(tmp_path) as store:
        store.add_run(RUN)
        while int(line(holder)) < 20:
            pass
        assert not holds(store) and store.run("holder").status == "running"
        holder.kill()
        # Read as the lines before were: what `communicate` reads leaves out what Python has in its buffer.
        assert holder.stdout is not None
        acknowledged = max([20, *(int(step) for step in holder.stdout.read().split() if step.isdigit())])
        store.add_metrics("r", 0, {"loss": 0.5})
        assert holds(store)
        steps = [one.step for one in store.metrics("holder")]
        assert steps[: acknowledged + 1] == list(range(acknowledged + 1)) and len(steps) <= acknowledged + 2
        # Nobody waits for a lease: the dead one held a lock on a file, which is gone.
        assert store.run("holder").status == "interrupted"
        assert store.run("r").status == "running"
        store.claim("holder")


def test_a_holder_that_dies_in_the_middle_of_a_request_costs_nothing(tmp_path: Path) -> None:
    """The client does not know whether its request was carried out, and sends it again to the next holder: itself."""
    with holding(HOLD, tmp_path) as holder, Store.open(tmp_path) as store:
        store.add_run(RUN)
        holder.send_signal(signal.SIGSTOP)  # so that the request is on its way when it dies
        threading.Timer(0.3, holder.kill).start()
        store.add_metrics("r", 0, {"loss": 0.5})
        assert holds(store) and [one.step for one in store.metrics("r")] == [0]


def test_one_process_opens_it_as_often_as_it_likes(tmp_path: Path) -> None:
    first, second = Store.open(tmp_path), Store.open(tmp_path)
    first.add_run(RUN)
    assert second.run("r").status == "running"
    threads = [threading.Thread(target=lambda: Store.open(tmp_path).close()) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first.close()
    first.close()
    assert [one.run for one in second.runs()] == ["r"]
    second.close()
    FolderLock(tmp_path).release()  # free, with the last of them


def test_a_forked_child_finds_its_own_way_and_keeps_nothing_held(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.add_run(RUN)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.alarm(60)
                store.add_metrics("r", 1, {"of the child": 1.0})
                with Store.open(tmp_path) as opened:
                    code = 0 if not opened._connection.holds and len(opened.metrics("r")) == 1 else 2
                os.write(write, b"x")
                signal.pause()  # and outlives what its parent does with the folder
            finally:
                os._exit(code)
        os.close(write)  # so that the end of a child that failed is the end of the pipe
        assert os.read(read, 1) == b"x"
        store.add_metrics("r", 2, {"of the parent": 1.0})
        assert [one.step for one in store.metrics("r")] == [1, 2]
    try:
        FolderLock(tmp_path).release()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_holder_that_does_not_serve_yet_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = FolderLock(tmp_path)
    lock.sign()
    monkeypatch.setattr(connection, "_SERVING", 0.3)
    with pytest.raises(StoreError, match=r"in use by this very process, which opened it at 20.* UTC, .*else end it"):
        Store.open(tmp_path)
    monkeypatch.setattr(connection, "_SERVING", 30.0)
    ending = threading.Timer(0.3, lock.release)
    ending.start()
    with Store.open(tmp_path) as store:
        assert holds(store)
    ending.join()


def test_what_a_killed_holder_left_behind_is_in_nobodys_way(tmp_path: Path) -> None:
    holder = start(HOLD, tmp_path)
    assert line(holder) == "open True"
    kill(holder)
    left = json.loads((tmp_path / ADDRESS).read_text())
    assert Path(left["path"]).exists()
    with Store.open(tmp_path):
        found = json.loads((tmp_path / ADDRESS).read_text())
        assert found["key"] != left["key"] and not Path(left["path"]).parent.exists()
    assert not (tmp_path / ADDRESS).exists() and not Path(found["path"]).parent.exists()


def test_a_holder_that_hangs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with holding(HOLD, tmp_path) as holder:
        store = Store.open(tmp_path)
        holder.send_signal(signal.SIGSTOP)
        monkeypatch.setattr(local_server, "OPENING_SECONDS", 0.3)
        hangs = r"does not answer \(no answer for 0 seconds\): .*end it if it hangs"
        with pytest.raises(StoreError, match=hangs):
            Store.open(tmp_path)
        with monkeypatch.context() as patched:
            patched.setattr(local_server, "ANSWER_SECONDS", 0.3)
            with pytest.raises(StoreError, match=hangs):
                store.runs()
        holder.send_signal(signal.SIGCONT)
        monkeypatch.setattr(local_server, "OPENING_SECONDS", 30.0)
        assert store.runs() == []
        store.close()


def test_who_must_have_it_alone_is_told_who_holds_it(tmp_path: Path) -> None:
    with holding(HOLD, tmp_path) as holder:
        with pytest.raises(FolderHeld, match=rf"in use by process {holder.pid}, which opened it at 20.* UTC"):
            FolderLock(tmp_path)
        with pytest.raises(StoreError, match=rf"in use by process {holder.pid}, .* UTC: end that one first"):
            Store.open(tmp_path, exclusive=True)


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


def test_a_path_that_is_too_long_for_a_socket_works(tmp_path: Path) -> None:
    folder = tmp_path / ("long-" * 20) / ("path-" * 20)
    with holding(HOLD, folder), Store.open(folder) as store:
        assert not holds(store) and store.runs() == []


# -- who may come in ---------------------------------------------------------------------------------------------------


def test_the_socket_and_its_key_are_this_users_alone(tmp_path: Path) -> None:
    former = os.umask(0)
    try:
        with Store.open(tmp_path):
            file = tmp_path / ADDRESS
            place = Path(json.loads(file.read_text())["path"]).parent
            modes = [stat.S_IMODE(path.stat().st_mode) for path in (file, file.parent, place)]
    finally:
        os.umask(former)
    assert modes == [0o600, 0o700, 0o700]


def test_who_does_not_know_the_key_gets_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), Store.open(tmp_path) as store:
        address = json.loads((tmp_path / ADDRESS).read_text())
        stranger = Client(address["path"], "AF_UNIX")
        with pytest.raises((EOFError, OSError, Exception), match="digest sent was rejected"):
            answer_challenge(stranger, b"a guess")
        stranger.close()
        for sent in (b"", b"\x80\x04N.", b"q" + b"\xff" * 50):  # nothing, a pickle, no CBOR
            rude = Client(address["path"], "AF_UNIX")
            rude.send_bytes(sent)
            rude.close()
        assert store.runs() == []
    said = "\n".join(record.getMessage() for record in caplog.records)
    assert "does not know the key" in said and address["key"] not in said


@pytest.mark.parametrize("how", ["readable", "a link", "another's"])
def test_an_address_that_others_may_have_written_or_read_is_refused(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = start(HOLD, tmp_path / "store")
    file = tmp_path / "store" / ADDRESS
    try:
        assert line(holder) == "open True"
        if how == "readable":
            file.chmod(0o644)
        elif how == "a link":
            file.rename(tmp_path / "address")
            file.symlink_to(tmp_path / "address")
        else:
            if os.geteuid() != 0:
                pytest.skip("only root can give a file to another user")
            os.chown(file, 12_345, 12_345)
        with pytest.raises(
            StoreError, match=r"address.json (cannot be trusted \(.*\): end the program that holds|is a link)"
        ):
            Store.open(tmp_path / "store")
    finally:
        kill(holder)


def test_a_request_beyond_the_limit_is_refused_where_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with holding(HOLD, tmp_path), Store.open(tmp_path) as store:
        monkeypatch.setattr(local_server, "MOST_BYTES", 10_000)
        with pytest.raises(StoreError, match="is more than the 10,000 that a store takes"):
            store.connection.query("RETURN $text", {"text": "x" * 20_000})
        assert store.runs() == []


def test_nothing_is_ever_unpickled() -> None:
    """`send` and `recv` of a connection of `multiprocessing` carry pickles, which run what they contain."""
    for path in Path(backend.store.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        called = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        imported = {
            name.name for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom) for name in node.names
        }
        assert not called & {"send", "recv", "loads_pickle"}, path
        assert not imported & {"pickle", "shelve", "marshal", "Pipe", "Manager"}, path
