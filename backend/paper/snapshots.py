"""Snapshots of a session: where it stood after one of its bars, so that a resume does not take the whole journal again.

They are entries of the journal beside its order, in two places (`SLOTS`) that take turns: whatever happens while one
is written, the other is whole. A snapshot saves time and decides nothing: one that is missing, damaged, or not of this
journal is left out, and the journal is taken from its beginning. What a session forgot of its past is in the journal
too: `JournalReplay` makes the result of the whole session of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backend.builders.market import Account
from backend.paper.journal import (
    SLOTS,
    Journal,
    bar_from_json,
    entries_in_portions,
    entry_digest,
    history_from_json,
    history_to_json,
    requests_from_json,
)
from backend.store.store import Store
from simulator.backtest.run import BacktestResult
from simulator.errors import DataError
from simulator.exchange.carry import DELISTED_AFTER_MS
from simulator.exchange.tape import IMPACT_BARS
from simulator.live.broker import SimulatedBroker
from simulator.market.market import Market
from simulator.market.timeframes import interval_of


@dataclass(frozen=True)
class Shortening:
    """How much a session keeps: after every `every` bars it forgets all but the last `bars` bars, and takes a snapshot.

    It decides what the team can look back at, so it is written at the session's start and does not change.
    """

    every: int
    bars: int

    def first_bar(self, start: int, index: int) -> int:
        """The first bar that is known at the close of bar `index` of a session that began at bar `start`."""
        shortened = start + (index - start) // self.every * self.every
        return max(0, shortened + 1 - self.bars) if shortened > start else 0

    def to_json(self) -> dict[str, int]:
        """For the journal's start."""
        return {"every": self.every, "bars": self.bars}


def shortening(every: int, history_bars: int, timeframe: str) -> Shortening:
    """What a session keeps whose history is `history_bars` long. The account needs more where bars are short: two days,
    after which a symbol without bars counts as delisted, and the bars behind the market impact."""
    two_days = -(-DELISTED_AFTER_MS // interval_of(timeframe)) + 2
    return Shortening(every, max(history_bars, two_days, IMPACT_BARS + 2))


def shortening_of(start: Mapping[str, Any]) -> Shortening | None:
    """That of a session that is there, by its first entry; None for one that keeps everything."""
    kept = start.get("keeps")
    return None if kept is None else Shortening(int(kept["every"]), int(kept["bars"]))


def inside_of(start: Mapping[str, Any]) -> str:
    """The timeframe of the bars that a session's trades make, by its first entry; empty where it uses none."""
    return str(start.get("inside", ""))


@dataclass(frozen=True)
class Snapshot:
    """A session after its journal's entry `after`. `history` are the bars that it knew then."""

    after: int
    state: Mapping[str, Any]
    history: Market


def missed_before(state: Mapping[str, Any]) -> int:
    """How many decisions were missed before the snapshot with this state; {} is one of the beginning."""
    return int(state.get("missed", 0))


def write_snapshot(journal: Journal, number: int, time: int, state: Mapping[str, Any], history: Market) -> None:
    """Write where the session stands after the newest entry, as its snapshot `number`."""
    document = {**state, "history": history_to_json(history)}
    journal.write_snapshot(SLOTS[number % len(SLOTS)], time, {"digest": _digest(document), "state": document})


def newest_snapshot(store: Store, run: str) -> Snapshot | None:
    """The newest usable snapshot of a session; None without one."""
    found = []
    for entry in store.journal_between(run, min(SLOTS), 0):
        try:
            document = entry.document
            after, state = int(document["after"]), document["state"]
            [last] = store.journal_between(run, after, after + 1)
            same = document["digest"] == _digest(state) and document["entry"] == entry_digest(last.document)
            if same and last.kind == "bar":
                found.append(Snapshot(after, state, history_from_json(state["history"])))
        except (DataError, KeyError, TypeError, ValueError, OverflowError):
            continue
    return max(found, key=lambda one: one.after, default=None)


class JournalReplay:
    """The account of the session `run`, as far as its journal was read; `result` reads on."""

    def __init__(self, store: Store, run: str, start: Mapping[str, Any], account: Account) -> None:
        self._store, self._run, self._decide_every = store, run, int(start["decide_every"])
        self._broker = SimulatedBroker(
            history_from_json(start["history"]), account.cash, account.costs, account.max_leverage, account.venue,
            inside_of(start),
        )  # fmt: skip
        self._next = 1

    def result(self) -> BacktestResult:
        """The result of all that is in the journal by now."""
        for entry in entries_in_portions(self._store, self._run, self._next):
            data = entry.document
            if entry.kind == "bar":
                self._broker.extend(bar_from_json(data["bar"]))
            if data.get("requests") and not data.get("dropped"):
                self._broker.submit(*requests_from_json(data["requests"]))
            if entry.kind == "end":
                self._broker.finish()
            self._next = entry.ordinal + 1
        return self._broker.result(self._decide_every)


def _digest(state: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
