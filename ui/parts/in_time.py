"""Reads that the page does not wait for: a store that is busy must not keep anybody from a button."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as TooLong
from typing import Any

import streamlit as st

_PATIENCE = 0.7  # seconds


@st.cache_resource(show_spinner=False)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(4, thread_name_prefix="page")


def in_time(key: str, read: Callable[[], Any]) -> tuple[Any, bool]:
    """What `read` gives, and whether that is of now: else it is the last that came for this `key`, None where nothing
    ever did, and the reading goes on beside. Raises what `read` raises."""
    futures: dict[str, Future[Any]] = st.session_state.setdefault("reads", {})
    known: dict[str, Any] = st.session_state.setdefault("read", {})
    future = futures.get(key)
    if future is None:
        future = futures[key] = _pool().submit(read)
    try:
        found = future.result(_PATIENCE)
    except TooLong:
        return known.get(key), False
    except BaseException:
        del futures[key]
        raise
    del futures[key]
    known[key] = found
    return found, True
