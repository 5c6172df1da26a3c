"""The page of paper sessions: all of them, and one as it stands, followed while it runs."""

from __future__ import annotations

import time

import streamlit as st

from backend.paper.overview import SessionOverview, overview, session_folders
from backend.paper.switch import process_of
from backend.runs.requests import RUNS
from ui.access import (
    address_follows,
    asked_for,
    in_time,
    job_queue,
    mistakes_explained,
    open_store,
    store_name,
)
from ui.parts.job import open_job, show_jobs_of
from ui.parts.paper_session import draw_session, draw_switch

_LOOK_SECONDS, _REST_SECONDS = 1.0, 10.0  # between two looks at a session that runs, and at one that does not


def _page() -> None:
    st.title("Paper")
    st.caption("Teams and strategies on live or recorded data, filled by the simulator. No real money.")
    names = session_folders(RUNS)
    with st.expander("Start a session", expanded=not names, icon=":material/play_arrow:"), mistakes_explained():
        _ask()
    with mistakes_explained():
        show_jobs_of("paper")
    if not names:
        st.info("There are no paper sessions yet.")
        return
    asked = asked_for("session", names, "a session")
    if asked:
        st.session_state["session chosen"] = asked[0]
    elif st.session_state.get("session chosen") not in names:
        st.session_state["session chosen"] = names[0]
    chosen = st.selectbox(
        "Session", names, key="session chosen", on_change=address_follows("session", "session chosen")
    )
    draw_switch(chosen)
    runs = process_of(RUNS / chosen) is not None
    st.fragment(_follow, run_every=_LOOK_SECONDS if runs else _REST_SECONDS)(chosen)


def _ask() -> None:
    """How a session begins, and the one that shows it in a minute."""
    st.caption("A session begins in a terminal, on live data of an exchange or, with --data, on recorded bars:")
    st.code("cryptosentinel paper run --exchange binance --symbols BTC/USDT --timeframe 1m --decide-every 15",
            language=None)  # fmt: skip
    st.caption("Or a week of the sample in about a minute, killed three times and resumed:")
    if st.button("Play the demonstration", icon=":material/play_arrow:"):
        open_job(job_queue().submit(("paper", "demo", f"--store={store_name()}", f"--runs={RUNS}")))


def _follow(session: str) -> None:
    """The session as it stands. A store that is busy leaves what was last known."""
    note = st.empty()
    with mistakes_explained():
        found, fresh = in_time(session, lambda: _read(session))
        if not fresh:
            switch = "" if process_of(RUNS / session) is None else " The kill switch works all the same."
            note.caption(f"The store is busy: this is what was last known.{switch}")
        if found is not None:
            draw_session(found)


def _read(session: str) -> SessionOverview:
    with open_store() as store:
        return overview(store, session, RUNS, time.time())


_page()
