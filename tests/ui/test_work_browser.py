"""What one does on the page, in a real browser: a decision replayed with another answer, a training watched, a variant
played."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from backend.jobs.queue import JobQueue
from backend.runs.backtest import backtest_teams
from backend.runs.requests import BacktestRequest
from backend.store.store import Store
from simulator.data.archive import write_market
from tests.stored_runs import small_market
from tests.ui.browsing import PATIENCE, needs_chromium, served, watched

LONG = 900_000  # milliseconds; a training of the preset quick takes a minute on a machine with nothing else to do

pytestmark = [pytest.mark.slow, needs_chromium]


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a sample of data and one backtest of a week."""
    monkeypatch.chdir(tmp_path)
    write_market(small_market(), tmp_path / "data" / "synthetic")
    request = BacktestRequest(
        data="data/synthetic", start="2020-02-01", end="2020-02-08", baselines=("hold",)
    )  # fmt: skip
    backtest_teams(request, tmp_path / "store", tmp_path / "runs")
    return tmp_path


def drawn(page: Page, patience: int = PATIENCE) -> None:
    traces = page.locator(".js-plotly-plot .scatterlayer .trace")  # the edge of a band is one that is not drawn
    expect(traces.filter(visible=True).first).to_be_visible(timeout=patience)


def test_a_decision_is_opened_and_replayed_with_another_answer(browser: Browser, played: Path) -> None:
    with served(played) as url:
        page, faults = watched(browser, 1366, url)
        page.goto(f"{url}/?decision=1")
        expect(page.get_by_text("MarketAnalyst, where is").first).to_be_visible(timeout=2 * PATIENCE)
        page.get_by_role("tab", name="Who asked whom").click()
        expect(page.locator("[data-testid=stGraphVizChart] svg").first).to_be_visible(timeout=PATIENCE)
        page.get_by_role("tab", name="What if").click()
        answer = page.get_by_role("textbox", name="Instead")
        answer.fill("nonsense", timeout=PATIENCE)
        page.get_by_role("button", name="Replay").click()
        expect(page.get_by_text("no JSON")).to_be_visible(timeout=2 * PATIENCE)
        answer.fill('{"up": 0.02, "flat": 0.03, "down": 0.95}')
        page.get_by_role("button", name="Replay").click()
        expect(page.get_by_text("requests were answered again")).to_be_visible(timeout=2 * PATIENCE)
        expect(page.get_by_text(re.compile("now: .*down 95 %", re.DOTALL)).first).to_be_visible(timeout=PATIENCE)
        assert "decision=1" in page.url and not faults


def test_a_variant_is_played_from_the_page(browser: Browser, played: Path) -> None:
    with served(played) as url:
        page, faults = watched(browser, 1366, url)
        page.goto(url)
        page.get_by_text("Play it again, with something changed").click(timeout=2 * PATIENCE)
        for label in ("Without Trader", "Another future"):
            page.get_by_text(label, exact=True).click(timeout=PATIENCE)
        page.get_by_role("button", name="Play again").click()
        page.get_by_role("tab", name="Against one another").click(timeout=LONG)
        expect(page.get_by_text("Final wealth over that of")).to_be_visible(timeout=PATIENCE)
        drawn(page)
        [job] = JobQueue(played / "runs").jobs()
        assert job.status == "done" and not faults
    with Store.open(played / "store") as store:
        tested = store.run(job.run).config["teams"]
    assert tested == ["scripted", "scripted, without Trader", "scripted, another future"]


def test_a_training_of_the_quick_preset_is_started_and_watched(browser: Browser, played: Path) -> None:
    with served(played) as url:
        page, faults = watched(browser, 1366, url)
        page.goto(f"{url}/training")
        page.get_by_role("button", name="Start", exact=True).click(timeout=2 * PATIENCE)
        step = page.get_by_role("heading", name=re.compile(r"Step \d+ is done"))
        expect(step).to_be_visible(timeout=LONG)
        page.get_by_text("How it learned").first.click()
        drawn(page)
        # It is followed without a click: the end comes to a page that was drawn after the first step.
        expect(page.get_by_text("Did it help?").first).to_be_visible(timeout=LONG)
        page.get_by_text("A group", exact=True).first.click()
        expect(page.locator("[data-testid=stDataFrame]").first).to_be_visible(timeout=PATIENCE)
        assert not faults
    [job] = JobQueue(played / "runs").jobs()
    assert job.status == "done" and job.run
