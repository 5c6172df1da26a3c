"""Ctrl-C while an endpoint thinks: the request is cancelled, not waited for."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
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
    """An endpoint that lists its model and answers nothing else. At the first question `answer` is called; `cancelled`
    is set when whoever asked it has ended the connection.
    """

    def __init__(self, answer: Callable[[], object]) -> None:
        self._answer = answer
        self._asked = threading.Lock()
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
        while piece := _received(connection):
            said += piece
            if said.startswith(b"GET ") and said.endswith(b"\r\n\r\n"):
                head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(LISTED)}\r\n\r\n"
                connection.sendall(head.encode() + LISTED)
                said = b""
            elif said.startswith(b"POST ") and self._asked.acquire(blocking=False):
                first = True
                self._answer()
        if first:
            self.cancelled.set()


def _received(connection: socket.socket) -> bytes:
    """What comes next; nothing where the other side has ended the connection, in order or by a reset."""
    try:
        return connection.recv(65536)
    except ConnectionError:
        return b""


@contextmanager
def silent(answer: Callable[[], object]) -> Iterator[Silent]:
    endpoint = Silent(answer)
    try:
        yield endpoint
    finally:
        endpoint.close()


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    (tmp_path / "data").symlink_to(ROOT / "data")
    monkeypatch.setenv("TEST_KEY", "sk-test-0123456789abcdef")
    return program(tmp_path, monkeypatch, capsys)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("what", ["try", "backtest", "recorded backtest"])
def test_ctrl_c_cancels_the_request_under_way(what: str, command: Run) -> None:
    """The endpoint never answers: whoever waited for it would wait for ever."""
    with silent(interrupt) as endpoint:
        settings = ("engine.kind=openai_api", f"engine.url={endpoint.url}/v1", f"engine.model={MODEL}")
        asked = [word for one in settings for word in ("-s", one)]
        if what == "try":
            ended = command("models", "try", "--data", "data/synthetic", *asked)
        else:
            tape = ("--record", "tape.jsonl") if "recorded" in what else ()
            ended = command("backtest", "--team", "model", "--baselines", "none", *WINDOW, *asked, *tape)
        assert ended.code == 128 + signal.SIGINT, ended.out + ended.err
        assert endpoint.cancelled.wait(60)
    assert "stopped" in ended.err or "was interrupted; what it stored is kept" in ended.err
    if what != "try":
        with Store.open("runs/store") as store:
            assert [one.status for one in store.runs()] == ["interrupted"]
