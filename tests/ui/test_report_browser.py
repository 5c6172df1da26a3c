"""Reports in a real browser, opened as the files that they are: nothing is missing, wide and narrow, light and dark."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, expect

from backend.reporting.report import write_report
from backend.store.store import Store
from simulator.data.archive import write_market
from tests.stored_runs import add_backtest_run, add_demo_run, small_market
from tests.ui.browsing import PATIENCE, needs_chromium, watched

pytestmark = [needs_chromium, pytest.mark.slow]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the reports of a demo and of a backtest whose data is there."""
    folder = tmp_path_factory.mktemp("a folder with spaces")
    write_market(small_market(), folder / "data")
    with Store.open("mem://") as store:
        add_demo_run(store, "demo")
        add_backtest_run(store, "backtest", data=str(folder / "data"))
        for run in ("demo", "backtest"):
            write_report(store, run, folder / run)
    return folder


@pytest.mark.parametrize(("width", "scheme"), [(1366, "light"), (390, "dark")])
@pytest.mark.parametrize(("run", "figures"), [("demo", 8), ("backtest", 8)])
def test_it_draws_every_figure_without_a_server(
    browser: Browser, folder: Path, run: str, figures: int, width: int, scheme: Literal["light", "dark"]
) -> None:
    address = (folder / run / "report.html").as_uri()
    page, faults = watched(browser, width, address)
    page.emulate_media(color_scheme=scheme)
    page.goto(address)
    expect(page.locator(".plot .main-svg").first).to_be_visible(timeout=PATIENCE)
    page.wait_for_function(
        "count => document.querySelectorAll('.plot.js-plotly-plot').length == count", arg=figures, timeout=PATIENCE
    )
    assert page.locator("script.plot-data").count() == figures
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "the page does not scroll sideways"
    wide = "[...document.querySelectorAll('.fact')].filter(box => box.scrollWidth > box.clientWidth).length"
    assert page.evaluate(wide) == 0, "nothing of the first screen is cropped"
    contents = page.locator("#contents a")
    assert contents.count() == page.locator("section[id] > h2").count() > 4
    contents.nth(2).click()
    expect(page.locator("section[id] > h2").nth(2)).to_be_in_viewport()
    words = page.evaluate("getComputedStyle(document.querySelector('.plot .xtick text')).fill")
    assert words == {"light": "rgb(31, 41, 51)", "dark": "rgb(230, 233, 237)"}[scheme]
    assert faults == []
