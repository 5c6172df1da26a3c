"""Keys of the sandbox and the address of the webhook stay where they are: sessions with all that they can have, looked
at from every side."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import ui.access
from backend.paper import monitor, sandbox
from backend.paper.journal import entries_of
from backend.paper.monitor import LOG, WEBHOOK, webhook
from backend.paper.sandbox import KEY_VARIABLE, SECRET_VARIABLE, SandboxAccount
from backend.paper.switch import set_kill
from backend.store import Store
from backend.store.records import PAPER
from simulator.errors import UserError
from tests.backend.paper.live_scenes import BARS, AfterBars, playing
from tests.backend.paper.test_monitor import Receiver
from tests.command_line import Run, program
from tests.live_scenes import minutes
from tests.mock_binance.sandbox_network import SandboxNetwork, serving_network
from tests.ui.page_client import open_page

KEY, SECRET = "distinctive-key-5d0e12", "distinctive-secret-88aa31"
TOKEN = "distinctive-token-e61f77"


class Looker:
    """What can be seen of sessions in a folder that is the current one, with the store and the runs in it."""

    def __init__(
        self, folder: Path, run: Run, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.folder, self.store, self.runs = folder, folder / "runs" / "store", folder / "runs"
        self.receiver = Receiver(refuses=1)
        self.seen: list[str] = []
        self._run, self._caplog, self._capsys = run, caplog, capsys

    def command(self, *given: str) -> int:
        """The exit code of a command; its words are kept."""
        self.seen += self._capsys.readouterr()
        result = self._run("paper", *given)
        self.seen += [result.out, result.err]
        return result.code

    def look(self, session: str) -> None:
        """Look at page, commands, store, alerts, logs, output and files; nothing of them may hold a secret."""
        for part in (["status"], ["status", session, "--check"], ["report", session]):
            self.command(*part)
        with Store.open(self.store) as store:
            for record in store.runs():
                self.seen.append(repr(record))
                if record.kind == PAPER:
                    self.seen += map(repr, entries_of(store, record.run))
        page = open_page("views/paper.py", session=session)
        assert not page.exception and len(page.metric) == 5, "the page shows the session"
        self.seen += [repr(page.main), repr(self.receiver.alerts), *self._capsys.readouterr()]
        self.seen += [record.getMessage() for record in self._caplog.records]
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        assert self.runs / session / LOG in files and len(self.seen) > 20
        for secret in (KEY, SECRET, TOKEN):
            assert not [words for words in self.seen if secret in words], secret
            assert not [path for path in files if secret.encode() in path.read_bytes()], secret


@pytest.fixture
def looker(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Looker]:
    caplog.set_level(logging.DEBUG)
    looker = Looker(tmp_path, program(tmp_path, monkeypatch, capsys), caplog, capsys)
    environment = {
        KEY_VARIABLE: KEY, SECRET_VARIABLE: SECRET, "XDG_STATE_HOME": str(tmp_path),
        WEBHOOK: f"{looker.receiver.url}/hook?token={TOKEN}", "CRYPTOSENTINEL_STORE": str(looker.store),
    }  # fmt: skip
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ui.access, "_READ_SECONDS", 60.0)
    monkeypatch.setattr(monitor, "FIRST_WAIT", 0.01)
    yield looker
    looker.receiver.close()


def test_a_session_with_everything_leaves_no_secret(looker: Looker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sandbox with failures, webhook that first refuses, figures, a promotion that is refused, kill, page."""
    with playing() as live:
        network = SandboxNetwork(minutes(BARS, ("BTCUSDT", "ETHUSDT")), live.clock, KEY, SECRET)
        network.failing = ["500"]
        with serving_network(network) as url, Store.open(looker.store) as store:
            monkeypatch.setattr(sandbox, "SandboxAccount", partial(SandboxAccount, url=url))
            killed = AfterBars(4, lambda session: set_kill(session, "flatten"))
            outcome = live.run(store, looker.runs, killed, broker="sandbox")
            kinds = {entry.kind for entry in entries_of(store, outcome.run)}
    assert outcome.why == "flatten" and {"sandbox", "control"} <= kinds and network.requests["GET account"] > 1
    assert {alert["what"] for alert in looker.receiver.alerts} == {"kill"}
    assert looker.receiver.posts == len(looker.receiver.alerts) + 1, "the first one was refused"
    assert looker.command("promote", outcome.run, "--team", "runs/none") == 2
    looker.look(outcome.run)


@pytest.mark.parametrize("address", ["ftp://{}", "http://[{}]/", "http://host:{}/", "http://?token={}", "{}"])
def test_a_webhook_that_is_no_address_is_refused_without_it(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv(WEBHOOK, address.format(TOKEN))
    with pytest.raises(UserError, match="is not an http or https address") as refused:
        webhook()
    assert TOKEN not in str(refused.value)
