"""A session on an exchange's live data, beside a mock exchange that plays faster than real time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from backend.paper import sessions
from backend.paper.journal import bar_from_json, entries_of
from backend.paper.sessions import paper_parity
from backend.paper.switch import set_stop
from backend.store.records import PAPER
from backend.store.store import Store
from tests.backend.paper import live_scenes as scene
from tests.live_scenes import MINUTE, START, minutes
from tests.mock_binance.faults import Faults

BAD = Faults(dropped=0.1, malformed=0.1, disconnects=20.0, failed=0.05)


def candles(store: Store, run: str) -> dict[tuple[int, str], tuple[float, ...]]:
    """What the session's bars hold, by bar and symbol."""
    bars = [bar_from_json(entry.document["bar"]) for entry in entries_of(store, run) if entry.kind == "bar"]
    assert [bar.open_time for bar in bars] == [bars[0].open_time + MINUTE * place for place in range(len(bars))]
    return {
        ((bar.open_time - START) // MINUTE, symbol): values for bar in bars for symbol, values in bar.candles.items()
    }


def check_bars(store: Store, run: str, count: int) -> None:
    """The session's candles are those of the exchange. On a machine that is busy, some may come too late for a clock
    that runs so fast."""
    market, taken = minutes(scene.BARS, ("BTCUSDT", "ETHUSDT")), candles(store, run)
    assert 1.6 * count < len(taken) <= 2 * count
    for (bar, symbol), values in taken.items():
        column = scene.SYMBOLS.index(symbol)
        names = ("open", "high", "low", "close", "volume")
        assert values == tuple(float(getattr(market, name)[bar, column]) for name in names), (bar, symbol)


def test_a_session_on_an_exchange_takes_its_bars_and_the_backtest_of_them_does_the_same(tmp_path: Path) -> None:
    with scene.playing() as live, Store.open("mem://") as store:
        outcome = live.run(store, tmp_path, scene.AfterBars(7, set_stop))
        assert outcome.why == "stopped" and outcome.bars >= 7
        check_bars(store, outcome.run, outcome.bars)
        record, start = store.run(outcome.run), entries_of(store, outcome.run)[0].document
        assert record.kind == PAPER and record.config["symbols"] == list(scene.SYMBOLS)
        assert record.config["config"]["paper"]["feed"] == "binance" and "ccxt" in record.config["versions"]
        # Steps and smallest orders are the exchange's own.
        assert start["rules"]["BTC/USDT"]["lot"] == 1e-5 and start["rules"]["BTC/USDT"]["min_notional"] == 5.0
        parity = paper_parity(outcome.run, store)
        assert parity.differences == () and parity.bars == outcome.bars


def test_a_session_that_was_away_fills_the_gap_and_says_what_it_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under faults, too: the bars of the gap are the exchange's, and decisions in it were missed."""
    with scene.playing(BAD) as live, Store.open("mem://") as store:
        # Real time, in which the network's answers come, is short here: a bar is waited for long.
        monkeypatch.setattr(sessions, "GRACE_SECONDS", 600.0)
        first = live.run(store, tmp_path, scene.AfterBars(4, set_stop))
        assert first.why == "stopped"
        time.sleep(9 * 60 / scene.SPEED)  # nine bars pass
        outcome = live.resume(first.run, store, tmp_path, scene.AfterBars(18, set_stop))
        assert outcome.why == "stopped" and outcome.bars >= 18
        check_bars(store, outcome.run, outcome.bars)
        missed = [entry.document for entry in entries_of(store, outcome.run) if entry.document.get("missed")]
        assert outcome.missed == len(missed) >= 2
        assert max(entry["late"] for entry in missed) > 3 * MINUTE  # what the guard sent then was late by all of it
        assert paper_parity(outcome.run, store).differences == ()
