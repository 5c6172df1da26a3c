"""What is read of the store for the page of runs, kept for all tabs and made ready before the first visit; and how a
page follows the store."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import streamlit as st

from backend.reporting.backtest_sections import SECTIONS, section
from backend.reporting.blocks import Picture
from backend.reporting.run_table import RunRow, bare_row, run_row
from backend.store.manifest import last_write
from backend.store.records import PAPER, RunRecord
from backend.store.store import Store
from ui.access import RunKey, key_of, mistakes_explained, open_store, read_run, section_kept, store_name

LOOK_SECONDS = 1.0
_ROW_SECONDS = 0.5  # for which a look waits for rows that nobody has read yet
_TRUSTED_SECONDS = 10.0  # for which a store that looks unchanged is not opened
_LOOKING = threading.Lock()
_SEEN: dict[str, Any] = {}  # what the last look of any tab has found
_ROWS: dict[RunKey, RunRow] = {}  # of runs that have ended


def rows_of(store: Store, runs: Sequence[RunRecord], seconds: float | None = None) -> tuple[list[RunRow], int]:
    """A row for each run, and how many of them still lack the result, since reading it took too long: they are read at
    a further look. The row of a run that has ended is made once."""
    until = time.monotonic() + (_ROW_SECONDS if seconds is None else seconds)
    rows, left = [], 0
    for run in runs:
        key = key_of(run)
        if run.status == "running":
            rows.append(_row(store, run))
        elif key in _ROWS or time.monotonic() < until:
            if key not in _ROWS:
                _ROWS[key] = _row(store, run)
            rows.append(_ROWS[key])
        else:
            rows.append(bare_row(run))
            left += 1
    return rows, left


def _row(store: Store, run: RunRecord) -> RunRow:
    if run.kind != PAPER:
        return run_row(store, run)
    # It needs the libraries of models and exchanges, which take seconds and which no other run needs.
    from backend.paper.overview import session_row

    return session_row(store, run)


def table_state(store: Store) -> list[str]:
    """What is another one when something of the table of runs has changed: name, status and end of each run."""
    return [*map(repr, store.connection.query("SELECT run, status, started_at, finished_at FROM run ORDER BY run"))]


def current_state() -> list[str]:
    """`table_state` of the store as it is now. The store is not opened where nobody has written since the last look of
    anybody here. Raises `StoreError`."""
    with _LOOKING:
        where, seen = store_name(), _SEEN
        mark = last_write(where)
        if mark is None or (where, mark) != seen.get("mark") or time.monotonic() > seen["until"]:
            with open_store() as store:
                state = table_state(store)
            _keep_state(state)
        state = seen["state"]
        return state


class RunsLook(NamedTuple):
    """The runs of the store with their rows, the newest first, how many rows are left unread, and the `table_state`
    that all this is of."""

    runs: list[RunRecord]
    rows: list[RunRow]
    unread: int
    state: list[str]


def look_at_runs() -> RunsLook:
    """All that the table of runs shows. Raises `StoreError`."""
    with open_store() as store:
        state = table_state(store)
        runs = store.runs()
        look = RunsLook(runs, *rows_of(store, runs), state)
        now = table_state(store)  # what was written while rows were read is seen at the next look
    with _LOOKING:
        _keep_state(now)
    return look


def _keep_state(state: list[str]) -> None:
    """What the store, which was just closed, was like. To open it writes too, so the mark is that of the closed one.
    A write just between is seen in time."""
    where = store_name()
    _SEEN.update(state=state, mark=(where, last_write(where)), until=time.monotonic() + _TRUSTED_SECONDS)


def follow_store(state: Sequence[str], unread: int = 0) -> None:
    """Draw the page again when the store has another run or another state of one than `state`, or when rows of runs are
    left unread."""
    _follow(state, unread, time.monotonic())


@st.fragment(run_every=LOOK_SECONDS)
def _follow(state: Sequence[str], unread: int, drawn: float) -> None:
    """`drawn` tells one drawing of the page from the next."""
    if unread:
        st.caption(f"{unread} runs are still being read.")
    if st.session_state.get("drawn") != drawn:
        st.session_state["drawn"] = drawn  # it was drawn just now
        return
    with mistakes_explained():
        if unread or current_state() != state:
            st.rerun(scope="app")


def prepare() -> None:
    """Read what the first visit shows: the rows of all runs, and the newest run with its first pictures. Raises
    `UserError` where the store cannot be read."""
    with open_store() as store:
        runs = store.runs()
        rows_of(store, runs, seconds=float("inf"))
    if not runs or runs[0].status == "running":
        return
    summary = read_run(runs[0].run, runs[0])
    for window in summary.windows()[:1]:
        make = partial(section, SECTIONS[0], window)
        for block in section_kept(key_of(runs[0]), window.name, SECTIONS[0], make).blocks:
            if isinstance(block, Picture):
                block.figure.to_json()
