"""Files of a run that travel: they arrive whole or not at all, and only those that are meant to."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.distributed.files import run_files
from backend.distributed.files.run_files import CarriedFiles, Library
from backend.store.sharing.objects import file_sha256
from simulator.errors import RunFailed, UserError

PART = "services/trader"
NAMES = (
    "last_metrics.json",
    "checkpoints/step-000001/state.json",
    "checkpoints/step-000001/a.safetensors",
    "published/b.json",
)
CONTENT = st.dictionaries(st.sampled_from(NAMES), st.binary(max_size=40))


class Wire:
    """Calls of a library as an actor would take them, which break off after so many."""

    def __init__(self, library: Library, calls: int = 10**6) -> None:
        self.library, self.left = library, calls
        self.read = 0

    def __call__(self, method: str, *arguments: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise ConnectionError("the wire is cut")
        self.read += method == "read"
        return getattr(self.library, method)(*arguments)


def write(top: Path, content: dict[str, bytes]) -> None:
    for name, held in content.items():
        (top / PART / name).parent.mkdir(parents=True, exist_ok=True)
        (top / PART / name).write_bytes(held)


def held(top: Path) -> dict[str, bytes]:
    part = top / PART
    paths = [path for path in part.rglob("*") if path.is_file() and path.suffix != ".arriving"]
    return {path.relative_to(part).as_posix(): path.read_bytes() for path in paths}


@given(first=CONTENT, second=CONTENT, calls=st.integers(0, 30), piece=st.integers(1, 50))
def test_what_was_kept_is_restored_elsewhere(
    first: dict[str, bytes], second: dict[str, bytes], calls: int, piece: int
) -> None:
    """Also after the wire was cut at any point; until then no file is half of one, and no checkpoint lacks a part."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_files, "_PIECE", piece)
        home, mine, other = (Path(name) / one for one in ("home", "mine", "other"))
        for folder in (home, mine, other):
            folder.mkdir()
        library = Library(home, home / "nano")
        write(mine, first)
        CarriedFiles(mine, Wire(library)).keep(PART)
        assert held(home) == first
        for path in (mine / PART).rglob("*.*"):
            if path.is_file():
                path.unlink()
        write(mine, second)
        try:
            CarriedFiles(mine, Wire(library, calls)).keep(PART)
        except ConnectionError:
            there = held(home)
            assert all(there[key] in (first.get(key), second.get(key)) for key in there)
            if second.get(NAMES[1]) != first.get(NAMES[1]) and there.get(NAMES[1]) == second.get(NAMES[1]):
                assert second.get(NAMES[2]) in (None, there.get(NAMES[2])), "a checkpoint that is not whole"
        CarriedFiles(mine, Wire(library)).keep(PART)
        write(other, first)
        CarriedFiles(other, Wire(library)).restore(PART)
        assert held(home) == held(other) == second


def library_of(tmp_path: Path) -> tuple[Library, Path]:
    home = tmp_path / "home"
    (home / PART / "published").mkdir(parents=True)
    (tmp_path / "base").mkdir()
    return Library(home, tmp_path / "base"), home


def test_a_file_is_what_its_record_tells_or_refused(tmp_path: Path) -> None:
    library, home = library_of(tmp_path)
    sent = home / PART / "published" / "step-000002.safetensors"
    sent.write_bytes(b"weights" * 100)
    name, checksum = f"{PART}/published/{sent.name}", file_sha256(sent)
    wire = Wire(library)
    mine = CarriedFiles(tmp_path / "mine", wire)
    old = tmp_path / "mine" / PART / "published" / "step-000001.safetensors"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"old")
    assert mine.fetch(name, checksum).read_bytes() == sent.read_bytes()
    assert not old.exists(), "copies pile up"
    read = wire.read
    mine.fetch(name, checksum)
    assert wire.read == read, "it travelled twice"
    sent.write_bytes(b"weights" * 99)
    (tmp_path / "mine" / name).write_bytes(b"damaged")
    with pytest.raises(RunFailed, match="cut short or changed"):
        mine.fetch(name, checksum)
    assert (tmp_path / "mine" / name).read_bytes() == b"damaged", "half a file took the place of another"


def test_the_base_model_travels_once(tmp_path: Path) -> None:
    library, _ = library_of(tmp_path)
    (tmp_path / "base" / "model.safetensors").write_bytes(b"m" * 1000)
    wire = Wire(library)
    mine = CarriedFiles(tmp_path / "mine", wire)
    config: Any = None  # where the base lies is the library's concern
    assert (mine.base(config) / "model.safetensors").read_bytes() == b"m" * 1000
    read = wire.read
    mine.base(config)
    assert wire.read == read


@pytest.mark.parametrize("name", ["team.json", "services/../team.json", "/etc/hostname", "base/../home/team.json", ""])
def test_a_library_gives_and_takes_nothing_else(name: str, tmp_path: Path) -> None:
    library, home = library_of(tmp_path)
    (home / "team.json").write_text("{}")
    with pytest.raises(UserError, match="is no file"):
        library.read(name, 0)
    with pytest.raises(UserError, match="is no file"):
        library.write(name, 0, b"")


def test_nobody_writes_the_base_model(tmp_path: Path) -> None:
    library, _ = library_of(tmp_path)
    for change in (lambda: library.write("base/model", 0, b""), lambda: library.prune("base", [])):
        with pytest.raises(UserError, match="is no file that a process of a run writes"):
            change()
