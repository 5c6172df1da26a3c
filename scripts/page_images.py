"""Takes the pictures of the pages for the documentation: `python -m scripts.page_images`, in the repository's folder.

It opens the page with the finished run that ships with the sample and a stored experiment, in Chromium, and writes
each page in the themes that the documentation shows to `docs/images/`. What runs in a picture is started for it: a
training of the preset quick (a minute), a backtest and a paper session. With names, as `training data`, only those are
taken. It needs the extras `ui` and `paper`, Playwright and a Chromium in the PATH.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from playwright.sync_api import Page, sync_playwright

from backend.experiments.folder import EXPERIMENTS, RESULTS
from backend.jobs.queue import JobQueue
from backend.paper.overview import session_folders
from backend.paper.switch import set_stop
from backend.runs.requests import RUNS
from backend.runs.sample_run import SAMPLE_RUN, add_sample_run
from backend.store.store import Store

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
_ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
_WIDTH, _HEIGHT = 1366, 900
_PATIENCE = 240_000  # milliseconds
_EXPERIMENT_STATE = "experiment.json"
# A browser without a screen says that nothing can hover, as a phone does, and each figure shows its toolbar.
_POINTER = "--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4"
_TRAINING, _BACKTEST, _PAPER = "training", "backtest", "paper"  # pictures of what is started for them
# Name of the picture, path of the page, the tabs that are opened one after the other, the themes.
_PAGES = (
    ("runs", f"?run={SAMPLE_RUN}", (), ("light",)),
    ("run", f"?run={SAMPLE_RUN}", ("Equity",), ("light",)),
    ("teams", f"?run={SAMPLE_RUN}", ("Against one another",), ("light",)),
    ("decision", f"?run={SAMPLE_RUN}&decision=34", ("Decisions",), ("light",)),
    (_TRAINING, "training", (), ("light",)),
    ("data", "data?folder=data/synthetic", (), ("light",)),
    ("experiments", "experiments?experiment=e2_knowledge", ("Experiments",), ("dark",)),
    (_BACKTEST, "new_backtest", (), ("dark",)),
    (_PAPER, "paper", ("Positions and orders",), ("light", "dark")),
)
_COMMANDS = {
    _TRAINING: ("jobs", "run", "--", "train", "--config", "quick"),
    _BACKTEST: ("jobs", "run", "--", "backtest", "--data", "data/synthetic", "--decide-every", "1"),
    # Recorded bars, an hour a second, so that it lasts while one looks.
    _PAPER: (
        "jobs", "run", "--", "paper", "run", "--data", "data/synthetic", "--timeframe", "4h", "--symbols",
        "AAAUSDT,BBBUSDT", "--start",
        "2021-01-01", "--decide-every", "1", "--set", "paper.speed=14400", "--set",
        "paper.history_bars=130",
    ),
}  # fmt: skip


def main(names: Sequence[str]) -> None:
    """Take the pictures of these names, or all."""
    known = [page[0] for page in _PAGES]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"no picture is called {', '.join(unknown)}: there are {', '.join(known)}")
    chosen = [page for page in _PAGES if not names or page[0] in names]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "data").symlink_to(ROOT / "data")
        with Store.open(folder / "runs" / "store") as store:
            add_sample_run(store)
        _add_experiment(folder / "runs" / EXPERIMENTS / "e2_knowledge")
        with _served(folder) as url:
            if any(page[0] == _TRAINING for page in chosen):
                _start(_TRAINING, folder)
                _wait_for_jobs(folder)
            try:
                _take_all(url, chosen, folder)
            finally:
                for session in session_folders(folder / RUNS):
                    set_stop(folder / RUNS / session)


def _start(name: str, folder: Path) -> None:
    command = [sys.executable, "-m", "backend.cli", *_COMMANDS[name]]
    subprocess.run(command, cwd=folder, env=_ENVIRONMENT, stdout=subprocess.DEVNULL, check=True)


def _wait_for_jobs(folder: Path) -> None:
    while JobQueue(folder / RUNS).active():
        time.sleep(0.5)


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "backend.cli", "ui", "--no-token", f"--port={port}"]
    server = subprocess.Popen(command, cwd=folder, env=_ENVIRONMENT, stdout=subprocess.DEVNULL)
    try:
        _wait_for(f"http://localhost:{port}/_stcore/health")
        yield f"http://localhost:{port}"
    finally:
        server.terminate()
        server.wait(timeout=_PATIENCE / 1000)


def _add_experiment(folder: Path) -> None:
    """The experiment that the documentation shows, as if it had been run here."""
    shutil.copytree(ROOT / "docs" / "research" / "experiments" / folder.name, folder)
    result = json.loads((folder / RESULTS).read_text())
    state = {"run": result["run"], "digest": "", "seeds": result["seeds"], "config": {}, "question": result["question"]}
    (folder / _EXPERIMENT_STATE).write_text(json.dumps(state))


def _wait_for(url: str) -> None:
    for _ in range(240):
        try:
            with urlopen(url, timeout=1):
                return
        except (URLError, TimeoutError):
            time.sleep(0.25)
    raise SystemExit(f"{url} does not answer")


def _take_all(url: str, chosen: Sequence[tuple[str, str, tuple[str, ...], tuple[str, ...]]], folder: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", _POINTER])
        for theme in ("light", "dark"):
            for name, path, tabs, themes in chosen:
                if theme not in themes:
                    continue
                context = browser.new_context(
                    viewport={"width": _WIDTH, "height": _HEIGHT},
                    color_scheme="dark" if theme == "dark" else "light",
                )
                page = context.new_page()
                page.set_default_timeout(_PATIENCE)
                if name == _PAPER and not session_folders(folder / RUNS):
                    _start(_PAPER, folder)
                    while not session_folders(folder / RUNS):
                        time.sleep(0.5)
                elif name == _BACKTEST:
                    _start(_BACKTEST, folder)
                    [job] = [one for one in JobQueue(folder / RUNS).jobs() if one.active]
                    path = f"new_backtest?job={job.name}"
                page.goto(f"{url}/{path}")
                page.get_by_role("heading", level=1).first.wait_for()
                for tab in tabs:
                    page.get_by_role("tab", name=tab).first.click()
                if name in (_BACKTEST, _PAPER):  # they are never at rest
                    page.locator(".js-plotly-plot .scatterlayer .trace").first.wait_for()
                    page.wait_for_timeout(4_000)
                else:
                    _settle(page)
                if name == _PAPER and theme == "dark":
                    page.get_by_role("button", name="Kill").first.click()
                    page.wait_for_timeout(1_500)
                elif tabs and name != _PAPER:
                    page.get_by_role("tab", name=tabs[-1]).first.evaluate("tab => tab.scrollIntoView(true)")
                    page.wait_for_timeout(1_500)
                file = IMAGES / f"page-{name}-{theme}.png"
                page.screenshot(path=file)
                print(f"{file.relative_to(ROOT)}: {file.stat().st_size:,} bytes", flush=True)
                context.close()
                if name == _BACKTEST:
                    JobQueue(folder / RUNS).cancel(job.name)
                    _wait_for_jobs(folder)
        browser.close()


def _settle(page: Page) -> None:
    """Wait until the page's program has run and its pictures are drawn."""
    page.wait_for_timeout(1_000)
    page.locator("[data-testid=stStatusWidget]").wait_for(state="detached", timeout=_PATIENCE)
    # A part whose program is still being fetched has a grey bar in its place.
    page.wait_for_function("!document.querySelector('[data-testid=stSkeleton]')", timeout=_PATIENCE)
    page.wait_for_timeout(1_500)


if __name__ == "__main__":
    main(sys.argv[1:])
