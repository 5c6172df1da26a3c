"""How the pages reach the store and the jobs, and how they say what went wrong."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import count
from typing import Any

import streamlit as st
from streamlit.errors import StreamlitDuplicateElementKey

from backend.errors import message_and_code
from backend.jobs.queue import JobQueue
from backend.reporting.blocks import ReportSection
from backend.reporting.market_reload import market_of
from backend.reporting.run_summary import RunSummary, summarise
from backend.runs.requests import RUNS
from backend.store.errors import StoreError
from backend.store.records import RunRecord
from backend.store.store import Store
from cryptosentinel.protocol.untrusted import visible
from simulator.errors import UserError
from simulator.market.market import Market

STORE_VARIABLE = "CRYPTOSENTINEL_STORE"
RunKey = tuple[str, str, str, int | None]
_READ_SECONDS = 0.7  # for which a page waits for a read that it can do without


def store_name() -> str:
    """Where the store is: the environment's CRYPTOSENTINEL_STORE, else `runs/store`."""
    return os.environ.get(STORE_VARIABLE) or "runs/store"


def open_store() -> Store:
    """The store, for a block that reads. Tabs and other programs may have it open as well. Raises `StoreError`."""
    return Store.open(store_name())


def job_queue() -> JobQueue:
    """The jobs of the current folder, which the command line sees too."""
    return JobQueue(RUNS)


@contextmanager
def mistakes_explained() -> Iterator[None]:
    """Show what a user can understand as a message: a `UserError`, an extra that is not installed, a full disk. There
    is a way to try again where the store was busy; the page continues after it."""
    try:
        yield
    except (UserError, ModuleNotFoundError, OSError) as error:
        known = message_and_code(error)
        if known is None:
            raise
        st.error(escape_markdown(known[0]))
        if isinstance(error, StoreError):
            _offer_to_try_again()


def _offer_to_try_again() -> None:
    """A button, also where several parts of a page have failed: each has one of its own."""
    for number in count():
        try:
            st.button("Try again", icon=":material/refresh:", key=f"try again {number}")
            return
        except StreamlitDuplicateElementKey:
            continue


def escape_markdown(text: str) -> str:
    """`text` for a place that reads Markdown, so that it comes out as it is, with nothing in it that cannot be seen."""
    return re.sub(r"([\\`*_{}\[\]<>#$~|:])", r"\\\1", visible(text))


def asked_for(name: str, known: Sequence[str], what: str) -> list[str]:
    """What the page's address asks for as `?name=...`, of those that are known; of others it says that there are none
    and takes them out of the address."""
    asked = list(dict.fromkeys(st.query_params.get_all(name)))
    strange = [one for one in asked if one not in known]
    if strange:
        words = ", ".join(one[:80] for one in strange[:3])
        st.warning(escape_markdown(f"The address asks for {what} that is not here: {words}. Choose one below."))
        set_address(name, [one for one in asked if one in known])
    return [one for one in asked if one in known]


def set_address(name: str, values: Sequence[str]) -> None:
    """Write `?name=...` into the page's address for each of the values, so that it can be kept, reloaded and shared.

    Only for what the reader does: each change is a step of the browser's history, and one that a page made by itself
    while it is opened would take a press of Back of its own.
    """
    if values:
        st.query_params[name] = list(values)
    elif name in st.query_params:
        del st.query_params[name]


def address_follows(name: str, key: str) -> Callable[[], None]:
    """For `on_change`: the address names what was chosen in the field with this key."""
    return lambda: set_address(name, [str(st.session_state[key])])


@st.cache_resource(show_spinner=False)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(4, thread_name_prefix="page")


def in_time(key: str, read: Callable[[], Any]) -> tuple[Any, bool]:
    """What `read` gives, and whether that is of now: else it is the last that came for this `key`, None where nothing
    ever did, and the reading continues beside. Raises what `read` raises."""
    futures: dict[str, Future[Any]] = st.session_state.setdefault("reads", {})
    known: dict[str, Any] = st.session_state.setdefault("read", {})
    future = futures.get(key)
    if future is None:
        future = futures[key] = _pool().submit(read)
    if not wait([future], _READ_SECONDS).done:
        return known.get(key), False
    del futures[key]
    found = future.result()
    known[key] = found
    return found, True


def read_run(run_id: str, run: RunRecord | None = None) -> RunSummary:
    """Everything about a run; of one that has ended, which nothing changes, it is read once and shared by all tabs.
    `run` is its record where the caller has just read it: then the store need not be opened again. Raises
    `StoreError`."""
    if run is None or run.status == "running":
        with open_store() as store:
            run = store.run(run_id)
            if run.status == "running":
                return summarise(store, run_id)
    return _ended(*key_of(run))


def key_of(run: RunRecord) -> RunKey:
    """What tells one state of a run from all others."""
    return store_name(), run.run, run.status, run.finished_at


def market_kept(run: RunRecord) -> Market:
    """The market of a run, shared by all tabs; one that cannot be had is tried again each time. Raises `UserError`."""
    return _market(store_name(), run.run, run.data_hash, run)


@st.cache_resource(max_entries=64, show_spinner=False)
def section_kept(run: RunKey, window: str, name: str, _make: Callable[[], ReportSection]) -> ReportSection:
    """A section of a run that has ended, which `_make` makes once for all tabs."""
    return _make()


@st.cache_resource(max_entries=8, show_spinner="Reading the records")
def _ended(where: str, run: str, status: str, finished_at: int | None) -> RunSummary:
    with open_store() as store:
        return summarise(store, run)


@st.cache_resource(max_entries=2, show_spinner="Reading the data")
def _market(where: str, run: str, data_hash: str, _run: RunRecord) -> Market:
    return market_of(_run)
