"""A small paper session with everything that a feed can do to it, and what its account looks like at the end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from backend.builders.loaded_team import LoadedTeam, scripted_team
from backend.builders.market import Account
from backend.builders.strategies import named_strategy
from backend.config.load import config_from_dict
from backend.config.schema import Config
from backend.paper.journal import EntryKind, Journal, entries_of, history_to_json
from backend.paper.sessions import PaperOutcome, SessionParts, play_session
from backend.runs.backtest import Subject
from backend.runs.requests import SILENT
from backend.store.records import JournalRecord, RunRecord
from backend.store.store import Store
from cryptosentinel.llm.engine import Completion, Engine, Request
from simulator.exchange.costs import Costs
from simulator.exchange.venue import Venue
from simulator.live.events import Candle, FeedEvent, Funding
from simulator.live.feed import RecordedFeed
from simulator.market.growing import part_of
from simulator.market.market import Market
from simulator.market.timeframes import BAR_COLUMNS
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate

SYMBOLS = ("AAAUSDT", "BBBUSDT")
START, STOP, DECIDE_EVERY, RUN, SEED = 140, 163, 3, "paper-test", 7
# Volumes are so small a share of what is wanted that most orders fill in parts.
ACCOUNT = Account(1_000_000.0, Costs(impact=1.0, participation=0.02, latency_ms=250), 1.0, Venue())


@cache
def market() -> Market:
    """4h bars with two holes, one of them at a close at which something is decided."""
    whole = generate(SyntheticConfig(bars=STOP + 1, seed=21, symbols=SYMBOLS))
    kinds: dict[str, Any] = {"AAAUSDT": "perpetual", "BBBUSDT": "spot"}
    holed = part_of(whole, 0, STOP + 1, kinds)
    for bar, column in ((145, 0), (152, 1)):
        for name in BAR_COLUMNS:
            getattr(holed, name)[bar, column] = np.nan
    return holed


class FaultyFeed(RecordedFeed):
    """Recorded data in which some candles come twice, one with other numbers, and one only with the next bar."""

    _late: Candle | None = None
    _again: FeedEvent | None = None

    def next(self, timeout_s: float) -> FeedEvent | None:
        """As the recording, but for what is said above."""
        if self._again is not None:
            again, self._again = self._again, None
            return again
        event = super().next(timeout_s)
        if not isinstance(event, Candle):
            return event
        bar = int((event.open_time - int(market().open_time[0])) // market().interval)
        if self._late is not None:
            self._again, self._late = replace(self._late, known_at=event.known_at), None
        elif (bar, event.symbol) == (149, "BBBUSDT"):
            self._late = event
            return None
        elif bar % 5 == 0:
            self._again = event
        elif bar % 7 == 0:
            self._again = replace(event, volume=event.volume + 1.0)
        return event

    def backfill(self, since: int, until: int) -> Sequence[Candle | Funding]:
        """Nothing: what is missing is missing."""
        return ()


def settings(**paper: Any) -> Config:
    return config_from_dict({"paper": paper, "costs": {"thinking_time": 20}}, "a test")


class StruckError(BaseException):
    """Stands for a kill: nothing in the program expects it."""


class StruckJournal(Journal):
    """Ends the program at a write: just before it, or just after."""

    def __init__(self, store: Store, written: int, at: int, before: bool) -> None:
        super().__init__(store, RUN, written)
        self._left, self._before = at, before

    def write(self, kind: EntryKind, time: int, document: dict[str, Any]) -> None:
        """As a journal, but for the strike."""
        self._left -= 1
        if self._left == 0 and self._before:
            raise StruckError
        super().write(kind, time, document)
        if self._left == 0:
            raise StruckError


def begin(store: Store, folder: Path, **given: Any) -> PaperOutcome:
    """A session from its start."""
    history = part_of(market(), 0, START + 1, market().kinds)
    document = {
        "history": history_to_json(history), "decide_every": DECIDE_EVERY, "cash": ACCOUNT.cash,
        "last": int(market().open_time[STOP]),
    }  # fmt: skip
    store.add_run(RunRecord(RUN, "paper", SEED, "hash", 0, {"team": "scripted"}))
    Journal(store, RUN).write("start", int(history.open_time[-1]), document)
    return go_on(store, folder, **given)


def go_on(
    store: Store,
    folder: Path,
    *,
    strike_at: int = 0,
    before: bool = False,
    engine: Engine | None = None,
    config: Config | None = None,
    released: bool = False,
    strategy: str = "",
) -> PaperOutcome:
    """The session from where its journal ends."""
    entries = entries_of(store, RUN)
    stated = config or settings()
    team: Subject = named_strategy(strategy) if strategy else scripted_team(stated.team)
    if engine is not None and isinstance(team, LoadedTeam):
        team = replace(team, engine=engine)
    begins = int(market().open_time[START]) + market().interval
    feed = FaultyFeed(market(), ACCOUNT.venue, begins, math.inf)
    journal = StruckJournal(store, len(entries), strike_at, before)
    folder.mkdir(parents=True, exist_ok=True)
    parts = SessionParts(store, store.run(RUN), folder, stated, team, ACCOUNT, feed, journal, SILENT)
    return play_session(parts, entries[1:], entries[0].document, released)


def books(entries: Sequence[JournalRecord]) -> list[Any]:
    """What came of the account: each bar with what filled and was refused, what it was worth, and each decision."""
    found: list[Any] = []
    for entry in entries:
        data = entry.document
        if entry.kind == "bar":
            found.append((data["bar_index"], data["bar"], data["happened"], data["account"], data.get("requests")))
        elif entry.kind == "decision":
            found.append((data["bar"], data["requests"], data["guard"]))
    return found


def named_team() -> LoadedTeam:
    return scripted_team(settings().team)


class HangingEngine:
    """Answers as `engine` until a number of requests, and from then on hangs until it is released."""

    name = "hanging"

    def __init__(self, engine: Engine, answers: int, hang: Any) -> None:
        self._engine, self._left, self._hang = engine, answers, hang

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        self._left -= len(requests)
        if self._left < 0:
            self._hang()
        return self._engine.generate(requests)

    def policy_version(self, role: str) -> str:
        return self._engine.policy_version(role)
