"""A page that follows the store: it is drawn again when the runs have changed."""

from __future__ import annotations

import time
from collections.abc import Sequence

import streamlit as st

from ui.access import mistakes_explained
from ui.parts.ready import current_state

LOOK_SECONDS = 1.0


def follow_store(state: Sequence[str], unread: int = 0) -> None:
    """Draw the page again when the store has another run, another state of one or other labels than `state`, or when
    rows of runs are left unread."""
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
