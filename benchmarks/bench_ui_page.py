"""The page in a browser: how long a first visit takes with many runs, when a change in the store shows, and a run of
100,000 bars. It needs the extra `ui`, Playwright and a Chromium in the PATH. Long: it makes the store first.

`python -m benchmarks.bench_ui_page FOLDER` measures in a folder that `make_store` filled before, and makes what is
missing there.

Seconds by the clock, of everything between a click and what is drawn: server, socket, browser. What else runs on the
machine is in them.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from playwright.sync_api import Browser, Page, expect, sync_playwright

from backend.decisions.document import StoredDecision, read_decisions, write_decisions
from backend.runs.backtest import backtest_teams
from backend.runs.requests import BacktestRequest
from backend.store.records import RunRecord
from backend.store.store import Store
from benchmarks.run import Result, table
from simulator.data.archive import write_market
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.ui.browsing import CHROMIUM, free_port, served, serving

BY_NAME_ONLY = True
RUNS, DECISIONS = 100, 50_000
BARS = 100_000
BARS_A_RUN = 700  # with a decision each, of which the last DECISIONS / RUNS are kept
VISITS, CHANGES, ZOOMS = 3, 5, 6
FIRST_SECONDS, CHANGE_SECONDS, OPEN_SECONDS, ZOOM_SECONDS = 2.0, 2.0, 2.0, 1.0
STARTS = ("2020-03-01", "2020-02-15")
LONG, MADE, FIRST_DAY = "long", "made", 1_577_836_800_000
PATIENCE = 120_000  # milliseconds
# A page of Streamlit alone that shows one small table and one line: what is slower here is ours.
PLAIN = """
import pandas as pd, plotly.graph_objects as go, streamlit as st
st.dataframe(pd.DataFrame({"a": [1, 2]}))
st.plotly_chart(go.Figure(go.Scatter(x=[1, 2], y=[1, 2])), theme=None)
"""
DRAWN = "document.querySelector('.js-plotly-plot .main-svg') && document.querySelector('.js-plotly-plot').data"


def run() -> list[Result]:
    """The rows `ui.page.*`."""
    with tempfile.TemporaryDirectory() as scratch:
        return measure(Path(scratch))


def measure(folder: Path) -> list[Result]:
    """All rows, with the store in `folder`, which is made where it is missing."""
    if not (folder / MADE).exists():
        make_store(folder)
    size, bars = f"{RUNS} runs with {DECISIONS:,} decisions", f"a backtest of {BARS:,} bars"
    rows: list[Result] = []

    def note(name: str, seconds: float, limit: float, unit: str) -> None:
        """Keep a row, and say it at once: a machine that has much else to do may not come to the end."""
        rows.append(_row(name, seconds, limit, unit))
        print(f"{rows[-1]['name']}: {seconds:.2f} {unit}", file=sys.stderr, flush=True)

    with ExitStack() as stack:
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        stack.callback(browser.close)
        firsts = [_first_visit(browser, folder) for _ in range(VISITS)]
        note("first", max(firsts), FIRST_SECONDS, f"s to the first visit's picture, the slowest of {VISITS}; {size}")
        note("plain", _plain_visit(browser, folder), FIRST_SECONDS, "s to the picture of a page of Streamlit alone")
        url = stack.enter_context(served(folder))
        again = _timed_visit(browser, f"{url}/")
        note("again", again, FIRST_SECONDS, f"s to the picture of a further visit; {size}")
        opened = _timed_visit(browser, f"{url}/?run={LONG}")
        note("long.open", opened, OPEN_SECONDS, f"s to its picture, the first time; {bars}")
        reopened = _timed_visit(browser, f"{url}/?run={LONG}")
        note("long.again", reopened, OPEN_SECONDS, f"s to its picture; {bars}")
        zooms = _zooms(browser, f"{url}/?run={LONG}")
        note("long.zoom", statistics.median(zooms), ZOOM_SECONDS,
             f"s to finer candles, the median of {len(zooms)}; {bars}")  # fmt: skip
        page = _visit(browser, f"{url}/")
        changes = [_change(page, folder, number) for number in range(CHANGES)]
        note("change", max(changes), CHANGE_SECONDS, f"s from a record to the page, the slowest of {CHANGES}; {size}")
    return rows


def make_store(folder: Path) -> None:
    """A folder as a user has it: bars, and a store of RUNS short backtests of the scripted team with DECISIONS
    decisions in all, and a long one of a strategy."""
    short = generate(SyntheticConfig(bars=BARS_A_RUN + 200, seed=3, symbols=("AAAUSDT", "BBBUSDT")))
    write_market(short, folder / "data" / "short")
    write_market(generate(SyntheticConfig(bars=BARS + 200, seed=4, symbols=("AAAUSDT",))), folder / "data" / "long")
    with Store.open(folder / "store") as store:
        request = BacktestRequest(data=folder / "data" / "long", teams=("ema_cross",), decide_every=6, start=STARTS[0])
        first = backtest_teams(request, store, folder / "runs").run
        _copy(store, first, LONG, 0)
        store.delete_run(first)
        request = BacktestRequest(data=folder / "data" / "short", decide_every=1, start=STARTS[1])
        first = backtest_teams(request, store, folder / "runs").run
        for number in range(RUNS):
            _copy(store, first, f"backtest-{number:03}", number + 1)
        store.delete_run(first)
    (folder / MADE).touch()


def _copy(store: Store, of: str, run: str, number: int) -> None:
    """A finished run like another one, begun `number` minutes after the first."""
    record = store.run(of)
    begun = FIRST_DAY + number * 60_000
    ended = begun + 5_000
    store.add_run(RunRecord(run, record.kind, number, record.data_hash, begun, record.config, "finished", ended))
    for stored in store.backtests(of):
        store.put(replace(stored, run=run))
    decisions = read_decisions(store, of)[-DECISIONS // RUNS :]
    write_decisions(store, [
        StoredDecision(run, one.backtest, ordinal, one.time, one.document) for ordinal, one in enumerate(decisions)
    ])  # fmt: skip


def _first_visit(browser: Browser, folder: Path) -> float:
    """Seconds of the first visit to a page server that has just begun to answer."""
    with served(folder) as url:
        return _timed_visit(browser, f"{url}/")


def _plain_visit(browser: Browser, folder: Path) -> float:
    """Seconds of a further visit to `PLAIN`."""
    (folder / "plain.py").write_text(PLAIN)
    port = free_port()
    options = [f"--server.port={port}", "--server.headless=true", "--server.address=localhost",
               "--browser.gatherUsageStats=false", "--server.fileWatcherType=none"]  # fmt: skip
    with serving(["streamlit", "run", "plain.py", *options], folder, port) as url:
        _timed_visit(browser, url)
        return _timed_visit(browser, url)


def _timed_visit(browser: Browser, address: str) -> float:
    begun = time.monotonic()
    page = _visit(browser, address)
    seconds = time.monotonic() - begun
    page.context.close()
    return seconds


def _visit(browser: Browser, address: str) -> Page:
    """A page with its table and the first picture of the run that is open."""
    page = browser.new_context(viewport={"width": 1366, "height": 768}).new_page()
    page.goto(address)
    page.locator("[data-testid=stDataFrame]").first.wait_for(timeout=PATIENCE)
    page.wait_for_function(DRAWN, timeout=PATIENCE)
    return page


def _change(page: Page, folder: Path, number: int) -> float:
    """Seconds from a record of a run in the store, written by another process than the page's, to its name on the
    page."""
    run = f"changed-{number}-{time.time_ns()}"
    with Store.open(folder / "store") as store:
        store.add_run(RunRecord(run, "backtest", 1, "hash", time.time_ns() // 1_000_000, {"config": {}}, "failed", 1))
        begun = time.monotonic()
        # The table is a canvas; its words stand beside it for those who cannot see.
        expect(page.locator("[data-testid=stDataFrame]").first).to_contain_text(run, timeout=PATIENCE)
        seconds = time.monotonic() - begun
        store.delete_run(run)
    return seconds


def _zooms(browser: Browser, address: str) -> list[float]:
    """Seconds from each move of a handle to the candles of that part."""
    page = _visit(browser, address)
    page.get_by_role("tab", name="Candles").click()
    slider = page.locator("[data-testid=stSlider]").first
    slider.wait_for(timeout=PATIENCE)
    first = "document.querySelector('.js-plotly-plot')?.data?.find(one => one.type == 'candlestick')"
    page.wait_for_function(first, timeout=PATIENCE)
    box = slider.bounding_box()
    assert box is not None
    seconds = []
    for step in range(ZOOMS):
        bars = f"(() => {{const one = {first}; return one && `${{one.x[0]}} ${{one.x[one.x.length - 1]}}`}})()"
        former = page.evaluate(bars)
        begun = time.monotonic()
        # The nearer of the two handles goes there: the part gets smaller from both ends in turn.
        share = 0.08 * (step // 2 + 1)
        page.mouse.click(box["x"] + box["width"] * (share if step % 2 else 1.0 - share), box["y"] + box["height"] * 0.6)
        page.wait_for_function(f"{bars} && {bars} != '{former}'", timeout=PATIENCE)
        seconds.append(time.monotonic() - begun)
    page.context.close()
    return seconds


def _row(name: str, seconds: float, limit: float, unit: str) -> Result:
    return {
        "name": f"ui.page.{name}",
        "value": seconds,
        "unit": unit,
        "against": f"{limit:g} s",
        "ratio": seconds / limit,
        "target": "<= 1.0",
        "met": seconds <= limit,
    }


if __name__ == "__main__":
    from rich.console import Console

    Console(width=160).print(table(measure(Path(sys.argv[1]))))
