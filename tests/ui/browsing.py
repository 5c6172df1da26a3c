"""A page of this program in a real browser: its server, and a view of it that notes what it should not do."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from playwright.sync_api import Browser, Page, expect
from playwright.sync_api import TimeoutError as NothingCame

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# How long a test waits for what must come: far longer than it takes, because the machine may have much else to do. What
# comes sooner is seen sooner.
PATIENCE = 120_000  # milliseconds
_END_SECONDS = 120.0  # for which a server that was told to end may finish what it does
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium in the PATH; on Debian: apt-get install chromium"
)


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port: int = free.getsockname()[1]
    return port


@contextmanager
def served(folder: Path, port: int = 0, token: str = "", plugins: bool = False) -> Iterator[str]:
    """The page of the store in `folder`, whose current folder that is, for a block; without a token by default."""
    port = port or free_port()
    command = ["backend.cli", "ui", f"--port={port}"]
    command += [] if token else ["--no-token"]
    command += ["--allow-plugins"] if plugins else []
    with serving(command, folder, port, token) as url:
        yield url


@contextmanager
def serving(module: Sequence[str], folder: Path, port: int, token: str = "") -> Iterator[str]:
    """A page's server for a block: a module with its arguments, which serves on `port`."""
    command = [sys.executable, "-m", *module]
    environment = {**os.environ, "CRYPTOSENTINEL_STORE": str(folder / "store"), "PYTHONPATH": str(ROOT),
                   "CRYPTOSENTINEL_UI_TOKEN": token}  # fmt: skip
    url = f"http://localhost:{port}"
    with (folder / "log").open("a") as log:
        server = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            _wait_for(f"{url}/_stcore/health", server)
            yield url
        finally:
            end(server)


def end(server: subprocess.Popen[bytes]) -> None:
    """Let a server end as it does for a user. It must not outlive the test, so one that does not obey is killed."""
    server.terminate()
    try:
        server.wait(timeout=_END_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
        raise


def _wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 5 * PATIENCE / 1000  # it makes ready what a first visit needs
    while time.monotonic() < until:
        assert server.poll() is None, "the page's server has ended by itself"
        try:
            with urlopen(url, timeout=1):
                return
        except (URLError, TimeoutError):
            time.sleep(0.25)
    raise AssertionError(f"{url} does not answer")


def watched(browser: Browser, width: int, home: str) -> tuple[Page, list[str]]:
    """A page, and what it did that it should not: errors, and requests to anywhere but `home`."""
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.set_default_timeout(PATIENCE)
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda said: faults.append(said.text) if said.type == "error" and _is_fault(said.text) else None)
    page.on("request", lambda request: None if _local(request.url, home) else faults.append(request.url))
    return page, faults


def go_to(page: Page, name: str) -> None:
    """Another page of the menu. A page that asks to be drawn anew while the click comes takes Streamlit back to
    itself, so whoever sees nothing clicks again, as a user does."""
    heading = page.get_by_role("heading", name=name, exact=True, level=1)
    for _ in range(3):
        page.get_by_role("link", name=name, exact=True).click()
        try:
            heading.wait_for(timeout=PATIENCE / 4)
            return
        except NothingCame:
            continue
    expect(heading).to_be_visible()


def _is_fault(text: str) -> bool:
    """Streamlit looks for its server below each page's own address first, and says that it is not there; a server
    that is being restarted cannot be reached."""
    return not any(known in text for known in ("404 (Not Found)", "ERR_CONNECTION_REFUSED", "WebSocket"))


def _local(url: str, home: str) -> bool:
    return url.startswith((home, home.replace("http", "ws"), "data:", "blob:"))
