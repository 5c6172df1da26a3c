"""How the pages reach the store, and how they say what went wrong."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import streamlit as st

from backend.reporting.run_page import RunPage
from backend.store.errors import StoreError
from backend.store.store import Store
from simulator.errors import UserError

STORE_VARIABLE = "CRYPTOSENTINEL_STORE"
_PATIENCE = 5.0  # seconds to wait for another tab

# One folder, one opener. Tabs are threads of this process, and the store's own lock would refuse the second one.
_one_at_a_time = threading.Lock()


def store_name() -> str:
    """Where the store is: the environment's CRYPTOSENTINEL_STORE, else `runs/store`."""
    return os.environ.get(STORE_VARIABLE) or "runs/store"


@contextmanager
def open_store() -> Iterator[Store]:
    """The store, held only while it is needed, so that a training on the command line can have it in between.

    Raises `StoreError` if another process or another tab holds it.
    """
    if not _one_at_a_time.acquire(timeout=_PATIENCE):
        raise StoreError("another tab of this page uses the store, perhaps for a backtest: try again when it is done")
    try:
        with Store.open(store_name()) as store:
            yield store
    finally:
        _one_at_a_time.release()


@contextmanager
def mistakes_explained() -> Iterator[None]:
    """Show a `UserError` as a message, with a way to try again where the store was busy; the page goes on after it."""
    try:
        yield
    except UserError as error:
        st.error(escape_markdown(str(error)))
        if isinstance(error, StoreError):
            st.button("Try again", icon=":material/refresh:")


def escape_markdown(text: str) -> str:
    """`text` for a place that reads Markdown, so that it comes out as it is."""
    return re.sub(r"([\\`*_{}\[\]<>#$~|:])", r"\\\1", text)


def read_run(run_id: str) -> RunPage:
    """Everything about a run; a run that has ended is read only once. Raises `StoreError`."""
    with open_store() as store:
        run = store.run(run_id)
        if run.status == "running":
            return RunPage.read(store, run_id)
    return _read_ended(store_name(), run_id, run.finished_at)


@st.cache_data(show_spinner="Reading the records", max_entries=8)
def _read_ended(where: str, run_id: str, finished_at: int | None) -> RunPage:
    """The arguments are the key of the cache."""
    with open_store() as store:
        return RunPage.read(store, run_id)
