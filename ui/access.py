"""How the pages reach the store, and how they say what went wrong."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import streamlit as st

from backend.reporting.run_page import RunPage
from backend.store.errors import StoreError
from backend.store.store import Store
from cryptosentinel.protocol.untrusted import visible
from simulator.errors import UserError

STORE_VARIABLE = "CRYPTOSENTINEL_STORE"


def store_name() -> str:
    """Where the store is: the environment's CRYPTOSENTINEL_STORE, else `runs/store`."""
    return os.environ.get(STORE_VARIABLE) or "runs/store"


def open_store(reads_only: bool = True) -> Store:
    """The store, for a block. Tabs and other programs may have it open as well. Raises `StoreError`."""
    return Store.open(store_name(), reads_only=reads_only)


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
    """`text` for a place that reads Markdown, so that it comes out as it is, with nothing in it that cannot be seen."""
    return re.sub(r"([\\`*_{}\[\]<>#$~|:])", r"\\\1", visible(text))


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
