"""Files that are whole or as they were, wherever the writer is killed or the disk is full."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulator.files import write_whole

ROOT = Path(__file__).parents[2]
# Writes long texts of one letter, each at once, until it is killed.
WRITER = """
import itertools, sys
from pathlib import Path
from simulator.files import write_whole
for letter in itertools.cycle("abcdefgh"):
    write_whole(Path(sys.argv[1]), letter * 300_000)
    print(letter, flush=True)
"""


def test_a_killed_writer_leaves_one_whole_text(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    for turns in range(3):
        process = subprocess.Popen([sys.executable, "-c", WRITER, path], cwd=ROOT, stdout=subprocess.PIPE)
        assert process.stdout is not None
        for _ in range(1 + turns):
            process.stdout.readline()
        process.kill()
        process.communicate()
        text = path.read_text()
        assert len(text) == 300_000 and len({*text}) == 1


def test_a_full_disk_leaves_the_former_text_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.html"
    write_whole(path, "former")
    real = Path.write_text

    def no_room(self: Path, text: str, encoding: str | None = None) -> int:
        real(self, text[: len(text) // 2], encoding)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", no_room)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, "new")
    assert path.read_text() == "former"
    assert [one.name for one in tmp_path.iterdir()] == ["report.html"]


def test_an_interrupt_leaves_the_former_text_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "team.json"
    write_whole(path, "former")

    def interrupted(source: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, "new")
    assert [one.name for one in tmp_path.iterdir()] == ["team.json"]
    assert path.read_text() == "former"
