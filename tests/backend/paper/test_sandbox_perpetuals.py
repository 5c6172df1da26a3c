"""The sandbox with perpetuals: short and long positions, orders that can only reduce, the network's own view."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from backend.paper.journal import entries_of
from backend.paper.sandbox import SandboxMirror
from backend.paper.sessions import paper_parity, paper_status, resume_paper
from backend.paper.switch import set_kill, set_stop
from backend.store import Store
from backend.store.records import JournalRecord
from simulator.errors import UserError
from simulator.live import sandbox
from simulator.live.clock import SimulatedClock
from simulator.live.sandbox import KEY_VARIABLE, SECRET_VARIABLE, SandboxAccount, SandboxKeys
from tests.backend.paper.live_scenes import BARS, AfterBars, playing
from tests.live_scenes import MINUTE, START, minutes
from tests.mock_binance.futures_network import FuturesNetwork
from tests.mock_binance.sandbox_network import serving_network

KEY, SECRET = "distinctive-key-11ab47", "distinctive-secret-9d0e3c"
SYMBOLS = ("BTC/USDT:USDT", "ETH/USDT:USDT")


class Scene:
    """A test network of perpetuals, and the journal of a mirror."""

    def __init__(self) -> None:
        clock = SimulatedClock(START + 30 * MINUTE, 1.0)
        self.network = FuturesNetwork(minutes(60, ("BTCUSDT", "ETHUSDT")), clock, KEY, SECRET)
        self.entries: list[JournalRecord] = []
        self.url = ""

    def write(self, document: dict[str, Any]) -> None:
        self.entries.append(JournalRecord("run", len(self.entries), "sandbox", 0, document))

    def mirror(self) -> SandboxMirror:
        account = SandboxAccount("binance", SYMBOLS, SandboxKeys(KEY, SECRET), self.url)
        return SandboxMirror(account, "paper-20261123-011826-897", self.write, self.entries)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr(sandbox, "CONNECT_WAITS", (0.01, 0.01))
    scene = Scene()
    with serving_network(scene.network) as scene.url:
        yield scene


def follow(mirror: SandboxMirror, *positions: tuple[float, float]) -> None:
    for bar, (btc, eth) in enumerate(positions):
        mirror.follow(bar, dict(zip(SYMBOLS, (btc, eth), strict=True)))
        mirror.wait()


def test_nothing_that_trades_real_money_can_be_reached() -> None:
    account = SandboxAccount("binance", SYMBOLS, SandboxKeys(KEY, SECRET))
    assert all("demo-" in url for url in account._api.urls["api"].values())
    other = SandboxAccount("bybit", SYMBOLS, SandboxKeys(KEY, SECRET))
    assert all("testnet" in url for url in other._api.urls["api"].values())


def test_the_test_network_is_long_and_short_as_the_session_is(scene: Scene) -> None:
    mirror = scene.mirror()
    follow(mirror, (0.5, -2.0), (0.2, -2.0), (-0.3, -2.0), (-0.3, 0.0))
    mirror.close()
    assert mirror.differences == ()
    assert dict(scene.network.positions) == {"BTCUSDT": pytest.approx(-0.3), "ETHUSDT": 0.0}
    sent = [(one["side"], float(one["origQty"]), one["reduceOnly"]) for one in scene.network.orders.values()]
    # A turn is a close and an opening.
    assert sent == [
        ("BUY", 0.5, False), ("SELL", 2.0, False), ("SELL", 0.3, True), ("SELL", 0.2, True), ("SELL", 0.3, False),
        ("BUY", 2.0, True),
    ]  # fmt: skip


@settings(max_examples=8, deadline=None)
@example(positions=[(-3, 0), (-1, 0)], failing=[], killed=0)  # the difference is 0.19999999999999998
@given(
    positions=st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=1, max_size=5),
    failing=st.lists(st.sampled_from(["", "", "lost", "500", "429", "signature"]), max_size=8),
    killed=st.integers(0, 4),
)
def test_an_order_is_sent_once_whatever_fails_and_whenever_it_is_killed(
    positions: list[tuple[int, int]], failing: list[str], killed: int
) -> None:
    """A mirror that knows only the journal goes on in the place of the killed one."""
    scene = Scene()
    with serving_network(scene.network) as scene.url:
        mirror = scene.mirror()
        scene.network.failing = failing
        for bar, (btc, eth) in enumerate(positions):
            if bar == killed:
                mirror.close()
                scene.network.failing = []
                mirror = scene.mirror()
            follow(mirror, (0.1 * btc, float(eth)))
        scene.network.failing = []
        last = (0.1 * positions[-1][0], float(positions[-1][1]))
        follow(mirror, last, last, last)
        mirror.close()
    held = [scene.network.positions["BTCUSDT"], scene.network.positions["ETHUSDT"]]
    assert held == pytest.approx(list(last), abs=1e-9)
    assert mirror.differences == ()


def test_what_the_network_has_otherwise_is_told(scene: Scene) -> None:
    mirror = scene.mirror()
    follow(mirror, (0.5, 0.0))
    scene.network.positions["BTCUSDT"] = 0.0  # liquidated there
    follow(mirror, (0.5, 0.0))
    assert mirror.differences == ("BTC/USDT:USDT: the position changed by 0, our orders filled 0.5",)
    follow(mirror, (0.0, 0.0))  # what can only reduce opens nothing
    mirror.close()
    assert "not reached" in mirror.differences[0] and scene.network.positions["BTCUSDT"] == 0.0


def test_an_account_that_does_not_fit_is_refused_before_the_first_order(scene: Scene) -> None:
    scene.network.positions["ETHUSDT"] = -1.0
    with pytest.raises(UserError, match="has a position in ETH/USDT:USDT already"):
        scene.mirror()
    scene.network.positions.clear()
    scene.network.hedged = True
    with pytest.raises(UserError, match="set it to one-way mode"):
        scene.mirror()
    assert not scene.entries and not scene.network.orders


@pytest.mark.slow
def test_a_session_with_perpetuals_trades_there_too_and_the_kill_switch_closes_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    monkeypatch.setenv(SECRET_VARIABLE, SECRET)
    runs = tmp_path / "runs"
    with playing() as live, Store.open("mem://") as store:
        network = FuturesNetwork(minutes(BARS, ("BTCUSDT", "ETHUSDT")), live.clock, KEY, SECRET)
        with serving_network(network) as url:
            given = (f"paper.sandbox_url={url}", "paper.grace_seconds=60")
            outcome = live.run(
                store, runs, AfterBars(30, set_stop), symbols=SYMBOLS, broker="sandbox", overrides=given,
                decide_every=1,
            )  # fmt: skip
            there = {symbol: network.positions[symbol.partition(":")[0].replace("/", "")] for symbol in SYMBOLS}
            assert outcome.why == "stopped" and network.orders
            assert there == pytest.approx(outcome.positions, rel=1e-3, abs=1e-4)
            killed = resume_paper(
                outcome.run, store, runs, AfterBars(outcome.bars + 2, lambda folder: set_kill(folder, "flatten")),
                make_feed=live.feed,
            )  # fmt: skip
        assert killed.why == "flatten" and not any(network.positions.values())
        entries = entries_of(store, outcome.run)
        assert not any(KEY in repr(entry) or SECRET in repr(entry) for entry in entries)
        assert paper_status(outcome.run, store, runs)[1].sent == len(network.orders)
        assert paper_parity(outcome.run, store).differences == ()
