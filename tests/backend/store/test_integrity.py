"""Damage of a store's files is seen before the database engine repairs it, and nothing else is taken for damage."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backend.store import RunRecord, Store, StoreError, holding
from backend.store.folder_swap import WORKPLACE, mark_ready
from backend.store.gateway.engine import OnAnswer, StoreEngine
from backend.store.integrity.acceptance import accept_store
from backend.store.integrity.acknowledged import ACKNOWLEDGED, MARK, Acknowledged, _line
from backend.store.integrity.copies import COPIES
from backend.store.lock import FolderLock
from tests.backend.store.killable import KillableUsers
from tests.command_line import Run, program

RUNS = [f"r{number}" for number in range(12)]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return program(tmp_path, monkeypatch, capsys)


@pytest.fixture(scope="module")
def users() -> Iterator[KillableUsers]:
    with KillableUsers() as started:
        yield started


@pytest.fixture(scope="module", params=["closed", "killed", "killed after tables"])
def written(
    request: pytest.FixtureRequest, users: KillableUsers, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[str]]:
    """A store and its runs: small values and some above 4 KB, which the engine keeps apart."""
    folder = tmp_path_factory.mktemp("written") / "store"
    if request.param == "killed after tables":
        users.use("write", folder, runs=["early0", "early1"], size=6_000)
    users.use("write", folder, runs=RUNS[:8], size=200, die=request.param != "closed")
    users.use("write", folder, runs=RUNS[8:], size=6_000, die=request.param != "closed")
    return folder, [*RUNS, *(["early0", "early1"] if request.param == "killed after tables" else [])]


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "db").rglob("*") if path.is_file() and path.name not in ("LOCK", MARK))


def damage(path: Path, chance: random.Random) -> str:
    """Flip a bit of a file, cut it or remove it; says which."""
    content = bytearray(path.read_bytes())
    kind = chance.choices(["flip", "cut", "remove"], [6, 3, 1])[0]
    if kind == "remove":
        path.unlink()
    elif kind == "cut":
        path.write_bytes(content[: chance.randrange(len(content))])
    else:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(content)
    return kind


def check_damage(users: KillableUsers, written: tuple[Path, list[str]], times: int, work: Path) -> tuple[int, int]:
    """No damage leaves less than was acknowledged without an error. Returns how many did no harm, and how many were
    refused. Each file is as likely as any."""
    folder, runs = written
    chance = random.Random(str(times))
    harmless = refused = 0
    for _ in range(times):
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(folder, work)
        path = chance.choice(files_of(work))
        kind = damage(path, chance)
        said = users.use("look", work)
        if any("refused" in document for document in said):
            refused += 1
            continue
        assert sorted(d["run"] for d in said) == sorted(runs) and all(d["whole"] for d in said), (kind, path, said)
        harmless += 1
    return harmless, refused


def test_damage_is_never_silent(users: KillableUsers, written: tuple[Path, list[str]], tmp_path: Path) -> None:
    harmless, refused = check_damage(users, written, 20, tmp_path / "work")
    assert refused > harmless


@pytest.mark.slow
def test_a_thousand_times_damage_is_never_silent(
    users: KillableUsers, written: tuple[Path, list[str]], tmp_path: Path
) -> None:
    harmless, refused = check_damage(users, written, 334, tmp_path / "work")
    print(f"{harmless} harmless, {refused} refused")
    assert refused > harmless


@pytest.mark.parametrize("end", [bytes(500), b"\x07garbage" * 9, bytes(range(200, 250))])
def test_a_kill_while_a_store_is_made_is_no_obstacle(end: bytes, users: KillableUsers, tmp_path: Path) -> None:
    """Nothing was acknowledged, so whatever its log holds is nobody's."""
    folder = tmp_path / "store"
    assert users.use("make", folder) == [{"killed": True}]
    (log,) = (folder / "db" / "wal").glob("*.wal")
    log.write_bytes(end)
    assert users.use("write", folder, runs=["r"], size=10) == [{"acknowledged": "r"}]
    assert [document["run"] for document in users.use("look", folder)] == ["r"]


def check_no_false_alarm(users: KillableUsers, folder: Path, steps: int, seed: int) -> int:
    """A random sequence of writing, deleting, compacting and looking, half of them killed at any moment. Some of these
    leave a log that ends badly. Returns how many were killed."""
    chance = random.Random(seed)
    kept: set[str] = set()  # acknowledged, and not about to be deleted
    unsure: set[str] = set()
    killed = 0
    for step in range(steps):
        seconds = chance.choice([0.0, 10 ** chance.uniform(-2.0, -0.3)])
        what = chance.choices(["write", "delete", "compact", "look"], [6, 2, 1, 2])[0]
        if what == "write":
            names = [f"s{step}-{number}" for number in range(chance.randrange(1, 12))]
            unsure.update(names)
            said = users.use(what, folder, seconds, runs=names, size=chance.choice([10, 300, 5_000, 200_000]))
        elif what == "delete":
            said = users.use(what, folder, seconds, runs=chance.sample(sorted(kept), min(3, len(kept))))
        else:
            said = users.use(what, folder, seconds) if (folder / "db").exists() else []
        if any("killed" in document for document in said):
            killed += 1
            for log in (folder / "db" / "wal").glob("*.wal") if chance.random() < 0.4 else ():
                with log.open("ab") as file:
                    file.write(chance.choice([bytes(500), chance.randbytes(50), b"\x07garbage" * 9]))
        assert not [
            d
            for d in said
            if "refused" in d or "failed" in d or (d.get("whole"), d.get("status")) == (False, "finished")
        ], (step, what, said)
        for document in said:
            kept |= {document["acknowledged"]} if "acknowledged" in document else set()
            kept -= {document.get("deleting")}
            unsure |= {document["deleting"]} if "deleting" in document else set()
        if what == "look" and (not seconds or not any("killed" in document for document in said)):
            found = {document["run"] for document in said}
            assert kept <= found <= kept | unsure, (step, kept - found)
    found = {document.get("run") for document in users.use("look", folder)}
    assert kept <= found, kept - found
    return killed


def test_no_false_alarm_whenever_it_is_killed(users: KillableUsers, tmp_path: Path) -> None:
    assert check_no_false_alarm(users, tmp_path / "store", 10, seed=1) > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
def test_no_false_alarm_in_long_sequences(users: KillableUsers, tmp_path: Path, seed: int) -> None:
    print(f"{check_no_false_alarm(users, tmp_path / 'store', 100, seed)} of 100 were killed")


def fresh(folder: Path, count: int = 3) -> None:
    with Store.open(folder) as store:
        for number in range(count):
            store.add_run(RunRecord(f"r{number}", "train", 1, "hash", number, {}, status="finished"))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def table(folder: Path) -> Path:
    return next((folder / "db" / "sstables").iterdir())


def test_a_damaged_store_is_refused_by_commands_and_unchanged_until_it_is_accepted(
    users: KillableUsers, tmp_path: Path, command: Run
) -> None:
    folder = tmp_path / "store"
    users.use("write", folder, runs=RUNS, size=200, die=True)
    flip(next((folder / "db" / "wal").iterdir()))
    before = {path: path.read_bytes() for path in files_of(folder)}
    for arguments in (("runs",), ("store", "check"), ("store", "backup", tmp_path / "copy"), ("store", "compact")):
        refused = command(*arguments, "--store", folder)
        assert refused.code != 0
        assert "is damaged" in refused.err and f"store accept {folder}" in refused.err
    assert {path: path.read_bytes() for path in files_of(folder)} == before
    accepted = command("store", "accept", folder)
    assert accepted.code == 0, accepted.err
    assert "is taken as it is" in accepted.out
    (copy,) = folder.glob("damaged-*")
    for path, content in before.items():
        assert (copy / path.relative_to(folder / "db")).read_bytes() == content
    assert command("runs", "--store", folder).code == 0
    again = command("store", "accept", folder)
    assert again.code == 0 and "nothing to accept" in again.out
    assert len(list(folder.glob("damaged-*"))) == 1


def test_a_store_of_a_former_version_is_noted_from_its_next_opening(tmp_path: Path) -> None:
    fresh(tmp_path)
    for name in (ACKNOWLEDGED, MARK):
        (tmp_path / "db" / name).unlink()
    with Store.open(tmp_path) as store:
        assert len(store.runs()) == 3
    assert (tmp_path / "db" / ACKNOWLEDGED).exists()
    (tmp_path / "db" / ACKNOWLEDGED).unlink()
    with pytest.raises(StoreError, match="acknowledged is missing"):
        Store.open(tmp_path)


def test_a_database_is_copied_before_the_engine_may_cut_its_log(users: KillableUsers, tmp_path: Path) -> None:
    """The copy is whole: put in the place of the database it is the store as it was, of which nothing is missing."""
    for name in "abcd":
        users.use("write", tmp_path, runs=[name], size=6_000, die=True)
        with next((tmp_path / "db" / "wal").iterdir()).open("ab") as log:
            log.write(b"what a killed process had not finished")
    users.use("look", tmp_path)
    copies = sorted((tmp_path / COPIES).iterdir())
    assert len(copies) == 2
    for copy in copies:
        assert next((copy / "wal").iterdir()).read_bytes().endswith(b"not finished")
    for copy, runs in zip(copies, ("abc", "abcd"), strict=True):
        shutil.rmtree(tmp_path / "db")
        os.rename(copy, tmp_path / "db")
        said = users.use("look", tmp_path)
        assert {(d["run"], d["whole"]) for d in said} == {(run, True) for run in runs}, said


def test_an_unfinished_manifest_of_a_killed_engine_is_no_damage(users: KillableUsers, tmp_path: Path) -> None:
    """Also where a former version has written down that it is there."""
    folder = tmp_path / "store"
    users.use("write", folder, runs=RUNS[:2], size=200)
    unfinished = folder / "db" / "manifest" / ".tmp_1795523944222196828_16290122219472444495"
    unfinished.write_bytes(b"half of a manifest")
    users.use("write", folder, runs=RUNS[2:4], size=200)
    acknowledged = folder / "db" / ACKNOWLEDGED
    assert unfinished.name not in acknowledged.read_text()
    *lines, last = acknowledged.read_bytes().splitlines()
    line = json.loads(last.rpartition(b" ")[0])
    line["files"][f"manifest/{unfinished.name}"] = (18, zlib.crc32(b"half of a manifest"))
    acknowledged.write_bytes(b"".join(kept + b"\n" for kept in lines) + _line(line))
    assert [(look["run"], look["whole"]) for look in users.use("look", folder)] == [(run, True) for run in RUNS[:4]]


@pytest.mark.parametrize("tail", ["zeros", "garbage", "a part of a record", "a full disk"])
def test_what_is_written_behind_a_log_that_ends_badly_is_kept(users: KillableUsers, tmp_path: Path, tail: str) -> None:
    """The engine cuts such an end when it opens, and wrote on to a file that was no longer there."""
    kept = []
    for number in range(3):
        kept += [f"r{number}", f"s{number}"]
        said = users.use("write", tmp_path, runs=kept[-2:], size=300, die=True, full=tail == "a full disk")
        assert [d.get("acknowledged") for d in said[:2]] == kept[-2:], said
        (log,) = (tmp_path / "db" / "wal").iterdir()
        content = log.read_bytes()
        ends = {"zeros": bytes(500), "garbage": b"\x07garbage" * 9, "a part of a record": content[:40]}
        log.write_bytes(content + ends.get(tail, b""))
    said = users.use("look", tmp_path)
    assert set(kept) <= {d.get("run") for d in said} and all(d["whole"] for d in said if d["run"] in kept), said


def killed_within_a_write(users: KillableUsers, folder: Path) -> Path:
    """A store of which a log holds more than was acknowledged; returns that log."""
    users.use("write", folder, runs=RUNS[:4], size=200, die=True)
    (log,) = (folder / "db" / "wal").iterdir()
    with log.open("ab") as file:
        file.write(b"what a killed process had not finished")
    return log


def test_what_the_engine_cuts_when_it_opens_is_refused_from_then_on(
    users: KillableUsers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Run
) -> None:
    """Whatever its reason: all was there before. The refusal names the copy, and that is whole."""
    folder = tmp_path / "store"
    log = killed_within_a_write(users, folder)

    def cutting(url: str, on_answer: OnAnswer | None = None) -> StoreEngine:
        log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])
        return StoreEngine(url, on_answer)

    with monkeypatch.context() as patched:
        patched.setattr(holding, "StoreEngine", cutting)
        with pytest.raises(StoreError, match="cut what was acknowledged when it opened it"):
            Store.open(folder)
    (copy,) = (folder / COPIES).iterdir()
    refused = command("runs", "--store", folder)
    assert refused.code == 2 and "cut what was acknowledged" in refused.err
    assert f"it is in {copy}: to go back to that, move {folder / 'db'} away and put it there" in refused.err
    os.rename(folder / "db", folder / "away")
    os.rename(copy, folder / "db")
    assert {d["run"] for d in users.use("look", folder)} == set(RUNS[:4])
    shutil.rmtree(folder / "db")
    os.rename(folder / "away", folder / "db")
    accepted = command("store", "accept", folder)
    assert accepted.code == 0 and "is taken as it is" in accepted.out
    assert command("runs", "--store", folder).code == 0


def test_a_manifest_that_was_changed_after_the_last_line_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The engine closed, so all is in its tables and the manifest lists them; then a kill, or a full disk, left no line.
    fresh(tmp_path / "s")
    with monkeypatch.context() as killed:
        killed.setattr(Acknowledged, "end", Acknowledged.abandon)
        with Store.open(tmp_path / "s") as store:
            store.add_run(RunRecord("later", "backtest", 1, "h", 7, {}, status="finished"))
    for _ in range(2):  # and what the first of them notes of the manifest is right
        with Store.open(tmp_path / "s") as store:
            assert store.verify_files()
            assert "later" in {run.run for run in store.runs()}


@contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """What a full disk is to one who writes more. Python ignores the signal and gets the error."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_while_a_store_is_copied_changes_nothing(users: KillableUsers, tmp_path: Path) -> None:
    log = killed_within_a_write(users, tmp_path)
    before = {path: path.read_bytes() for path in files_of(tmp_path)}
    for _ in range(2):
        with no_file_longer_than(1_000), pytest.raises(StoreError, match=r"File too large.*free some space"):
            Store.open(tmp_path)
        assert list((tmp_path / COPIES).iterdir()) == []
        assert {path: path.read_bytes() for path in files_of(tmp_path)} == before
    flip(log)
    before[log] = log.read_bytes()
    for _ in range(2):
        with no_file_longer_than(1_000), pytest.raises(StoreError, match=r"File too large.*free some space"):
            accept_store(tmp_path)
        assert [path.name for path in tmp_path.glob("*damaged*")] == []
        assert {path: path.read_bytes() for path in files_of(tmp_path)} == before
    with pytest.raises(StoreError, match="is damaged"):
        Store.open(tmp_path)
    held = FolderLock(tmp_path)
    with pytest.raises(StoreError, match=r"in use by .*: end that one first"):
        accept_store(tmp_path)
    held.release()
    assert accept_store(tmp_path) is not None
    Store.open(tmp_path).close()


def test_what_was_acknowledged_moves_with_its_database(tmp_path: Path) -> None:
    """As compaction and conversion exchange databases, and as people copy folders and go back to a former one."""
    for number, folder in enumerate((tmp_path / "s", tmp_path / "s" / WORKPLACE)):
        fresh(folder, 2 + number)
    mark_ready(tmp_path / "s", "db-former")
    with Store.open(tmp_path / "s") as store:
        assert len(store.runs()) == 3
    os.rename(tmp_path / "s" / "db", tmp_path / "s" / "db-newer")
    os.rename(tmp_path / "s" / "db-former", tmp_path / "s" / "db")
    shutil.copytree(tmp_path / "s", tmp_path / "copied")
    for folder in (tmp_path / "s", tmp_path / "copied"):
        with Store.open(folder) as store:
            assert len(store.runs()) == 2
        flip(table(folder))
        with pytest.raises(StoreError, match="is damaged"):
            Store.open(folder)
    shutil.rmtree(tmp_path / "s" / "db")
    os.rename(tmp_path / "s" / "db-newer", tmp_path / "s" / "db")
    with Store.open(tmp_path / "s") as store:
        assert len(store.runs()) == 3 and store.verify_files()


def test_what_cannot_be_noted_is_not_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(tmp_path) as store:
        store.add_run(RunRecord("first", "train", 1, "hash", 1, {}, status="finished"))
        write = os.write

        def full(descriptor: int, content: bytes) -> int:
            if os.readlink(f"/proc/self/fd/{descriptor}").endswith(f"/{ACKNOWLEDGED}"):
                if len(content) > 9:
                    return write(descriptor, content[:9])
                raise OSError(28, "No space left on device")
            return write(descriptor, content)

        with monkeypatch.context() as patched:
            patched.setattr(os, "write", full)
            with pytest.raises(StoreError, match="Free some space"):
                store.add_run(RunRecord("second", "train", 1, "hash", 2, {}, status="finished"))
        store.add_run(RunRecord("third", "train", 1, "hash", 3, {}, status="finished"))
    with Store.open(tmp_path) as store:
        assert {"first", "third"} <= {record.run for record in store.runs()}


def test_store_check_compares_every_byte_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Run
) -> None:
    """An opening reads only a part again."""
    fresh(tmp_path)
    monkeypatch.setattr("backend.store.integrity.acknowledged._READ_AT_OPENING", 0)
    assert command("store", "check", "--store", tmp_path).code == 0
    with Store.open(tmp_path) as store:
        assert store.verify_files()
        flip_at_rest = table(tmp_path)
        noted = flip_at_rest.stat()
        flip(flip_at_rest)
        os.utime(flip_at_rest, ns=(noted.st_atime_ns, noted.st_mtime_ns))  # as a fault of the disk leaves it
        with pytest.raises(StoreError, match="are not what was acknowledged"):
            store.verify_files()
