"""A report in a real browser, opened as the file that it is: nothing is missing, in light and in dark."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import expect, sync_playwright

from backend.reporting.report import write_report
from backend.store.store import Store
from tests.stored_runs import add_backtest_run
from tests.ui.browsing import CHROMIUM, PATIENCE, needs_chromium, watched

pytestmark = [needs_chromium, pytest.mark.slow]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("a folder with spaces")
    with Store.open("mem://") as store:
        add_backtest_run(store, "backtest")
        return write_report(store, "backtest", folder)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_draws_every_figure_without_a_server(report: Path, scheme: Literal["light", "dark"]) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        page, faults = watched(browser, 1200, report.as_uri())
        page.emulate_media(color_scheme=scheme)
        page.goto(report.as_uri())
        figures = page.locator("script.plot-data").count()
        expect(page.locator(".plot .main-svg").first).to_be_visible(timeout=PATIENCE)
        page.wait_for_function(
            "count => document.querySelectorAll('.plot.js-plotly-plot').length == count", arg=figures, timeout=PATIENCE
        )
        contents = page.locator("#contents a")
        assert contents.count() == page.locator("section[id] > h2").count() > 5
        contents.nth(2).click()
        expect(page.locator("section[id] > h2").nth(2)).to_be_in_viewport()
        dark = "getComputedStyle(document.body).backgroundColor"
        assert page.evaluate(dark) == {"light": "rgb(245, 247, 249)", "dark": "rgb(20, 24, 29)"}[scheme]
        browser.close()
    assert figures == 7 and faults == []
