"""Keys of the sandbox and the address of the webhook stay where they are: sessions with all that they can have, looked
at from every side."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import backend.paper.records.stored
import ui.access
from backend.builders.loaded_team import LoadedTeam, scripted_team
from backend.config.schema import Config
from backend.paper import alerts
from backend.paper.alerts import WEBHOOK, webhook
from backend.paper.journal import entries_of
from backend.paper.monitor import LOG
from backend.paper.sessions import resume_paper
from backend.paper.switch import set_kill, set_stop
from backend.store import Store
from backend.store.records import PAPER
from simulator.errors import UserError
from simulator.live.sandbox import KEY_VARIABLE, PASSPHRASE_VARIABLE, SECRET_VARIABLE
from tests.backend.paper.live_scenes import BARS, AfterBars, playing
from tests.backend.paper.test_monitor import Receiver, free_port, get
from tests.backend.paper.test_promotion import SESSION, SHADOWED, judge, shadowed
from tests.command_line import Run, program
from tests.live_scenes import minutes
from tests.mock_binance.sandbox_network import SandboxNetwork, serving_network
from tests.small_world import team_in
from tests.ui.page_client import open_page

KEY, SECRET, PASSPHRASE = "distinctive-key-5d0e12", "distinctive-secret-88aa31", "distinctive-phrase-4b7c90"
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
        for part in (["status"], ["status", session, "--check"], ["report", session, "--no-drift"]):
            self.command(*part)
        with Store.open(self.store, reads_only=True) as store:
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
        for secret in (KEY, SECRET, PASSPHRASE, TOKEN):
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
        KEY_VARIABLE: KEY, SECRET_VARIABLE: SECRET, PASSPHRASE_VARIABLE: PASSPHRASE, "XDG_STATE_HOME": str(tmp_path),
        WEBHOOK: f"{looker.receiver.url}/hook?token={TOKEN}", "CRYPTOSENTINEL_STORE": str(looker.store),
    }  # fmt: skip
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ui.access, "_READ_SECONDS", 60.0)
    monkeypatch.setattr(alerts, "FIRST_WAIT", 0.01)
    yield looker
    looker.receiver.close()


def test_a_session_with_everything_leaves_no_secret(looker: Looker) -> None:
    """Sandbox with failures, shadow, webhook that first refuses, metrics, a promotion that is refused, kill, page."""
    port = free_port()

    def look_and_kill(session: Path) -> None:
        looker.seen.extend(repr(get(port, path)) for path in ("/metrics", "/health", "/other"))
        set_kill(session, "flatten")

    with playing() as live:
        network = SandboxNetwork(minutes(BARS, ("BTCUSDT", "ETHUSDT")), live.clock, KEY, SECRET)
        network.failing = ["500"]
        with serving_network(network) as url, Store.open(looker.store) as store:
            given = (f"paper.sandbox_url={url}", "guard.max_net_exposure=1", f"paper.metrics_port={port}")
            outcome = live.run(
                store, looker.runs, AfterBars(4, look_and_kill), broker="sandbox", overrides=given, shadow="scripted"
            )
            kinds = {entry.kind for entry in entries_of(store, outcome.run)}
    assert outcome.why == "flatten" and {"sandbox", "control"} <= kinds and network.requests["GET account"] > 1
    assert {alert["what"] for alert in looker.receiver.alerts} == {"kill"}
    assert looker.receiver.posts == len(looker.receiver.alerts) + 1, "the first one was refused"
    assert looker.command("promote", outcome.run) == 2
    looker.look(outcome.run)


@pytest.mark.slow
def test_a_promotion_leaves_no_secret(looker: Looker, nano: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def team(name: str, config: Config) -> LoadedTeam:
        return scripted_team(config.team, "expert" if name == "scripted" else "random_all").renamed(name)

    monkeypatch.setattr(backend.paper.records.stored, "subject_of", team)
    folder = team_in(looker.folder / "better", nano)
    with Store.open(looker.store) as store:
        shadowed(store, looker.runs, folder)
        judge(store, folder)
    assert looker.command("promote", SESSION) == 0
    with Store.open(looker.store) as store:
        resume_paper(SESSION, store, looker.runs, AfterBars(SHADOWED + 4, set_stop))
        assert "promotion" in {entry.kind for entry in entries_of(store, SESSION)}
    looker.look(SESSION)


@pytest.mark.parametrize("address", ["ftp://{}", "http://[{}]/", "http://host:{}/", "http://?token={}", "{}"])
def test_a_webhook_that_is_no_address_is_refused_without_it(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv(WEBHOOK, address.format(TOKEN))
    with pytest.raises(UserError, match="is no http or https address") as refused:
        webhook()
    assert TOKEN not in str(refused.value)
