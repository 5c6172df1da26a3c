"""A model that thinks for longer than a bar: its orders reach the books when they can, and what it misses is said."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from backend.builders.market import Account, limits_of
from backend.config.load import config_from_dict
from backend.paper.journal import Journal, entries_of, history_from_json, history_to_json
from backend.paper.parity import check_parity
from backend.paper.sessions import SessionParts, play_session
from backend.runs.requests import SILENT
from backend.store.records import JournalRecord, RunRecord
from backend.store.store import Store
from cryptosentinel.llm.engine import Completion, Request
from simulator.exchange.costs import Costs
from simulator.exchange.venue import Venue
from simulator.live.feed import RecordedFeed, SimulatedClock
from simulator.market.growing import part_of
from simulator.market.market import Market
from simulator.market.timeframes import MINUTE_MS
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.backend.paper import paper_scenes as scene

RUN, HISTORY, BARS = "paper-late", 140, 20
ACCOUNT = Account(10_000.0, Costs(latency_ms=250), 1.0, Venue())


@dataclass(frozen=True)
class TimedDecision:
    """A decision in the books: the bar at whose close it was due, that close (ms), how long after it its orders were
    sent (ms, the largest), how many orders it has, and of each fill the bar and how late its order was (ms). `early`
    are fills in a bar that was over when the order was sent."""

    bar: int
    close: int
    late: int
    orders: int
    filled: tuple[tuple[int, int], ...]
    early: int


def timed_decisions(entries: Sequence[JournalRecord]) -> list[TimedDecision]:
    """What the journal says of each decision and its fills.

    A fill that an order stands behind belongs to the newest order for its symbol: a newer one replaces those that wait.
    """
    history = history_from_json(entries[0].document["history"])
    interval, first = history.interval, int(history.open_time[0])
    sent: dict[str, list[tuple[int, int, bool]]] = {}  # by symbol: bar, late, whether it is of a decision
    decided: list[tuple[int, int, int]] = []  # bar, late, orders
    for entry in entries[1:]:
        requests = [] if entry.document.get("dropped") else entry.document.get("requests", [])
        orders = [(str(one["symbol"]), int(late)) for one, late in requests if one["kind_of_record"] == "Order"]
        decides = entry.kind == "decision"
        bar = int(entry.document["bar"] if decides else entry.document.get("bar_index", 0))
        for symbol, late in orders:
            sent.setdefault(symbol, []).append((bar, late, decides))
        if decides:
            thought = max(int(one["thinking_ms"]) for one in entry.document["decisions"])
            decided.append((bar, max([thought, *(late for _, late in orders)]), len(orders)))
    filled: dict[int, list[tuple[int, int]]] = {}
    early: dict[int, int] = {}
    for entry in entries:
        for fill in entry.document["happened"]["ledger"] if entry.kind == "bar" else ():
            if fill["kind_of_record"] != "Fill" or fill["reason"] != "order":
                continue
            at = int(fill["bar"])
            bar, late, decides = [one for one in sent[fill["symbol"]] if one[0] < at][-1]
            if decides:
                filled.setdefault(bar, []).append((at, late))
                early[bar] = early.get(bar, 0) + ((at + 1) * interval <= (bar + 1) * interval + late)
    return [
        TimedDecision(bar, first + (bar + 1) * interval, late, count, tuple(filled.get(bar, ())), early.get(bar, 0))
        for bar, late, count in decided
    ]


def lively_minutes(bars: int, symbols: tuple[str, ...]) -> Market:
    """Spot bars of a minute that move as bars of four hours do: what moves less is not worth its costs, and nobody
    trades."""
    market = generate(SyntheticConfig(bars=bars, seed=3, symbols=symbols, edge=True))
    market = part_of(market, 0, len(market), dict.fromkeys(symbols, "spot"))
    times = int(market.open_time[0]) + MINUTE_MS * np.arange(bars, dtype=np.int64)
    return replace(market, timeframe="1m", open_time=times, funding={})


@cache
def market() -> Market:
    return lively_minutes(HISTORY + BARS, scene.SYMBOLS)


class SlowEngine:
    """The scripted team, for which each answer takes `milliseconds` of the feed's clock."""

    name = "slow"

    def __init__(self, feed: RecordedFeed, milliseconds: int) -> None:
        self._engine, self._feed, self._milliseconds = scene.named_team().engine, feed, milliseconds

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        assert isinstance(self._feed.clock, SimulatedClock)
        self._feed.clock.passed(self._milliseconds)
        return self._engine.generate(requests)

    def policy_version(self, role: str) -> str:
        return self._engine.policy_version(role)


def traded(folder: Path, milliseconds: int) -> tuple[list[JournalRecord], tuple[str, ...]]:
    """The journal of a session whose answers take so long, and how its backtest differs."""
    config = config_from_dict({"costs": {"thinking_time": "measured"}}, "a test")
    history = part_of(market(), 0, HISTORY, market().kinds)
    begins = int(history.open_time[-1]) + MINUTE_MS
    start = {
        "history": history_to_json(history), "decide_every": 1, "cash": ACCOUNT.cash,
        "last": int(market().open_time[-1]),
    }  # fmt: skip
    feed = RecordedFeed(market(), ACCOUNT.venue, begins, math.inf)
    team = replace(scene.named_team(), engine=SlowEngine(feed, milliseconds))
    with Store.open("mem://") as store:
        store.add_run(RunRecord(RUN, "paper", scene.SEED, "hash", 0, {"team": "scripted"}))
        Journal(store, RUN).write("start", begins, start)
        parts = SessionParts(
            store, store.run(RUN), folder, config, team, ACCOUNT, feed, Journal(store, RUN, 1), SILENT
        )  # fmt: skip
        play_session(parts, [], start)
        entries = entries_of(store, RUN)
    limits = limits_of(config.guard)
    return entries, check_parity(entries, scene.named_team(), ACCOUNT, limits, scene.SEED).differences


@pytest.mark.parametrize("milliseconds", [400, 31_000])
def test_late_decisions_are_late_in_the_books(tmp_path: Path, milliseconds: int) -> None:
    entries, differences = traded(tmp_path, milliseconds)
    decisions = timed_decisions(entries)
    fills = [(one.bar, bar, late + ACCOUNT.costs.latency_ms) for one in decisions for bar, late in one.filled]
    assert fills and differences == ()
    assert sum(one.early for one in decisions) == 0
    arrivals = [(bar, decided + 1 + late // MINUTE_MS) for decided, bar, late in fills]
    assert all(bar >= arrival for bar, arrival in arrivals)
    assert any(bar == arrival for bar, arrival in arrivals), "what has arrived trades"
    missed = [entry for entry in entries if entry.document.get("missed")]
    assert bool(missed) == (max(one.late for one in decisions) > MINUTE_MS)
    if milliseconds == 31_000:
        assert min(one.late for one in decisions) > 2 * MINUTE_MS
        # A model cannot think about two closes at once: no decision was begun before the former one was made.
        begun = [int(entry.document["begun"]) for entry in entries if entry.kind == "decision"]
        made = [one.close + one.late for one in decisions]
        starts = [one.close + later for one, later in zip(decisions, begun, strict=True)]
        assert all(start >= before for start, before in zip(starts[1:], made, strict=False))
        assert len(missed) > len(decisions)
