"""Copies of a store are whole: backup and compaction, against a plain model, killed at any moment, on a full disk."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from backend.store import RunRecord, Store, StoreError
from backend.store.connection import Connection
from backend.store.folder_swap import size_of
from backend.store.gateway.engine import StoreEngine
from backend.store.integrity import snapshot
from backend.store.integrity.snapshot import take_snapshot
from backend.store.maintenance import compaction, copying, file_copy
from backend.store.maintenance.backup import backup_store
from backend.store.maintenance.compaction import GROWTH, compact_if_grown, compact_store
from backend.store.maintenance.copying import Fingerprint, all_rows
from backend.store.maintenance.tables import COPIED, Tables
from backend.store.records import DecisionRecord, Delegation, JournalRecord, Record, TrajectoryRecord
from tests.backend.store.gateways import environment
from tests.backend.store.synthetic import add_step, add_training


def nothing(what: str, done: int, total: int) -> None:
    """Shows no progress."""


def held(store: Store) -> Fingerprint:
    """What a store holds."""
    found = Fingerprint()
    for kind, rows in all_rows(store):
        found.add(kind, rows)
    return found


def held_in(folder: Path) -> Fingerprint:
    with Store.open(folder) as store:
        return held(store)


def filled(folder: Path, runs: int = 3) -> Fingerprint:
    """A store with runs, and records of a run that is not there."""
    with Store.open(folder) as store:
        for number in range(runs):
            add_training(store, f"run-{number}")
        store.add_journal(JournalRecord("run-0", 0, "start", 1, {"bars": 3}))
        store.add_decisions([DecisionRecord("half", "team", 0, 1, {"text": "stray"})])
        return held(store)


@pytest.fixture(params=["files", "records"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """By which a backup copies: `records` as from a server, whose files are not here."""
    if request.param == "records":
        by_records(monkeypatch)
    return str(request.param)


def by_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "snapshot", lambda connection: None)


def test_a_backup_is_a_store_with_the_same_records(way: str, tmp_path: Path) -> None:
    before = filled(tmp_path / "s")
    shown: list[tuple[str, int, int]] = []
    with Store.open(tmp_path / "s") as store:
        stored = backup_store(store, tmp_path / "b", lambda *progress: shown.append(progress))
        identity = Tables(store).identity
    assert +Counter(stored) == +Counter(before.rows)
    assert held_in(tmp_path / "b").differences(before) == []
    assert {what for what, _, _ in shown} == {"copied", "verified"}
    assert shown[-1][1] == shown[-1][2] == sum(before.rows.values())
    with Store.open(tmp_path / "b") as copy:
        assert Tables(copy).identity != identity, "who was connected to the one does not go on with the other"
        assert copy.runs()[0].status == "finished"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "s"]
    with Store.open(tmp_path / "s") as store, pytest.raises(StoreError, match="exists already: give another folder"):
        backup_store(store, tmp_path / "b", nothing)


def test_a_backup_while_a_training_writes_shows_a_moment(way: str, tmp_path: Path) -> None:
    """Steps are written, and old conversations dropped, while it is copied: each step in the copy is one that was."""
    with Store.open(tmp_path / "s") as store:
        add_training(store, "busy", steps=3, status="running")
        add_training(store, "other")
        over = threading.Event()

        def write() -> None:
            step = 3
            while not over.is_set() and step < 200:
                add_step(store, "busy", step)
                store.drop_trajectories("busy", [step - 3])
                step += 1

        writer = threading.Thread(target=write)
        writer.start()
        try:
            backup_store(store, tmp_path / "b", nothing)
        finally:
            over.set()
            writer.join()
        assert store.run("busy").status == "running"
    with Store.open(tmp_path / "b") as copy:
        assert copy.run("busy").status == "interrupted"
        for step in copy.steps(TrajectoryRecord, "busy"):
            keys = {(one.rollout, one.role, one.ordinal) for one in copy.trajectories("busy", step)}
            for edge in copy.delegations("busy", step):
                assert (edge.rollout, *edge.caller) in keys and (edge.rollout, edge.role, edge.ordinal) in keys
        steps = [record.step for record in copy.metrics("busy")]
        assert steps == list(range(len(steps))), "all steps before one that is there"


def test_compaction_gives_space_back_and_keeps_the_rest(tmp_path: Path) -> None:
    filled(tmp_path, runs=6)
    with Store.open(tmp_path) as store:
        for number in range(5):
            store.delete_run(f"run-{number}")
        before, identity = held(store), Tables(store).identity
    done = compact_store(tmp_path, nothing)
    assert done.after < done.before and done.records == sum(before.rows.values())
    with Store.open(tmp_path) as store:
        assert held(store).differences(before) == [] and Tables(store).identity == identity
    assert not (tmp_path / ".compact").exists()


def test_both_databases_may_be_opened_anew_after_each_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for bound in ("_WRITTEN_BYTES", "_READ_BYTES", "_COUNTED"):
        monkeypatch.setattr(copying, bound, 0)
    by_records(monkeypatch)
    before = filled(tmp_path / "s", runs=2)
    opened: list[int] = []
    relieve = copying._Copy.relieve

    def relieved(copy: copying._Copy) -> None:
        opened.append(copy._written)
        relieve(copy)
        assert copy._written == 0

    monkeypatch.setattr(copying._Copy, "relieve", relieved)
    with Store.open(tmp_path / "s") as store:
        backup_store(store, tmp_path / "b", nothing)
    compact_store(tmp_path / "s", nothing)
    assert len(opened) > 20 and held_in(tmp_path / "b").differences(before) == []
    assert held_in(tmp_path / "s").differences(before) == []


def test_a_store_in_use_or_being_written_is_not_compacted(tmp_path: Path) -> None:
    filled(tmp_path)
    with Store.open(tmp_path), pytest.raises(StoreError, match="is in use by this very process"):
        compact_store(tmp_path, nothing)
    with pytest.raises(StoreError, match="holds no store"):
        compact_store(tmp_path / "nowhere", nothing)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("at", ["copy", "swap", "verify"])
def test_a_full_disk_loses_nothing(at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = filled(tmp_path / "s")
    full = OSError(errno.ENOSPC, "No space left on device")

    def fails(*given: Any, **named: Any) -> Any:
        raise StoreError("IO error") if at == "copy" else full

    if at == "copy":
        monkeypatch.setattr(copying, "_refuse_less", fails)
    elif at == "swap":
        monkeypatch.setattr(compaction, "mark_ready", fails)
    else:
        verify = copying._verify

        def differing(target: Path, *given: Any) -> None:
            with Store.open(target) as copy:
                copy.add_metrics("run-1", 2, {"team/outcome": 0.25})
            verify(target, *given)

        monkeypatch.setattr(copying, "_verify", differing)
    with pytest.raises(StoreError, match=r"IO error|No space left|does not hold what was written to it"):
        compact_store(tmp_path / "s", nothing)
    if at != "swap":
        by_records(monkeypatch)
        with Store.open(tmp_path / "s") as store, pytest.raises(StoreError):
            backup_store(store, tmp_path / "b", nothing)
        assert not (tmp_path / "b").exists()
    monkeypatch.undo()
    assert held_in(tmp_path / "s").differences(before) == []
    assert [path.name for path in tmp_path.iterdir()] == ["s"] and not (tmp_path / "s" / ".compact").exists()


def test_a_backup_of_files_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any of its stages, and the store goes on: the next one is whole."""
    before = filled(tmp_path / "s", runs=1)
    full = OSError(errno.ENOSPC, "No space left on device")

    def fails(*given: Any, **named: Any) -> Any:
        raise full

    def damaged(path: Path) -> bytes:
        content = bytearray(path.read_bytes())
        digest = hashlib.sha256(content).digest()
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        return hashlib.sha256(content).digest() if stage == "comparing" else digest

    with Store.open(tmp_path / "s") as store:
        for stage, words in (
            ("links", "No space left"),
            ("room", "No space left"),
            ("writing", "No space left"),
            ("comparing", "not hold what was written to it"),
            ("reading", "the copy cannot be read"),
        ):
            with monkeypatch.context() as patch, pytest.raises(StoreError, match=words):
                match stage:
                    case "links":
                        patch.setattr(snapshot, "link_database", fails)
                    case "room":
                        patch.setattr(os, "posix_fallocate", fails)
                        patch.setattr(StoreEngine, "_require_room", lambda engine: None)
                    case "writing":
                        patch.setattr(os, "fsync", fails)
                    case _:
                        patch.setattr(file_copy, "_digest", damaged)
                backup_store(store, tmp_path / "b", nothing)
            assert not list((tmp_path / "s" / ".snapshots").glob("*")), stage
            assert [path.name for path in tmp_path.iterdir()] == ["s"], stage
        backup_store(store, tmp_path / "b", nothing)
        assert held(store).differences(before) == []
    assert held_in(tmp_path / "b").differences(before) == []


def test_a_backup_asks_the_process_that_holds_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader in another process gets the files, as they are while that process writes on."""
    before = filled(tmp_path / "s")
    command = [sys.executable, "-c", BACKUP, str(tmp_path / "s"), str(tmp_path / "b")]
    with Store.open(tmp_path / "s") as store:
        ended = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        add_training(store, "later")
        assert sorted(run.run for run in store.runs()) == ["later", "run-0", "run-1", "run-2"]
    assert held_in(tmp_path / "b").differences(before) == []
    assert not list((tmp_path / "s" / ".snapshots").glob("*"))


BACKUP = """
import sys
from pathlib import Path
from backend.store import Store
from backend.store.maintenance import backup
def refused(*given): raise AssertionError("by records")
backup.copy_store = refused
with Store.open(sys.argv[1], reads_only=True) as store:
    assert not store.connection.holds
    backup.backup_store(store, Path(sys.argv[2]), lambda *progress: None)
"""


def test_links_that_a_kill_has_left_go_with_the_next_opening(tmp_path: Path) -> None:
    before = filled(tmp_path)
    take_snapshot(tmp_path)
    assert any((tmp_path / ".snapshots").iterdir())
    assert held_in(tmp_path).differences(before) == []
    assert not (tmp_path / ".snapshots").exists()


# Compacts or backs up a store, and is killed at the Nth change of a file or folder or the Nth portion of rows.
KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from backend.store import Store, folder_swap
from backend.store.connection import Connection
from backend.store.maintenance import backup, compaction, copying, file_copy
what, folder, at, done = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), 0
def counting(call):
    def counted(*given, **named):
        global done
        done += 1
        if done == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*given, **named)
    return counted
os.rename = counting(os.rename)
shutil.rmtree = counting(shutil.rmtree)
copying._Copy.write = counting(copying._Copy.write)
for step in ("_reserve", "_copied", "_digest", "_read_all"):
    setattr(file_copy, step, counting(getattr(file_copy, step)))
if what == "backup of records":
    Connection.snapshot = lambda connection: None
folder_swap.sync_folder = counting(folder_swap.sync_folder)
Path.touch = counting(Path.touch)
def nothing(*given): pass
if what == "compact":
    compaction.compact_store(folder, nothing)
else:
    with Store.open(folder) as store:
        backup.backup_store(store, folder.parent / "b", nothing)
print(done)
"""


def run_killed(what: str, folder: Path, at: int) -> int:
    """The number of places to be killed at, if it was not."""
    command = [sys.executable, "-c", KILLED, what, str(folder), str(at)]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    if ended.returncode == 0:
        return int(ended.stdout)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    return 0


@pytest.mark.parametrize(
    ("what", "last"),
    [
        ("compact", (5,)),  # between the two renames
        *(pytest.param(what, range(12), marks=pytest.mark.slow) for what in ("compact", "backup", "backup of records")),
    ],
)
def test_killed_at_any_place_it_loses_nothing(what: str, last: Sequence[int], tmp_path: Path) -> None:
    before = filled(tmp_path / "s", runs=1)
    places = run_killed(what, tmp_path / "s", 10_000)
    shutil.rmtree(tmp_path / "b", ignore_errors=True)
    # The last ones are the swap; the copying before is the same all the way.
    for at in (5, *(places - place for place in last)):
        assert run_killed(what, tmp_path / "s", at) == 0
        whole = (tmp_path / "b").exists()
        assert held_in(tmp_path / "s").differences(before) == [], f"killed at {at} of {places}"
        assert not (tmp_path / "s" / ".compact").exists()
        if whole:
            assert held_in(tmp_path / "b").differences(before) == []
            shutil.rmtree(tmp_path / "b")
    assert run_killed(what, tmp_path / "s", 10_000) > 0, "what was cut short is no obstacle"
    assert held_in(tmp_path / ("s" if what == "compact" else "b")).differences(before) == []


def test_a_crash_between_the_two_renames_is_mended(tmp_path: Path) -> None:
    before = filled(tmp_path)
    (tmp_path / ".compact").mkdir()
    (tmp_path / ".compact" / "ready").touch()
    shutil.copytree(tmp_path / "db", tmp_path / ".compact" / "db")
    os.rename(tmp_path / "db", tmp_path / ".compact" / "former")
    assert held_in(tmp_path).differences(before) == []


def test_a_store_in_which_runs_come_and_go_does_not_grow_for_ever(tmp_path: Path) -> None:
    """The engine keeps the keys of what was deleted. What is left is compacted when it has grown enough, by whoever
    asks and can have it alone."""
    least, sizes, compacted = 150_000, list[int](), 0
    for number in range(14):
        with Store.open(tmp_path / "s") as store:
            add_training(store, f"run-{number}", steps=6)
            store.drop_trajectories(f"run-{number}", range(4))
            store.delete_run(f"run-{number - 1}")
            before = held(store)
            if number == 7:
                assert compact_if_grown(tmp_path / "s", nothing, 0) is None, "it is in use"
        sizes.append(size_of(tmp_path / "s" / "db"))
        done = compact_if_grown(tmp_path / "s", nothing, least)
        noted = int((tmp_path / "s" / "compacted").read_text())
        if done is None:
            assert sizes[-1] <= max(least, GROWTH * noted)
        else:
            compacted += 1
            assert done.after == noted < done.before
            assert held_in(tmp_path / "s").differences(before) == []
    assert compacted >= 2 and max(sizes[7:]) <= 1.5 * max(sizes[:7]), sizes


def test_a_store_is_not_compacted_unasked_where_there_is_too_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = filled(tmp_path / "s")
    (tmp_path / "s" / "compacted").write_text("1")
    monkeypatch.setattr(compaction, "_free_memory", lambda: size_of(tmp_path / "s" / "db"))
    with pytest.raises(StoreError, match=r"would need .* MB of memory, .* store compact` when there is more"):
        compact_if_grown(tmp_path / "s", nothing, 1)
    monkeypatch.setattr(compaction, "_free_memory", lambda: None)  # not every system says
    assert compact_if_grown(tmp_path / "s", nothing, 1) is not None
    assert held_in(tmp_path / "s").differences(before) == []


@pytest.mark.parametrize("note", [b"", b"many\n", b"-1", b"9" * 100, "\u0663".encode()])
def test_whatever_the_note_of_a_compaction_says_the_store_stays_whole(note: bytes, tmp_path: Path) -> None:
    before = filled(tmp_path / "s")
    (tmp_path / "s" / "compacted").write_bytes(note)
    compact_if_grown(tmp_path / "s", nothing, 1)
    assert held_in(tmp_path / "s").differences(before) == []


class StoreModel(RuleBasedStateMachine):
    """A store through any sequence of writes, deletions, retention, compaction and reopening, against plain dicts."""

    runs = st.sampled_from(["a", "a-1", "b"])

    @initialize()
    def begin(self) -> None:
        self.folder = Path(os.environ["STORE_MODEL"]) / os.urandom(4).hex()
        self.store = Store.open(self.folder)
        self.model: dict[str, dict[type[Record], dict[Any, Record]]] = {}

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.folder)

    def stored(self, kind: type[Record], run: str) -> dict[Any, Record]:
        return {str(one): one for one in self.store.each(kind, run)}

    @rule(run=runs, steps=st.integers(0, 3))
    def write(self, run: str, steps: int) -> None:
        add_training(self.store, run, steps, rollouts=2)
        kinds = COPIED
        self.model[run] = {kind: self.stored(kind, run) for kind in kinds}
        assert len(self.model[run][TrajectoryRecord]) >= 4 * steps

    @rule(run=runs, text=st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20))
    def decide(self, run: str, text: str) -> None:
        if run in self.model:
            record = DecisionRecord(run, "team", 9, 1, {"text": text, "number": None})
            self.store.add_decisions([record])
            self.model[run][DecisionRecord][str(record)] = record

    @rule(run=runs)
    def delete(self, run: str) -> None:
        self.store.delete_run(run)
        self.model.pop(run, None)

    @rule(run=runs, before=st.integers(0, 3))
    def drop(self, run: str, before: int) -> None:
        self.store.drop_trajectories(run, range(before))
        for kind in (TrajectoryRecord, Delegation):
            if run in self.model:
                kept = {key: one for key, one in self.model[run][kind].items() if vars(one)["step"] >= before}
                self.model[run][kind] = kept

    @precondition(lambda self: self.model)
    @rule()
    def mark_and_delete_later(self) -> None:
        run = min(self.model)
        self.store.mark_deleting(run)
        with pytest.raises(StoreError, match="half deleted"):
            self.store.run(run)
        self.delete(run)

    @rule()
    def compact(self) -> None:
        self.store.close()
        compact_store(self.folder, nothing)
        self.store = Store.open(self.folder)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = Store.open(self.folder)

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        if hasattr(self, "store"):
            assert sorted(record.run for record in self.store.runs()) == sorted(self.model)
            for run, kinds in self.model.items():
                for kind, records in kinds.items():
                    assert self.stored(kind, run) == records
                    assert self.store.count(kind, run) == len(records)
                    if "step" in kind.identity:
                        of_step = sum(vars(one)["step"] == 1 for one in records.values())
                        assert self.store.count(kind, run, 1) == of_step


@pytest.mark.parametrize("examples", [2, pytest.param(60, marks=pytest.mark.slow)])
def test_any_sequence_of_changes_ends_where_a_model_does(
    examples: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORE_MODEL", str(tmp_path))
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    case = settings(max_examples=examples, stateful_step_count=8, deadline=None, suppress_health_check=checks)
    StoreModel.TestCase.settings = case
    StoreModel.TestCase().runTest()


def test_a_run_that_is_running_is_not_compacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process is another client of the gateway that had the folder; its lease has not run out."""
    filled(tmp_path)
    with Store.open(tmp_path) as store:
        [newest, *_] = store.runs()
    running = [replace(newest, status="running")]
    monkeypatch.setattr(compaction.Store, "runs", lambda self: running)
    with pytest.raises(StoreError, match=r"run run-0 .* is being written: compact it afterwards"):
        compact_store(tmp_path, nothing)
    monkeypatch.undo()
    with Store.open(tmp_path) as store:
        assert isinstance(store.run("run-0"), RunRecord)


def test_who_reads_a_copy_ends_with_who_started_it(tmp_path: Path) -> None:
    # One that went on after its backup was killed would write into the folder of the next backup.
    command = [sys.executable, "-m", "backend.store.maintenance.copy_reader", str(tmp_path / "copy")]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "") and not (tmp_path / "copy").exists()
