"""What is seen of a session from outside: its figures, its health, and alerts that reach a webhook."""

from __future__ import annotations

import json
import os
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from backend.paper import monitor as monitors
from backend.paper.journal import entries_of
from backend.paper.monitor import METRICS, WEBHOOK, Monitor, paper_problem, tell_parity, webhook
from backend.paper.switch import set_kill
from backend.store import Store
from simulator.errors import UserError
from tests.backend.paper import paper_scenes as scene

SECRET = "token-3141592"


class Receiver:
    """A webhook on this machine that refuses the first `refuses` posts."""

    def __init__(self, refuses: int = 0) -> None:
        self.alerts: list[dict[str, Any]] = []
        self.posts = 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.posts += 1
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if receiver.posts > refuses:
                    receiver.alerts.append(json.loads(body))
                self.send_response(200 if receiver.posts > refuses else 503)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/{SECRET}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def figures(folder: Path) -> str:
    return (folder / METRICS).read_text()


def test_the_figures_are_a_file_and_count_on_after_a_resume(tmp_path: Path) -> None:
    with Store.open("mem://") as store:
        outcome = scene.begin(store, tmp_path)
        entries = entries_of(store, scene.RUN)
    written = figures(tmp_path).splitlines()
    label = f'session="{scene.RUN}"'
    assert f"cryptosentinel_paper_bars_total{{{label}}} {outcome.bars}" in written
    assert f"cryptosentinel_paper_fills_total{{{label}}} {outcome.fills}" in written
    assert any(line.startswith(f'cryptosentinel_paper_position{{{label},symbol="AAAUSDT"}} ') for line in written)
    again = Monitor(scene.RUN, tmp_path, entries)
    counted = again.metrics().splitlines()
    again.close()
    assert [line for line in counted if "_seconds" not in line] == [line for line in written if "_seconds" not in line]


def test_a_difference_in_the_parity_is_an_alert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = Receiver()
    monkeypatch.setenv(WEBHOOK, receiver.url)
    tell_parity("paper-1", tmp_path, (), ())
    assert not receiver.alerts and not (tmp_path / METRICS).exists()
    tell_parity("paper-1", tmp_path, ("fill 3 at bar 7: price was 1.0, the backtest has 2.0", "another", "a third"), ())
    receiver.close()
    [alert] = receiver.alerts
    assert (alert["what"], alert["session"]) == ("parity", "paper-1")
    assert alert["detail"] == "fill 3 at bar 7: price was 1.0, the backtest has 2.0, and 2 more"
    assert 'alerts_total{session="paper-1",what="parity"} 1' in figures(tmp_path)


def test_alerts_reach_the_webhook_and_its_address_is_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind once, also where the receiver first refuses; a receiver that is not there is counted."""
    monkeypatch.setattr(monitors, "FIRST_WAIT", 0.01)
    receiver = Receiver(refuses=1)
    monkeypatch.setenv(WEBHOOK, receiver.url)
    monitor = Monitor("paper-1", tmp_path)
    empty = {
        "bar_index": 7, "bar": {"candles": {}}, "happened": {"ledger": []}, "guard": {"flat_rule": "daily_loss"},
        "account": {"equity": 1.0, "cash": 1.0, "positions": {}}, "missed": "",
    }  # fmt: skip
    monitor.entry("bar", 1, empty)
    monitor.entry("missed", 2, {"bar_index": 8, "guard": {"flat_rule": "max_drawdown"}, "missed": "x"})
    failed = {"rule": "guard_error", "symbol": "", "detail": "the guard failed and closes all positions"}
    monitor.entry("missed", 3, {"bar_index": 8, "missed": "x", "clamps": [failed]})
    monitor.entry("control", 3, {"bar_index": 8, "what": "freeze", "requests": []})
    try:
        raise RuntimeError(SECRET)
    except RuntimeError:
        monitor.close()
    receiver.close()
    assert [one["what"] for one in receiver.alerts] == [
        "loss_stop", "stale_data", "guard_shutdown", "guard_error", "kill", "session_dead",
    ]  # fmt: skip
    monkeypatch.setenv(WEBHOOK, f"http://127.0.0.1:{free_port()}/{SECRET}")
    monitor = Monitor("paper-1", tmp_path)
    monitor.alert("kill", 1, "x")
    monitor.close()
    assert 'alerts_undelivered_total{session="paper-1"} 1' in figures(tmp_path)
    assert SECRET not in figures(tmp_path) + json.dumps(receiver.alerts)


@pytest.mark.parametrize("address", ["ftp://{}", "http://[{}]/", "http://host:{}/", "http://?token={}", "{}"])
def test_a_webhook_that_is_no_address_is_refused_without_it(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv(WEBHOOK, address.format(SECRET))
    with pytest.raises(UserError, match="is not an http or https address") as refused:
        webhook()
    assert SECRET not in str(refused.value)


def test_a_session_that_is_killed_keeps_the_address_of_its_webhook_to_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing of it is in the store, the session's files or a log, whatever their level."""
    caplog.set_level("DEBUG")
    receiver = Receiver()
    monkeypatch.setenv(WEBHOOK, receiver.url)
    folder = tmp_path / "session"
    folder.mkdir()
    set_kill(folder, "flatten")
    with Store.open(tmp_path / "store") as store:
        assert scene.begin(store, folder).why == "flatten"
    receiver.close()
    assert [alert["what"] for alert in receiver.alerts] == ["kill"]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert folder / METRICS in files and not [path for path in files if SECRET.encode() in path.read_bytes()]
    assert not [record for record in caplog.records if SECRET in record.getMessage()]


def test_the_health_check_says_what_is_wrong(tmp_path: Path, store: Store) -> None:
    scene.begin(store, tmp_path)
    record = store.run(scene.RUN)  # as it was begun: running
    log = tmp_path / METRICS
    written = log.stat().st_mtime
    assert paper_problem(record, tmp_path, written + 10.0) == ""
    assert "no bar came" in paper_problem(record, tmp_path, written + 1e6)
    os.remove(log)
    assert "has not begun" in paper_problem(record, tmp_path, written)
    store.finish_run(scene.RUN, "failed", "DataError: x")
    assert "failed (DataError: x)" in paper_problem(store.run(scene.RUN), tmp_path, written)
    store.finish_run(scene.RUN, "finished", "finished")
    assert paper_problem(store.run(scene.RUN), tmp_path, written) == ""
