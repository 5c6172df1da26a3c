"""Temporary folders: gone with their process, and a clear word where there can be none."""

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from backend.errors import message_and_code
from backend.policies.temporary import temporary_folder
from simulator.errors import RunFailed

ROOT = Path(__file__).parents[3]
PROGRAM = """
import sys
from backend.policies.temporary import temporary_folder
folder = temporary_folder("test", keep=sys.argv[1] == "keep")
(folder / "weights").write_bytes(b"1")
print(folder)
"""


@pytest.mark.parametrize("keep", [True, False])
def test_a_folder_is_removed_with_its_process_unless_it_is_kept(keep: bool, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "keep" if keep else "remove"],
        cwd=ROOT, env={"TMPDIR": str(tmp_path), "PATH": "/usr/bin"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert Path(done.stdout.strip()).parent == tmp_path
    files = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert files == ({"weights"} if keep else set())
    assert len(list(tmp_path.iterdir())) == keep


def test_nobody_else_reads_it() -> None:
    assert stat.S_IMODE(temporary_folder("test").stat().st_mode) == 0o700


@pytest.mark.parametrize("full", [True, False])
def test_a_full_or_missing_place_is_one_message(full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "there"))

    def no_room(path: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def no_place(prefix: str, dir: str) -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    if full:
        monkeypatch.setattr(Path, "write_bytes", no_room)
    else:
        monkeypatch.setattr("tempfile.mkdtemp", no_place)
    with pytest.raises(RunFailed, match="set TMPDIR") as failed:
        temporary_folder("test")
    known = message_and_code(failed.value)
    assert known is not None and known[1] == 1 and str(tmp_path / "there") in known[0]


def test_what_a_killed_process_left_is_removed_after_a_month(tmp_path: Path) -> None:
    old, new, foreign = (tmp_path / name for name in ("cs-test-old", "cs-test-new", "other-old"))
    link = tmp_path / "cs-test-link"
    for folder in (old, new, foreign):
        folder.mkdir()
    link.symlink_to(foreign)
    for folder in (old, foreign):
        os.utime(folder, (1.0, 1.0))
    made = temporary_folder("test", prefix="cs-", inside=lambda: str(tmp_path))
    assert sorted(tmp_path.iterdir()) == sorted([new, foreign, link, made])
