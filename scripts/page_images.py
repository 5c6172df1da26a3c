"""Takes the pictures of the pages for the documentation: `python -m scripts.page_images`, in the repository's folder.

It opens the page with the finished run that ships with the sample, a training of the preset quick (a minute) and a
stored experiment, in Chromium, and writes each page in both themes to `docs/images/`. With names, as `training data`,
only those are taken. It needs the extra `ui`, Playwright and a Chromium in the PATH.
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
from collections.abc import Sequence
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from playwright.sync_api import Page, sync_playwright

from backend.experiments.folder import EXPERIMENTS, RESULTS
from backend.runs.sample_run import add_sample_run
from backend.store.store import Store

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
_WIDTH, _HEIGHT = 1366, 900
_PATIENCE = 60_000  # milliseconds
_EXPERIMENT_STATE = "experiment.json"
_TRAINING = "training"  # the path of its page
# Name of the picture, path of the page, the tabs that are opened one after the other.
_PAGES = (
    ("runs", "", ("Against one another",)),
    ("decision", "?decision=5", ("Decisions", "Who asked whom")),
    ("what-if", "?decision=5", ("Decisions", "What if")),
    ("new-backtest", "new_backtest", ()),
    ("laboratory", "laboratory", ()),
    ("arena", "arena", ()),
    ("training", _TRAINING, ()),
    ("data", "data?folder=data/synthetic", ()),
    ("experiments", "experiments?experiment=no_edge", ("Experiments",)),
)


def main(names: Sequence[str]) -> None:
    """Take the pictures of these names, or all."""
    known = [name for name, _, _ in _PAGES]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"no picture is called {', '.join(unknown)}: there are {', '.join(known)}")
    chosen = [page for page in _PAGES if not names or page[0] in names]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "data").symlink_to(ROOT / "data")
        with Store.open(folder / "runs" / "store") as store:
            add_sample_run(store)
        _add_experiment(folder / "runs" / EXPERIMENTS / "no_edge")
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        if any(path == _TRAINING for _, path, _ in chosen):
            train = [sys.executable, "-m", "backend.cli", "train", "--config", "quick"]
            subprocess.run(train, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=True)
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "ui.server", f"--server.port={port}", "--server.headless=true",
                   "--server.address=localhost", "--browser.gatherUsageStats=false",
                   "--server.fileWatcherType=none", "--client.toolbarMode=viewer"]  # fmt: skip
        server = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
        try:
            _wait_for(f"http://localhost:{port}/_stcore/health")
            _take_all(f"http://localhost:{port}", chosen)
        finally:
            server.terminate()
            server.wait(timeout=10)


def _add_experiment(folder: Path) -> None:
    """The experiment that the documentation shows, as if it had been run here."""
    shutil.copytree(ROOT / "docs" / "experiments" / folder.name, folder)
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


def _take_all(url: str, chosen: Sequence[tuple[str, str, tuple[str, ...]]]) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for theme in ("light", "dark"):
            for name, path, tabs in chosen:
                context = browser.new_context(
                    viewport={"width": _WIDTH, "height": _HEIGHT},
                    color_scheme="dark" if theme == "dark" else "light",
                )
                page = context.new_page()
                page.goto(f"{url}/{path}")
                page.get_by_role("heading", level=1).first.wait_for(timeout=_PATIENCE)
                for tab in tabs:
                    page.get_by_role("tab", name=tab).click(timeout=_PATIENCE)
                _settle(page)
                if tabs:
                    page.get_by_role("tab", name=tabs[-1]).evaluate("tab => tab.scrollIntoView(true)")
                    page.wait_for_timeout(1_500)
                file = IMAGES / f"page-{name}-{theme}.png"
                page.screenshot(path=file)
                print(f"{file.relative_to(ROOT)}: {file.stat().st_size:,} bytes", flush=True)
                context.close()
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
