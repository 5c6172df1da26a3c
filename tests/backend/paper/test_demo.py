"""The demonstration of paper trading, and a journal that is read while it is written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from backend.paper.demo import paper_demo
from backend.paper.journal import Journal, entries_in_portions, entries_of
from backend.runs.requests import Observer
from backend.store.errors import StoreError
from backend.store.records import JournalRecord
from backend.store.store import Store
from simulator.errors import UserError
from simulator.market.timeframes import HOUR_MS

RUN = "paper-read"
NOTICE = {"kind": "test", "detail": ""}
START = {"history": {}, "decide_every": 1, "last": None, "cash": 1.0}


class Lines(Observer):
    """Keeps what was shown."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.bars: list[int] = []

    def message(self, text: str) -> None:
        self.lines.append(text)

    def progress(self, what: str, done: int, total: int) -> None:
        self.bars.append(done)


def test_what_is_written_while_a_journal_is_read_is_no_damage(store: Store) -> None:
    journal = Journal(store, RUN)
    for number in range(3):
        journal.write("notice" if number else "start", number, NOTICE if number else START)
    reading = entries_in_portions(store, RUN)
    read = [next(reading).ordinal]
    journal.write("notice", 3, NOTICE)
    read += [one.ordinal for one in reading]
    assert read == [0, 1, 2, 3]
    store.put(JournalRecord(RUN, 5, "notice", 5, NOTICE))
    with pytest.raises(StoreError, match="not whole"):
        list(entries_in_portions(store, RUN))
    with pytest.raises(StoreError, match="not whole"):
        list(entries_in_portions(store, "paper-none"))
    assert list(entries_in_portions(store, RUN, 9)) == []


def test_a_demonstration_of_two_processes_needs_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="name a folder"):
        paper_demo("mem://", tmp_path)


@pytest.mark.slow
def test_a_week_is_traded_through_three_kills_and_the_backtest_of_it_does_the_same(tmp_path: Path) -> None:
    shown = Lines()
    made = paper_demo(tmp_path / "store", tmp_path, shown)
    assert made.outcome.why == "finished" and made.outcome.bars == 42
    with Store.open(tmp_path / "store") as store:
        opened = [
            int(one.document["bar"]["open_time"]) for one in entries_of(store, made.outcome.run) if one.kind == "bar"
        ]
    assert len(opened) == made.outcome.bars and set(np.diff(opened)) == {4 * HOUR_MS}
    assert made.kills == 3 and len(shown.lines) == 3 and shown.bars == sorted(shown.bars)
    assert made.outcome.decisions + made.outcome.missed > 40 and made.outcome.fills > 0
    assert made.parity.differences == ()
