"""The page of paper sessions in a real browser: a session in a process of its own, watched and killed from there."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from backend.paper.sessions import paper_status
from backend.paper.switch import KILL_FILE, process_of
from tests.ui.browsing import PATIENCE, ROOT, needs_chromium, served, watched

SESSION = "paper-watched"
pytestmark = [pytest.mark.slow, needs_chromium]


def test_a_session_is_watched_and_killed_from_the_page(browser: Browser, tmp_path: Path) -> None:
    """It plays recorded bars an hour a second, so that it lasts while one looks."""
    command = [
        sys.executable, "-m", "backend.cli", "paper", "run", "--session", SESSION, "--data",
        str(ROOT / "data" / "synthetic"),
        "--timeframe", "4h", "--symbols", "AAAUSDT,BBBUSDT", "--start", "2021-05-01", "--decide-every", "1",
        "--set", "paper.speed=14400", "--set", "paper.history_bars=130",
        "--store", str(tmp_path / "store"),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment)
    session, folder = SESSION, tmp_path / "runs" / SESSION
    begun = time.monotonic() + PATIENCE / 1000
    while process_of(folder) is None and time.monotonic() < begun:
        time.sleep(0.2)
    with served(tmp_path) as url:
        page, faults = watched(browser, 1366, url)
        page.goto(f"{url}/paper?session={session}")
        expect(page.get_by_text("is running")).to_be_visible(timeout=2 * PATIENCE)
        expect(page.locator(".js-plotly-plot .scatterlayer .trace").first).to_be_visible(timeout=2 * PATIENCE)
        page.get_by_role("tab", name="Decisions").first.click()
        expect(page.get_by_text("DeepTraderManager").first).to_be_visible(timeout=PATIENCE)
        page.get_by_role("button", name="Kill").first.click()
        now = page.get_by_role("button", name="Close everything now")
        expect(now).to_be_visible(timeout=PATIENCE)
        assert not (folder / KILL_FILE).exists(), "a click that opens the question kills nothing"
        now.click()
        expect(page.get_by_text("The kill switch is set")).to_be_visible(timeout=PATIENCE)
        assert (folder / KILL_FILE).read_text() == "flatten"
        deadline = time.monotonic() + PATIENCE / 1000
        assert process.wait(max(0.0, deadline - time.monotonic())) == 0 and process_of(folder) is None, "it has ended"
        expect(page.get_by_text("is interrupted")).to_be_visible(timeout=2 * PATIENCE)
        assert not faults
    _, outcome = paper_status(session, tmp_path / "store", tmp_path / "runs")
    assert not any(outcome.positions.values())
