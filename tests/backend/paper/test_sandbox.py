"""The sandbox: the test network holds what the session holds, each order once, and no key is told to anybody."""

from __future__ import annotations

import logging
import resource
import traceback
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from backend.paper import sandbox
from backend.paper.journal import entries_of
from backend.paper.sandbox import KEY_VARIABLE, SECRET_VARIABLE, SandboxAccount, SandboxKeys, SandboxMirror, sole_use
from backend.paper.sessions import paper_parity, paper_status, sandbox_figures
from backend.paper.switch import set_stop
from backend.store import Store
from backend.store.records import JournalRecord
from simulator.errors import RunFailed, UserError
from simulator.live.clock import SimulatedClock
from tests.backend.paper.live_scenes import BARS, AfterBars, playing
from tests.live_scenes import MINUTE, START, minutes
from tests.mock_binance.sandbox_network import SandboxNetwork, serving_network

KEY, SECRET = "distinctive-key-7f3a91", "distinctive-secret-c02b55"
SYMBOLS = ("BTC/USDT", "ETH/USDT")


class Scene:
    """A test network, an account there, and the journal of a mirror."""

    def __init__(self) -> None:
        clock = SimulatedClock(START + 30 * MINUTE, 1.0)
        self.network = SandboxNetwork(minutes(60, ("BTCUSDT", "ETHUSDT")), clock, KEY, SECRET)
        self.entries: list[JournalRecord] = []
        self.url = ""

    def account(self, key: str = KEY, secret: str = SECRET, symbols: tuple[str, ...] = SYMBOLS) -> SandboxAccount:
        return SandboxAccount("binance", symbols, SandboxKeys(key, secret), self.url)

    def write(self, document: dict[str, Any]) -> None:
        self.entries.append(JournalRecord("run", len(self.entries), "sandbox", 0, document))

    def mirror(self) -> SandboxMirror:
        return SandboxMirror(self.account(), "paper-20261123-011826-897", self.write, self.entries)

    def held(self, base: str) -> float:
        return self.network.balances[base] - {"BTC": 1.0, "ETH": 10.0}[base]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr(sandbox, "CONNECT_WAITS", (0.01, 0.01))
    scene = Scene()
    with serving_network(scene.network) as scene.url:
        yield scene


def follow(mirror: SandboxMirror, *positions: tuple[float, float]) -> None:
    """Give these positions one after the other, each when the one before it is done."""
    for bar, (btc, eth) in enumerate(positions):
        mirror.follow(bar, {"BTC/USDT": btc, "ETH/USDT": eth})
        mirror.wait()


def test_the_test_network_holds_what_the_session_holds(scene: Scene) -> None:
    mirror = scene.mirror()
    follow(mirror, (0.5, 0.0), (0.5, 2.0), (0.5, 2.0), (0.2, 2.0))
    assert mirror.differences == ()
    assert scene.held("BTC") == pytest.approx(0.2, abs=0.002) and scene.held("ETH") == pytest.approx(2.0, rel=0.002)
    assert len(scene.network.orders) == 3  # nothing is sent where nothing has changed
    follow(mirror, (-0.1, 2.0))
    assert "short by 0.1, which a spot account cannot be" in " ".join(mirror.differences)
    mirror.close()
    # What stands in the journal is there before it is sent.
    names = [name for entry in scene.entries for name, _, _ in entry.document.get("sends", ())]
    assert names == list(scene.network.orders) and sandbox_figures(scene.entries) == (4, mirror.differences)


@pytest.mark.parametrize("failure", ["lost", "500", "429", "signature"])
def test_an_order_is_sent_once_whatever_happens_to_its_answer(scene: Scene, failure: str) -> None:
    """Also across a kill: the next program asks for it by its name."""
    mirror = scene.mirror()
    scene.network.failing = [failure]
    follow(mirror, (0.5, 0.0))
    assert "not reached" in mirror.differences[0]
    mirror.close()
    again = scene.mirror()
    follow(again, (0.5, 0.0), (0.5, 0.0))
    again.close()
    assert again.differences == () and scene.held("BTC") == pytest.approx(0.5, rel=0.002)
    assert len(scene.network.orders) == 1


def test_what_the_test_network_has_otherwise_is_told(scene: Scene) -> None:
    mirror = scene.mirror()
    follow(mirror, (0.5, 0.0))
    scene.network.balances["BTC"] += 0.3  # somebody else traded
    follow(mirror, (0.5, 0.0))
    mirror.close()
    assert "BTC: the balance changed by 0.7" in " ".join(mirror.differences)


def test_two_sessions_on_one_account_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    keys = SandboxKeys(KEY, SECRET)
    with sole_use(keys):
        second = sole_use(keys)
        with pytest.raises(UserError, match="another session trades on this sandbox account"):
            second.__enter__()
    with sole_use(keys):
        pass


def test_what_cannot_be_used_is_refused_before_the_first_order(scene: Scene) -> None:
    with pytest.raises(UserError, match="needs keys of the exchange's test network in CRYPTOSENTINEL_SANDBOX_KEY"):
        SandboxKeys.from_environment({KEY_VARIABLE: KEY})
    with pytest.raises(UserError, match="refuses the keys"):
        scene.account(key="wrong").connect()
    with pytest.raises(UserError, match="refuses the keys"):
        scene.account(secret="wrong").connect()
    with pytest.raises(UserError, match="has no DOGE/USDT"):
        scene.account(symbols=("DOGE/USDT",)).connect()
    for symbols in (("BTC/USD:BTC",), ("BTC/USDT", "ETH/USDT:USDT")):
        with pytest.raises(UserError, match="it takes spot, as BTC/USDT"):
            scene.account(symbols=symbols)
    with pytest.raises(UserError, match="no test network"):
        SandboxAccount("kraken", SYMBOLS, SandboxKeys(KEY, SECRET))
    scene.url = "http://127.0.0.1:9"
    with pytest.raises(RunFailed, match="cannot be reached"):
        scene.account().connect()


def test_a_failure_that_passes_does_not_end_the_connection(scene: Scene) -> None:
    """Two answers 500 in a row are asked again; a third one is told."""
    scene.network.failing = ["500", "500"]
    assert scene.account().connect()["BTC"] == 1.0 and scene.network.failing == []
    scene.network.failing = ["500"] * 3
    with pytest.raises(RunFailed, match="cannot be reached"):
        scene.account().connect()


def test_no_key_is_told(scene: Scene, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    """Failures of every kind, and everything that is said or kept of them."""
    caplog.set_level(logging.DEBUG)
    said: list[str] = [repr(SandboxKeys.from_environment({KEY_VARIABLE: KEY, SECRET_VARIABLE: SECRET}))]
    mirror = scene.mirror()
    scene.network.failing = ["500", "signature", "lost", "429", "500", "signature"]
    follow(mirror, *((0.1 * step, 0.0) for step in range(1, 9)))
    mirror.close()
    assert any("not reached" in repr(entry.document) for entry in scene.entries)
    for key, secret in ((KEY + "x", SECRET), (KEY, SECRET + "x")):
        try:
            scene.account(key, secret).connect()
        except UserError:
            said.append(traceback.format_exc())
    scene.url = "http://127.0.0.1:9"
    try:
        scene.account().connect()
    except RunFailed:
        said.append(traceback.format_exc())
    said += [repr(entry) for entry in scene.entries] + [record.getMessage() for record in caplog.records]
    said += [repr(mirror.differences), repr(mirror), *capfd.readouterr()]
    assert len(said) > 10 and not any(KEY in one or SECRET in one for one in said)


@pytest.mark.slow
def test_a_session_with_a_sandbox_under_failures_keeps_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """From end to end: journal, record, status, report's words, files; and no core dump could hold one."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    monkeypatch.setenv(SECRET_VARIABLE, SECRET)
    runs = tmp_path / "runs"
    with playing() as live, Store.open("mem://") as store:
        network = SandboxNetwork(minutes(BARS, ("BTCUSDT", "ETHUSDT")), live.clock, KEY, SECRET)
        with serving_network(network) as url:
            monkeypatch.setattr(sandbox, "SandboxAccount", partial(SandboxAccount, url=url))

            class Acting(AfterBars):
                def progress(self, what: str, done: int, total: int) -> None:
                    if done == 2:
                        network.failing = ["signature", "500", "lost"]
                    super().progress(what, done, total)

            acting = Acting(7, set_stop)
            outcome = live.run(store, runs, acting, broker="sandbox", decide_every=1)
            network.failing = []
            assert resource.getrlimit(resource.RLIMIT_CORE)[0] == 0
            resumed = live.resume(outcome.run, store, runs, AfterBars(outcome.bars + 4, set_stop))
        assert resumed.why == "stopped" and network.requests["GET account"] > 4
        entries = entries_of(store, outcome.run)
        status = paper_status(outcome.run, store, runs)
        assert len(network.orders) == len({one["clientOrderId"] for one in network.orders.values()}) <= status[1].sent
        said = [repr(entries), repr(status), repr(store.run(outcome.run)), *capfd.readouterr()]
        said += [path.read_text(errors="replace") for path in runs.rglob("*") if path.is_file()]
        assert any(entry.kind == "sandbox" for entry in entries)
        assert not any(KEY in one or SECRET in one for one in said)
        assert paper_parity(outcome.run, store).differences == ()
