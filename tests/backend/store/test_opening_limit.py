"""An engine that hangs while it opens a database ends its process with a sentence, and one that opens is left alone."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from backend.store import Store
from backend.store.gateway.engine import ended_after
from tests.backend.store.synthetic import add_training

# Sleeps as the engine hangs: `PyDLL` keeps the interpreter's lock.
HUNG = """
import ctypes, sys
from backend.store import Store
from backend.store.gateway import engine

class Hung:
    def __init__(self, url):
        ctypes.PyDLL(None).sleep(60)

engine.SyncEmbeddedDB = Hung
engine.HUNG_SECONDS = 0.2
Store.open(sys.argv[1])
"""


def test_an_opening_that_hangs_ends_with_a_sentence_and_leaves_the_store_as_it_is(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s") as store:
        add_training(store, "kept")
    assert [*(tmp_path / "s" / "db" / "sstables").iterdir()]
    command = [sys.executable, "-c", HUNG, str(tmp_path / "s")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert ended.returncode == -signal.SIGKILL
    assert "did not open within 0.2 s" in ended.stderr and "nothing that was stored is lost" in ended.stderr
    assert "Traceback" not in ended.stderr
    with Store.open(tmp_path / "s") as store:
        assert [run.run for run in store.runs()] == ["kept"]


def test_an_opening_that_ends_is_left_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with ended_after(0.3, tmp_path):
        pass
    time.sleep(0.6)  # this process would have been ended by now
    assert capfd.readouterr().err == ""
