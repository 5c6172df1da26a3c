"""What tests of the pages share: a browser, and a working folder with its queue."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from backend.jobs import queue as jobs_queue
from backend.jobs.files import STATE
from backend.jobs.queue import JobQueue
from simulator.data.archive import write_market
from tests.stored_runs import small_market
from tests.ui.browsing import CHROMIUM

LIVES = 7  # number of a process that a test gives to a job


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """A browser whose pages are closed with the test: one that is left open calls for its server for ever."""
    yield chromium
    for context in list(chromium.contexts):
        context.close()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a small sample of data and an empty store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CRYPTOSENTINEL_STORE", str(tmp_path / "store"))
    write_market(small_market(), tmp_path / "data" / "synthetic")
    return tmp_path


@pytest.fixture
def queue(here: Path, monkeypatch: pytest.MonkeyPatch) -> JobQueue:
    """The jobs of the page; no process is started for them."""
    monkeypatch.setattr(jobs_queue, "start_detached", lambda *given: None)
    monkeypatch.setattr(
        jobs_queue,
        "is_alive",
        lambda path: (path / STATE).exists() and json.loads((path / STATE).read_text())["pid"] == LIVES,
    )
    return JobQueue(here / "runs")
