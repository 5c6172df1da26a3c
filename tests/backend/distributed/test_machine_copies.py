"""Weights travel to a machine once, however many processes of the run it has."""

from __future__ import annotations

import fcntl
import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from backend.distributed.files import machine_copies
from backend.distributed.files.machine_copies import MachineCopies
from backend.distributed.files.run_files import CarriedFiles, Library
from backend.distributed.files.store_files import StoreFiles
from backend.store.records import RunRecord
from backend.store.sharing.objects import file_sha256
from backend.store.store import Store
from simulator.errors import RunFailed

RUN = "r"
ROLES = ("manager", "trader")
WORKERS = 6


def published(folder: Path, role: str, step: int) -> str:
    """Write a role's weights for a step into a run's folder; their name."""
    path = folder / "services" / role / "published" / f"step-{step:06d}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(f"{role} {step} ".encode() * 300_000)  # more than one piece
    return path.relative_to(folder).as_posix()


def test_a_store_gives_each_file_once_to_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All workers want the weights of all roles at once, step after step."""
    given: Counter[str] = Counter()
    home = tmp_path / "trainer"
    with Store.open(tmp_path / "store") as store:
        store.add_run(RunRecord(RUN, "train", 1, "hash", 1, {}))
        read = type(store.objects).read

        def counted(self: Any, run: str, part: str, checksum: str, offset: int) -> bytes:
            given[checksum] += not offset
            return read(self, run, part, checksum, offset)

        monkeypatch.setattr(type(store.objects), "read", counted)
        trainer = StoreFiles(home, store, RUN)
        workers = [
            StoreFiles(tmp_path / "run" / "processes" / f"rollout-{number}", store, RUN, tmp_path / "run" / "copies")
            for number in range(WORKERS)
        ]
        checksums = set[str]()
        for step in range(6):
            names = [published(home, role, step) for role in ROLES]
            for role in ROLES:
                trainer.keep(f"services/{role}")
            wrong: list[str] = []

            def take(files: StoreFiles, names: list[str] = names, wrong: list[str] = wrong) -> None:
                for name in names:
                    there = files.fetch(name, file_sha256(home / name))
                    if there != files.folder / name or there.read_bytes() != (home / name).read_bytes():
                        wrong.append(name)

            threads = [threading.Thread(target=take, args=(files,)) for files in workers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not wrong
            checksums |= {file_sha256(home / name) for name in names}
        assert given == dict.fromkeys(checksums, 1), "some weights travelled more than once"
        left = list((tmp_path / "run" / "copies").glob("*.safetensors"))
        assert len(left) <= machine_copies._KEPT + len(ROLES), "copies pile up"
        for files in workers:
            files.remove()
        assert not list((tmp_path / "run" / "copies").glob("*.safetensors"))


class Copies:
    """Two processes of one machine and the folder from which files come; `cut` breaks the wire off."""

    def __init__(self, top: Path) -> None:
        self.home, self.shared = top / "home", top / "copies"
        self.reads, self.cut = 0, False
        self.name = published(self.home, "trader", 1)
        self.checksum = file_sha256(self.home / self.name)
        library = Library(self.home, self.home / "nano")

        def call(method: str, *arguments: Any) -> Any:
            self.reads += method == "read" and not arguments[1]
            if self.cut and method == "read" and arguments[1]:
                raise ConnectionError("the wire is cut")
            return getattr(library, method)(*arguments)

        self.first, self.second = (CarriedFiles(top / one, call, self.shared) for one in ("a", "b"))

    def fetch(self, files: CarriedFiles) -> bytes:
        return files.fetch(self.name, self.checksum).read_bytes()

    @property
    def whole(self) -> bytes:
        return (self.home / self.name).read_bytes()


def test_one_that_dies_on_the_way_leaves_nothing_that_others_take(tmp_path: Path) -> None:
    copies = Copies(tmp_path)
    copies.cut = True
    with pytest.raises(ConnectionError):
        copies.fetch(copies.first)
    assert not [path for path in copies.shared.glob("*") if path.name != "lock"]
    (copies.shared / "0123.arriving").write_bytes(b"half, of one that was killed")
    copies.cut = False
    assert copies.fetch(copies.second) == copies.fetch(copies.first) == copies.whole
    assert copies.reads == 2
    os.utime(copies.shared / "0123.arriving", (0, 0))
    MachineCopies(copies.shared).forget()
    assert not (copies.shared / "0123.arriving").exists()
    assert copies.fetch(copies.first) == copies.whole, "a copy that somebody has was removed"


def test_a_damaged_copy_travels_again(tmp_path: Path) -> None:
    copies = Copies(tmp_path)
    copies.fetch(copies.first)
    [kept] = copies.shared.glob("*.safetensors")
    kept.unlink()
    kept.write_bytes(b"damaged")
    assert copies.fetch(copies.second) == copies.whole and copies.reads == 2
    assert kept.read_bytes() == copies.whole == copies.fetch(copies.first)


def test_one_that_is_stopped_in_its_turn_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_copies, "_PATIENCE", 0.2)
    copies = Copies(tmp_path)
    copies.shared.mkdir()
    with (copies.shared / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert copies.fetch(copies.first) == copies.whole


def test_without_links_each_process_has_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError("this file system has no links")

    monkeypatch.setattr(machine_copies.os, "link", refuse)
    copies = Copies(tmp_path)
    assert copies.fetch(copies.first) == copies.fetch(copies.second) == copies.whole
    assert copies.reads == 1


@pytest.mark.parametrize("checksum", ["../../escape", "", "A" * 64])
def test_a_record_names_no_file_of_its_choice(checksum: str, tmp_path: Path) -> None:
    copies = Copies(tmp_path)
    with pytest.raises(RunFailed, match="has no SHA-256"):
        copies.first.fetch(copies.name, checksum)
    assert not copies.reads


def test_what_is_no_safetensors_file_is_not_shared(tmp_path: Path) -> None:
    copies = Copies(tmp_path)
    (copies.home / "services" / "trader" / "state.json").write_text("{}")
    for files in (copies.first, copies.second):
        files.restore_file("services/trader/state.json")
        assert (files.folder / "services" / "trader" / "state.json").read_text() == "{}"
    assert not copies.shared.exists() and copies.reads == 2
