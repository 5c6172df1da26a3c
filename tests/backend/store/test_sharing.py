"""One process holds a folder and serves it; the others use it through that one, and hold it when that one has gone."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from surrealdb.data.cbor import decode, encode
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from backend.distributed.store_server import serve_store
from backend.store import MetricRecord, RunRecord, Store, StoreError, connection
from backend.store.gateway.address import FILE
from backend.store.lock import FolderLock
from tests.backend.store.gateways import CREDENTIALS, GatewayProcess, environment, free_port

RUN = RunRecord("r", "train", 1, "hash", 1_000, {})

# Writes records of its own run with a number each, and says which are acknowledged.
WRITE = """
import sys
from backend.store import RunRecord, Store
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
from backend.store import Store
seen = 0
with Store.open(sys.argv[1], reads_only=True) as store:
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
from backend.store import Store
with Store.open(sys.argv[1]) as store:
    print("open", store._connection.holds, flush=True)
    time.sleep(600)
"""


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
    holder = start(WRITE, tmp_path, "holder", 100_000)
    try:
        assert line(holder) == "open True"
        with Store.open(tmp_path, patience=60) as store:
            store.add_run(RUN)
            while int(line(holder)) < 20:
                pass
            assert not store.address and store.run("holder").status == "running"
            holder.kill()
            # Read as the lines before were: what `communicate` reads leaves out what Python has in its buffer.
            assert holder.stdout is not None
            acknowledged = max([20, *(int(step) for step in holder.stdout.read().split() if step.isdigit())])
            store.add_metrics("r", 0, {"loss": 0.5})
            assert store.address is not None  # it holds the folder now
            steps = [one.step for one in store.metrics("holder")]
            assert steps[: acknowledged + 1] == list(range(acknowledged + 1)) and len(steps) <= acknowledged + 2
            # Nobody waits for a lease: the dead one held a lock on a file, which is gone.
            assert store.run("holder").status == "interrupted"
            assert store.run("r").status == "running"
            store.claim("holder")
    finally:
        kill(holder)


def test_when_the_holder_ends_in_order_nobody_is_told_of_any_trouble(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    holder = start(WRITE, tmp_path, "holder", 200)
    try:
        assert line(holder) == "open True"
        with Store.open(tmp_path, patience=60) as store:
            store.add_run(RUN)
            step = 0
            while store.address is None:
                store.add_metrics("r", step, {"loss": 1.0})
                step += 1
            assert [one.step for one in store.metrics("r")] == list(range(step))
            assert store.run("holder").status == "finished" and len(store.metrics("holder")) == 200
        assert not caplog.records
    finally:
        kill(holder)


def test_one_process_opens_it_as_often_as_it_likes(tmp_path: Path) -> None:
    first, second = Store.open(tmp_path), Store.open(tmp_path)
    first.add_run(RUN)
    assert second.run("r").status == "running" and first.address == second.address
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
    with Store.open(tmp_path, patience=30) as store:
        store.add_run(RUN)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                store.add_metrics("r", 1, {"of the child": 1.0})
                with Store.open(tmp_path) as opened:
                    code = 0 if not opened._connection.holds and len(opened.metrics("r")) == 1 else 2
                os.write(write, b"x")
                time.sleep(30)  # and outlives what its parent does with the folder
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
    (tmp_path / FILE).write_text(json.dumps({"launch": "of a dead one"}))
    (tmp_path / FILE).chmod(0o600)
    monkeypatch.setattr(connection, "HOLDER_PATIENCE", 0.4)
    with pytest.raises(
        StoreError, match=rf"in use by this very process, which opened it at 20.* UTC, and has not answered for .* "
        rf"seconds \(it does not serve it yet\): wait if .*, else end it \(kill {os.getpid()}\)"
    ):  # fmt: skip
        Store.open(tmp_path)
    monkeypatch.setattr(connection, "HOLDER_PATIENCE", 30.0)
    ending = threading.Timer(0.3, lock.release)
    ending.start()
    with Store.open(tmp_path) as store:
        assert store.address is not None
    ending.join()


def test_what_a_killed_holder_left_behind_is_in_nobodys_way(tmp_path: Path) -> None:
    """Its address names a port where perhaps another program listens by now: it is not even tried."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        holder = start(HOLD, tmp_path)
        assert line(holder) == "open True"
        kill(holder)
        left = json.loads((tmp_path / FILE).read_text())
        left["url"] = f"ws://127.0.0.1:{other.getsockname()[1]}"
        (tmp_path / FILE).write_text(json.dumps(left))
        with Store.open(tmp_path) as store:
            found = json.loads((tmp_path / FILE).read_text())
            assert found["url"] == store.address and found["launch"] != left["launch"]
        other.settimeout(0.0)
        with pytest.raises(BlockingIOError):
            other.accept()


def test_a_holder_that_hangs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = start(HOLD, tmp_path)
    try:
        assert line(holder) == "open True"
        holder.send_signal(signal.SIGSTOP)
        monkeypatch.setattr(connection, "HOLDER_PATIENCE", 0.5)
        monkeypatch.setattr("backend.store.gateway.client._OPEN", 0.5)
        with pytest.raises(
            StoreError, match=rf"in use by process {holder.pid}.* UTC.*else end it \(kill {holder.pid}\)"
        ):
            Store.open(tmp_path)
        holder.send_signal(signal.SIGCONT)
        monkeypatch.setattr(connection, "HOLDER_PATIENCE", 30.0)
        Store.open(tmp_path).close()
    finally:
        kill(holder)


def test_who_serves_it_on_purpose_is_told_who_serves_it_already(tmp_path: Path) -> None:
    holder = start(HOLD, tmp_path)
    try:
        assert line(holder) == "open True"
        with pytest.raises(
            StoreError, match=rf"in use by process {holder.pid}, .*to serve it here, end that one first"
        ):
            serve_store(tmp_path, "127.0.0.1", 0, print)
    finally:
        kill(holder)


def test_programs_of_this_machine_need_only_the_folder_of_a_store_that_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    with GatewayProcess(tmp_path, free_port()) as running, Store.open(tmp_path) as store:
        store.add_run(RUN)
        assert store.address is None and running.url in (tmp_path / FILE).read_text()


# -- sign-in -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["a process that holds it", "serve store with an account", "serve store without one"])
def test_a_client_without_an_account_can_do_nothing(tmp_path: Path, how: str) -> None:
    if how == "a process that holds it":
        holder = start(HOLD, tmp_path)
        assert line(holder) == "open True"
    else:
        variables = {} if how == "serve store with an account" else dict.fromkeys(CREDENTIALS, "")
        holder = GatewayProcess(tmp_path, free_port(), **variables).process
    try:
        url = json.loads((tmp_path / FILE).read_text())["url"]
        for method in ("query", "use", "let", "select", "delete", "version", "info", "attach", "run", "nonsense"):
            with connect(f"{url}/rpc", subprotocols=[Subprotocol("cbor")], compression=None) as raw:
                raw.send(encode({"id": "1", "method": method, "params": ["REMOVE TABLE run", {}]}))
                answer = raw.recv(timeout=10)
                assert isinstance(answer, bytes) and "sign in before" in decode(answer)["error"]["message"]
                with pytest.raises(ConnectionClosed):
                    raw.recv(timeout=10)
    finally:
        kill(holder)


CHANGES = (
    "REMOVE TABLE run", "remove table run", "CREATE run:x", "DELETE run", "UPDATE run SET seed = 2", "UPSERT run:x",
    "SELECT * FROM (DELETE run)", "RETURN { CREATE run:x }", "DEFINE USER u ON ROOT PASSWORD 'p' ROLES OWNER",
    "LET $x = 1; INSERT INTO run {}", "RELATE run:a->delegated->run:b", "ALTER TABLE run DROP",
    "REBUILD INDEX run_by_id ON run",
    "FOR $i IN 0..9 { CREATE run }", "SLEEP 1s", "LIVE SELECT * FROM run", "ACCESS a ON DATABASE GRANT FOR USER u",
    "RETURN eval::surql('REMOVE TABLE run')", "USE NS x DB y; CREATE run", "BEGIN; REMOVE/**/TABLE run; COMMIT",
    "DEFINE FUNCTION fn::f() { REMOVE TABLE run }", "REMOVE DATABASE main", "KILL u'0'",
)  # fmt: skip


def test_an_account_that_reads_can_change_nothing(tmp_path: Path) -> None:
    """Neither what is recognised as a change nor, where that is missed, what only the engine refuses."""
    holder = start(HOLD, tmp_path)
    try:
        assert line(holder) == "open True"
        with Store.open(tmp_path) as writer, Store.open(tmp_path, reads_only=True) as reader:
            writer.add_run(replace(RUN, status="finished"))
            assert reader.runs() == writer.runs() and reader.now() > 0
            for text in CHANGES:
                with pytest.raises(StoreError, match="this account only reads"):
                    reader._connection.query(text)
            with pytest.raises(StoreError, match="this account only reads"):
                reader.add_metrics("r", 0, {"loss": 1.0})
            for text in ("INFO FOR ROOT", "OPTION IMPORT", "USE NS other; SELECT * FROM run"):
                with pytest.raises(StoreError):
                    reader._connection.query(text)
            assert [one.run for one in writer.runs()] == ["r"]
        found = json.loads((tmp_path / FILE).read_text())
        with connect(f"{found['url']}/rpc", subprotocols=[Subprotocol("cbor")], compression=None) as raw:

            def ask(method: str, *parameters: object, **more: object) -> dict[str, object]:
                raw.send(encode({"id": "1", "method": method, "params": list(parameters), **more}))
                answer = raw.recv(timeout=10)
                assert isinstance(answer, bytes)
                response: dict[str, object] = decode(answer)
                return response

            account = found["reader"]
            assert "result" in ask("signin", {"user": account["user"], "pass": account["password"]})
            for method in ("create", "delete", "merge", "insert", "relate", "let", "run", "attach", "begin", "select"):
                assert "only reads" in str(ask(method, "run", {})["error"])
            assert "only reads" in str(ask("use", "other", "place")["error"])
            assert "only reads" in str(ask("snapshot", "../elsewhere")["error"])
            # A session named in the request itself would be that of another; it is not passed on.
            assert "error" not in ask("query", "SELECT * FROM run", {}, session="whatever")
            account = found["writer"]  # as that of an operator, which may come from another machine
            assert "result" in ask("signin", {"user": account["user"], "pass": account["password"]})
            assert "does not offer 'snapshot'" in str(ask("snapshot")["error"])
    finally:
        kill(holder)


def test_the_engine_itself_refuses_what_a_reader_may_not(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.add_run(replace(RUN, status="finished"))
        holding = store._connection.holding
        assert holding is not None
        for text in CHANGES:
            if not text.startswith("SLEEP"):
                holding.engine.read(text, {})
        assert [one.run for one in store.runs()] == ["r"]


def test_the_secrets_are_in_no_output_record_or_command_line(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    holder = start(HOLD, folder)
    processes = [holder]
    try:
        assert line(holder) == "open True"
        found = json.loads((folder / FILE).read_text())
        secrets = [found[who]["password"] for who in ("writer", "reader")]
        processes += [start(WRITE, folder, f"run-{number}", 5) for number in range(2)]
        processes += [start(READ, folder, "run-0")]
        for process in processes[1:]:
            assert line(process) == "open False"
        lines = [Path(f"/proc/{one.pid}/cmdline").read_bytes().decode() for one in processes]
        for process in processes[1:3]:
            lines += process.communicate(timeout=120)
        with Store.open(folder) as store:
            tables = store._connection.query("INFO FOR DB")["tables"]
            lines += [str(store._connection.query(f"SELECT * FROM {table}")) for table in tables]
            lines += [str(store._connection.query("INFO FOR DB"))]
        holder.send_signal(signal.SIGSTOP)
        client = start("import sys; from backend.store import Store, connection\n"
                       "from backend.store.gateway import client\n"
                       "connection.HOLDER_PATIENCE = client._OPEN = 0.3\n"
                       "Store.open(sys.argv[1])", folder)  # fmt: skip
        processes.append(client)
        lines += client.communicate(timeout=120)
        assert "in use by process" in lines[-1]
    finally:
        kill(*processes)
    lines += [path.read_bytes().decode(errors="replace") for path in tmp_path.rglob("*") if path.is_file() and
              path.name != FILE]  # fmt: skip
    assert len(lines) > 12
    for secret in secrets:
        assert len(secret) > 40
        assert not [text[:200] for text in lines if secret in text]


# -- at random ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [4, pytest.param(60, marks=pytest.mark.slow)])
def test_all_that_was_acknowledged_is_there_whoever_is_killed(tmp_path: Path, processes: int) -> None:
    """Processes open, write and close in any order; half of them are killed at some moment, mostly while they hold."""
    rng = random.Random(1)
    count, alive, outputs = 40, list[tuple[str, subprocess.Popen[str], float]](), dict[str, str]()
    waiting = [f"run-{number}" for number in range(processes)]
    errors: list[str] = []

    def collect(name: str, process: subprocess.Popen[str]) -> None:
        said, error = process.communicate()
        outputs[name] = said
        if process.returncode not in (0, -signal.SIGKILL):
            errors.append(error)

    threads: list[threading.Thread] = []
    while waiting or alive:
        while waiting and len(alive) < 4:
            name = waiting.pop()
            process = start(WRITE, tmp_path, name, count)
            lifetime = rng.uniform(0.5, 4.0) if rng.random() < 0.5 else 600.0
            alive.append((name, process, time.monotonic() + lifetime))
            threads.append(threading.Thread(target=collect, args=(name, process)))
            threads[-1].start()
        for one in tuple(alive):
            if time.monotonic() > one[2]:
                one[1].kill()
            if one[1].poll() is not None:
                alive.remove(one)
        time.sleep(0.02)
    for thread in threads:
        thread.join()
    assert errors == []
    with Store.open(tmp_path) as store:
        for name, said in outputs.items():
            words = said.replace("open True", "").replace("open False", "").split("\n")
            acknowledged = [int(word) for word in words[:-1] if word.strip()]
            stored = [(one.step, one.values) for one in store.metrics(name)] if "open" in said else []
            assert stored[: len(acknowledged)] == [(step, {"loss": float(step)}) for step in acknowledged], name
            assert len(stored) <= len(acknowledged) + 2
            assert store.count(MetricRecord, name) == len(stored)
    shutil.rmtree(tmp_path)


# Goes on with the records of a run where its predecessor was killed, until it is killed itself.
GO_ON = """
import sys
from backend.store import RunRecord, Store
with Store.open(sys.argv[1]) as store:
    store.add_run(RunRecord("r", "train", 1, "hash", 0, {}))
    for step in range(int(sys.argv[2]), 1_000_000):
        store.add_metrics("r", step, {"loss": float(step)})
        print(step, flush=True)
"""


@pytest.mark.parametrize("kills", [3, pytest.param(100, marks=pytest.mark.slow)])
def test_a_writer_and_two_readers_are_killed_again_and_again(tmp_path: Path, kills: int) -> None:
    """Whoever holds the store at that moment. No reader ever sees less than before, nothing acknowledged is lost."""
    rng = random.Random(2)
    acknowledged: list[int] = []
    alive: dict[str, subprocess.Popen[str]] = {}
    listening: dict[str, threading.Thread] = {}

    def begin(name: str) -> None:
        process = alive[name] = (
            start(GO_ON, tmp_path, len(acknowledged)) if name == "writer" else start(READ, tmp_path, "r")
        )
        listening[name] = threading.Thread(target=listen, args=(name, process))
        listening[name].start()

    def listen(name: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for said in process.stdout:
            if name == "writer" and said.endswith("\n"):
                acknowledged.append(int(said))

    def end(name: str) -> None:
        alive[name].kill()
        alive[name].wait()
        listening[name].join()  # all that it said is read
        errors = alive[name].stderr
        assert errors is not None and "Error" not in errors.read()

    for name in ("writer", "one", "other"):
        begin(name)
    for _ in range(kills):
        before = len(acknowledged)
        until = time.monotonic() + 120
        while len(acknowledged) < before + 5:  # the writer has come to write
            assert alive["writer"].poll() is None and time.monotonic() < until
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, 0.3))
        for name in ("one", "other"):
            assert alive[name].poll() is None
        name = rng.choice(list(alive))
        end(name)
        begin(name)
    for name in alive:
        end(name)
    assert acknowledged == list(range(len(acknowledged)))
    with Store.open(tmp_path) as store:
        stored = [(one.step, one.values) for one in store.metrics("r")]
        assert stored[: len(acknowledged)] == [(step, {"loss": float(step)}) for step in acknowledged]
        assert len(stored) <= len(acknowledged) + 1


# Prints whether the engine says that the disk is full: of four requests on a full disk, and of one after it.
ON_A_FULL_DISK = """
import resource, sys
from backend.store.gateway.engine import Session, StoreEngine
from backend.store.gateway.rpc_messages import query
engine = StoreEngine("surrealkv://" + sys.argv[1])
ours = Session("cryptosentinel", "main")
def ask(call, room=0):
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    try:
        said = call()
    except RuntimeError as error:
        said = error
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print("IO error" in str(said), flush=True)
ask(lambda: engine.execute(ours, query("RETURN 1", {})))  # makes the database
engine.execute(ours, query("DEFINE TABLE t", {}))
ask(lambda: engine.execute(ours, query("DEFINE TABLE u", {})))
ask(lambda: engine.execute(ours, query("CREATE t:1", {})))
ask(lambda: engine.read("RETURN 1", {}))  # makes a user
ask(lambda: engine.execute(ours, query("DEFINE TABLE u; CREATE t:1, u:1", {})), resource.RLIM_INFINITY)
"""


def test_a_full_disk_is_an_error_whatever_is_asked(tmp_path: Path) -> None:
    """The engine never answers a definition then, and holds the interpreter's lock: Ctrl-C did not end the program."""
    process = start(ON_A_FULL_DISK, tmp_path / "db")
    try:
        said, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (said.split(), error) == (["True"] * 4 + ["False"], "")
