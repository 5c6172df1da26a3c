"""What a strategy reads beside its market is noticed, and nothing else is."""

from __future__ import annotations

import socket
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from simulator.checks.outside_reads import outside_reads, reads_note


def test_files_databases_connections_and_programs_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("1")
    elsewhere = tmp_path.parent / "b.csv"
    elsewhere.write_text("1")
    Path("c.db").touch()
    with outside_reads() as reads:
        Path("a.csv").read_text()
        assert not Path("missing.csv").exists()
        with elsewhere.open("r+b"):
            pass
        sqlite3.connect("c.db").close()
        subprocess.run([sys.executable, "-c", ""], check=True)
        with socket.socket() as one, pytest.raises(ConnectionRefusedError):
            one.connect(("127.0.0.1", 1))
    assert reads == {"a.csv", str(elsewhere), "c.db", "from 127.0.0.1", f"what {Path(sys.executable).name} answers"}
    note = reads_note(reads)
    assert note is not None and " and 2 more" in note and "the same in all runs" in note


def test_what_is_written_what_is_code_and_what_others_read_is_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("1")
    Path("own.py").write_text("VALUE = 1")
    other = threading.Thread(target=Path("a.csv").read_text)
    with outside_reads() as reads:
        Path("out.txt").write_text("1")
        Path("own.py").read_text()
        Path(subprocess.__file__).read_bytes()
        other.start()
        other.join()
    Path("a.csv").read_text()  # it is over
    assert reads == set() and reads_note(reads) is None


def test_what_is_read_inside_is_read_outside_too(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1")
    with outside_reads() as outer, outside_reads() as inner:
        (tmp_path / "a.csv").read_text()
    assert inner == outer == {str(tmp_path / "a.csv")}
