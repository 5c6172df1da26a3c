"""Ctrl-C while an endpoint thinks: the request is cancelled, not waited for."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backend.store.store import Store
from tests.command_line import Run, program
from tests.mock_endpoint import MODEL

ROOT = Path(__file__).parents[3]
LISTED = json.dumps({"data": [{"id": MODEL, "type": "model"}]}).encode()
WINDOW = ("--data", "data/synthetic", "--symbols", "AAAUSDT", "--start", "2021-05-01", "--end", "2021-05-03")


class Silent:
    """An endpoint that lists its model and answers nothing else. The first question is met with Ctrl-C; `cancelled` is
    set when whoever asked it has ended the connection."""

    def __init__(self) -> None:
        self.asked = threading.Lock()
        self.cancelled = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        said, first = b"", False
        while piece := connection.recv(65536):
            said += piece
            if said.startswith(b"GET ") and said.endswith(b"\r\n\r\n"):
                head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(LISTED)}\r\n\r\n"
                connection.sendall(head.encode() + LISTED)
                said = b""
            elif said.startswith(b"POST ") and self.asked.acquire(blocking=False):
                first = True
                os.kill(os.getpid(), signal.SIGINT)
        if first:
            self.cancelled.set()


@contextmanager
def silent() -> Iterator[Silent]:
    endpoint = Silent()
    try:
        yield endpoint
    finally:
        endpoint.close()


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    (tmp_path / "data").symlink_to(ROOT / "data")
    monkeypatch.setenv("TEST_KEY", "sk-test-0123456789abcdef")
    return program(tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize("what", ["try", "backtest", "recorded backtest"])
@pytest.mark.parametrize("kind", ["openai_api", "anthropic_api"])
def test_a_request_under_way_is_cancelled(kind: str, what: str, command: Run) -> None:
    """The endpoint never answers: whoever waited for it would wait for ever."""
    with silent() as endpoint:
        settings = (f"engine.kind={kind}", f"engine.url={endpoint.url}/v1", f"engine.model={MODEL}",
                    "engine.key_variable=TEST_KEY")  # fmt: skip
        asked = [word for one in settings for word in ("-s", one)]
        if what == "try":
            ended = command("models", "try", *WINDOW, *asked)
        else:
            tape = ("--record", "tape") if "recorded" in what else ()
            ended = command("backtest", "--team", "model", "--baselines", "none", *WINDOW, *asked, *tape)
        assert endpoint.cancelled.wait(60)
    assert ended.code == 128 + signal.SIGINT, ended.err
    assert "stopped" in ended.err or "was interrupted; what it stored is kept" in ended.err
    if what != "try":
        with Store.open("runs/store") as store:
            assert [one.status for one in store.runs()] == ["interrupted"]


def test_the_end_of_a_command_does_not_look_through_all_that_was_made() -> None:
    """With torch and numba that takes seconds, after the last word of a command and after Ctrl-C."""
    code = (
        "import gc, sys\nfrom backend.cli.main import main\n"
        "class Looked:\n    def __del__(self): print('looked through', flush=True)\n"
        "gc.disable()\ncycle = Looked()\ncycle.itself = cycle\ndel cycle\n"
        "sys.argv = ['cryptosentinel', '--help']\nmain()"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert "Usage" in ended.stdout and "looked through" not in ended.stdout
