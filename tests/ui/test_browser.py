"""The page and the report as a real browser shows them, without any request that leaves this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, expect

from backend.jobs.queue import JobQueue
from backend.store.store import Store
from simulator.data.archive import write_market
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.hostile_runs import RUN, hostile_store
from tests.stored_runs import SYMBOLS, add_backtest_run, add_demo_run
from tests.ui.browsing import PATIENCE, ROOT, go_to, needs_chromium, served, watched

pytestmark = [pytest.mark.slow, needs_chromium]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A page server on localhost whose store holds a backtest and a demo."""
    folder = tmp_path_factory.mktemp("page")
    with Store.open(folder / "store") as store:
        add_demo_run(store, "demo-1")
        add_backtest_run(store, "backtest-1")
    with served(folder) as url:
        yield url


def test_runs_open_in_a_browser(browser: Browser, address: str) -> None:
    page, faults = watched(browser, 1280, address)
    page.goto(address)
    expect(page.get_by_text("Scripted team made")).to_be_visible(timeout=PATIENCE)
    expect(page.locator(".js-plotly-plot .scatterlayer .trace").first).to_be_visible(timeout=PATIENCE)
    page.get_by_role("tab", name="Decisions").click()
    expect(page.get_by_text("MarketAnalyst, where is AAAUSDT going?")).to_be_visible(timeout=PATIENCE)
    page.get_by_role("tab", name="Candles").click()
    page.get_by_role("link", name="New backtest").click()
    expect(page.get_by_role("textbox", name="Data folder")).to_be_visible(timeout=PATIENCE)
    assert not faults


@pytest.mark.parametrize(("width", "scheme"), [(1366, "light"), (390, "dark")])
def test_every_page_opens_whole(browser: Browser, address: str, width: int, scheme: Literal["light", "dark"]) -> None:
    page, faults = watched(browser, width, address)
    page.emulate_media(color_scheme=scheme)
    for name in ("Runs", "New backtest", "Training", "Data", "Experiments", "Paper", "Jobs"):
        page.goto(f"{address}/{name.lower().replace(' ', '_')}")
        expect(page.get_by_role("heading", name=name, exact=True, level=1)).to_be_visible(timeout=PATIENCE)
        page.locator("[data-testid=stStatusWidget]").wait_for(state="detached")
        assert page.locator("[data-testid=stException]").count() == 0, name
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{name} does not scroll sideways"
    assert not faults


def test_back_leads_to_the_page_before_with_one_press(browser: Browser, address: str) -> None:
    page, faults = watched(browser, 1366, address)
    page.goto(address)
    expect(page.get_by_text("Scripted team made")).to_be_visible(timeout=PATIENCE)
    pages = ["Training", "Data", "Experiments", "Jobs", "Runs"]
    for name in pages:
        go_to(page, name)
        page.locator("[data-testid=stStatusWidget]").wait_for(state="detached")
    for name in reversed(pages[:-1]):
        page.go_back()
        expect(page.get_by_role("heading", name=name, exact=True, level=1)).to_be_visible(timeout=PATIENCE)
    assert not faults


def test_what_others_wrote_is_text_and_calls_for_nothing(browser: Browser, tmp_path: Path) -> None:
    """Names, verdicts, notes, and all that models, tools and news said: a picture in them would tell its server
    who reads the run."""
    hostile_store(tmp_path / "store", "backtest")
    with served(tmp_path) as url:
        page, faults = watched(browser, 1366, url)
        page.on("dialog", lambda dialog: faults.append(f"a dialog says {dialog.message}"))
        page.goto(f"{url}/?run={RUN}")
        expect(page.get_by_text("![p](").first).to_be_visible(timeout=PATIENCE)
        for name in ("Numbers", "Costs", "Trades", "Decisions", "What if"):
            page.get_by_role("tab", name=name).click()
            page.locator("[data-testid=stSkeleton]").first.wait_for(state="detached")
        page.get_by_text("How it was run").first.click()
        planted = "a[href*='//x'], img[src*='//x'], img[src='x']"
        assert page.locator(planted).count() == 0 and not faults


def test_a_backtest_goes_on_whatever_becomes_of_the_page(browser: Browser, tmp_path: Path) -> None:
    """One leaves, reloads, opens a second tab, starts a job in a terminal, and restarts the page's own server."""
    # Thousands of decisions, so that it lasts longer than what a slow browser does meanwhile.
    market = generate(SyntheticConfig(bars=2_400, seed=3, symbols=SYMBOLS, timeframe="15m"))
    write_market(market, tmp_path / "data" / "synthetic")
    with served(tmp_path) as url:
        port = int(url.rpartition(":")[2])
        page, faults = watched(browser, 1366, url)
        page.set_viewport_size({"width": 1366, "height": 768})
        page.goto(f"{url}/new_backtest")
        between = page.get_by_role("spinbutton", name="Bars between decisions")
        between.fill("1", timeout=PATIENCE)
        between.press("Tab")
        page.get_by_role("button", name="Run").click()
        expect(page.get_by_text("runs for")).to_be_visible(timeout=PATIENCE)
        expect(page.locator(".js-plotly-plot .scatterlayer .trace").first).to_be_in_viewport(timeout=PATIENCE)
        [job] = JobQueue(tmp_path / "runs").jobs()
        page.reload()
        expect(page.get_by_text("runs for")).to_be_visible(timeout=PATIENCE)
        go_to(page, "Runs")
        other, _ = watched(browser, 1366, url)
        other.goto(f"{url}/new_backtest?job={job.name}")
        expect(other.get_by_text(job.name).first).to_be_visible(timeout=PATIENCE)
        command = [sys.executable, "-m", "backend.cli", "jobs", "run", "--", "backtest", "--team=hold",
                   f"--store={tmp_path / 'store'}"]  # fmt: skip
        subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
        assert not faults, "before the server went away"
    assert JobQueue(tmp_path / "runs").job(job.name).status in ("running", "done"), "it does not end with the page"
    with served(tmp_path, port) as url:
        page, faults = watched(browser, 1366, url)
        page.goto(f"{url}/new_backtest?job={job.name}")
        expect(page.get_by_text("Scripted team made")).to_be_visible(timeout=5 * PATIENCE)
        go_to(page, "Jobs")
        assert not faults
    deadline = time.monotonic() + 5 * PATIENCE / 1000
    while JobQueue(tmp_path / "runs").active() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert [one.status for one in JobQueue(tmp_path / "runs").jobs()] == ["done", "done"]
