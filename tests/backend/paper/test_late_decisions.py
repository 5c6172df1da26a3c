"""A model that thinks for longer than a bar: its orders reach the books when they can, and what it misses is said."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from backend.builders.market import Account, limits_of
from backend.config.load import config_from_dict
from backend.paper.journal import Journal, entries_of, history_to_json
from backend.paper.parity import check_parity
from backend.paper.sessions import SessionParts, play_session
from backend.runs.requests import SILENT
from backend.store.records import JournalRecord, RunRecord
from backend.store.store import Store
from benchmarks.bench_paper_slow_model import lively_minutes, timed_decisions
from cryptosentinel.llm.engine import Completion, Request
from simulator.exchange.costs import Costs
from simulator.exchange.venue import Venue
from simulator.live.clock import SimulatedClock
from simulator.live.recorded_feed import RecordedFeed
from simulator.market.growing import part_of
from simulator.market.market import Market
from simulator.market.timeframes import MINUTE_MS
from tests.backend.paper import paper_scenes as scene

RUN, HISTORY, BARS = "paper-late", 140, 20
ACCOUNT = Account(10_000.0, Costs(latency_ms=250), 1.0, Venue())


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
        store.add_run(RunRecord(RUN, "paper", scene.SEED, "hash", 0, {}))
        Journal(store, RUN).write("start", begins, start)
        parts = SessionParts(
            store, store.run(RUN), folder, config, team, ACCOUNT, feed, Journal(store, RUN, 1), SILENT
        )  # fmt: skip
        play_session(parts, [], start)
        entries = entries_of(store, RUN)
    again = scene.named_team()
    limits = limits_of(config.guard)
    return entries, check_parity(entries, again.team, again.engine, ACCOUNT, limits, scene.SEED).differences


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
