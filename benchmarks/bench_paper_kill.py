"""How fast the kill switch of a paper session acts while its model hangs and its store is busy: the worst of 100."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from backend.builders.market import Account
from backend.builders.teams import scripted_team
from backend.config.load import config_from_dict
from backend.paper.journal import EntryKind, Journal, history_to_json
from backend.paper.sessions import SessionParts, play_session
from backend.paper.switch import set_kill
from backend.runs.requests import SILENT
from backend.store.records import RunRecord
from backend.store.store import Store
from benchmarks.run import Result
from cryptosentinel.llm.engine import Completion, Request
from simulator.exchange.costs import Costs
from simulator.exchange.venue import Venue
from simulator.live.feed import RecordedFeed
from simulator.market.growing import part_of
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate

TIMES, TARGET = 100, 1.0
START, BARS, METRICS = 140, 150, 2_000


class _HangingEngine:
    """Never answers before it is released; `asked` is set at the first request."""

    name = "hanging"

    def __init__(self) -> None:
        self.asked, self.released = threading.Event(), threading.Event()

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        self.asked.set()
        self.released.wait()
        raise RuntimeError("the session is over")

    def policy_version(self, role: str) -> str:
        return "none"


class _TimedJournal(Journal):
    """Knows when the order of the kill switch was on disk."""

    acted = 0.0

    def write(self, kind: EntryKind, time_: int, document: dict[str, Any]) -> None:
        super().write(kind, time_, document)
        if kind == "control":
            self.acted = time.monotonic()


def run() -> list[Result]:
    """Seconds from the switch to its order on disk, while another thread writes to the same store without a pause."""
    busy = threading.Event()
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "store") as store:
        writer = threading.Thread(target=_write, args=(store, busy))
        writer.start()
        try:
            worst = max(_kill(store, Path(folder), number) for number in range(TIMES))
        finally:
            busy.set()
            writer.join()
    return [
        {
            "name": "paper.kill",
            "value": worst,
            "unit": f"s, the worst of {TIMES}",
            "against": "a second",
            "ratio": worst / TARGET,
            "target": f"<= {TARGET:g}",
            "met": worst <= TARGET,
        }
    ]


def _write(store: Store, busy: threading.Event) -> None:
    values = {f"manager/value/{number}": float(number) for number in range(METRICS)}
    step = 0
    while not busy.is_set():
        store.add_metrics("load", step % 100, values)
        step += 1


def _kill(store: Store, folder: Path, number: int) -> float:
    market = generate(SyntheticConfig(bars=BARS, seed=21, symbols=("AAAUSDT", "BBBUSDT")))
    market = part_of(market, 0, BARS, {"AAAUSDT": "spot", "BBBUSDT": "spot"})
    history, session = part_of(market, 0, START + 1, market.kinds), f"paper-{number}"
    start = {
        "history": history_to_json(history), "decide_every": 3, "cash": 10_000.0,
        "last": int(market.open_time[-1]),
    }  # fmt: skip
    config = config_from_dict({"paper": {"decision_timeout": 600.0}}, "the benchmark")
    engine = _HangingEngine()
    team = replace(scripted_team(config.team), engine=engine)
    store.add_run(RunRecord(session, "paper", 1, "hash", 0, {"team": "scripted"}))
    journal = _TimedJournal(store, session)
    journal.write("start", 0, start)
    account = Account(10_000.0, Costs(), 1.0, Venue())
    feed = RecordedFeed(market, account.venue, int(market.open_time[START]) + market.interval)
    (folder / session).mkdir()
    set_at: list[float] = []

    def kill() -> None:
        engine.asked.wait()
        set_at.append(time.monotonic())
        set_kill(folder / session, "freeze")

    thread = threading.Thread(target=kill)
    thread.start()
    record = store.run(session)
    play_session(SessionParts(store, record, folder / session, config, team, account, feed, journal, SILENT), [], start)
    thread.join()
    engine.released.set()
    store.finish_run(session, "interrupted")
    return journal.acted - set_at[0]
