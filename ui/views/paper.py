"""The page of paper sessions: all of them, and one as it stands, followed while it runs."""

from __future__ import annotations

import time

import pandas as pd
import streamlit as st

from backend.paper.background import process_of
from backend.paper.overview.session_overview import SessionOverview, is_killed, overview, session_folders
from backend.paper.sessions import paper_sessions
from backend.runs.requests import RUNS
from backend.store.records import RunRecord
from ui.access import asked_for, in_time, mistakes_explained, open_store, set_address
from ui.parts.drawing import MOMENT
from ui.parts.paper_session import draw_session, draw_switch

_LOOK_SECONDS = 1.0


def _page() -> None:
    st.title("Paper")
    st.caption("Teams that trade on data that goes on, with the simulator's exchange. No real money.")
    names = session_folders(RUNS)
    if not names:
        st.info("There are no paper sessions yet. A week in two minutes, without a network:")
        st.code("cryptosentinel paper demo", language=None)
        st.caption("Or the scripted team on live data of an exchange, in the background:")
        st.code("cryptosentinel paper start --exchange binance --symbols BTC/USDT --timeframe 1m --decide-every 15",
                language=None)  # fmt: skip
        return
    asked = asked_for("session", names, "a session")
    if asked:
        st.session_state["session chosen"] = asked[0]
    elif st.session_state.get("session chosen") not in names:
        st.session_state["session chosen"] = names[0]
    chosen = st.selectbox("Session", names, key="session chosen", on_change=_let_address_follow)
    set_address("session", [chosen])
    draw_switch(chosen)
    _follow(chosen)
    with st.expander("All sessions"), mistakes_explained():
        records, _ = in_time("all sessions", _all)
        if records is not None:
            st.dataframe(_table(records, names), hide_index=True, column_config={"begun (UTC)": MOMENT})


def _let_address_follow() -> None:
    set_address("session", [st.session_state["session chosen"]])


@st.fragment(run_every=_LOOK_SECONDS)
def _follow(session: str) -> None:
    """The session as it stands. A store that is busy leaves what was last known."""
    note = st.empty()
    with mistakes_explained():
        found, fresh = in_time(session, lambda: _read(session))
        if not fresh:
            note.caption("The store is busy: this is what was last known. The kill switch above works all the same.")
        if found is not None:
            draw_session(found)


def _read(session: str) -> SessionOverview:
    with open_store() as store:
        return overview(store, session, RUNS, time.time())


def _all() -> list[RunRecord]:
    with open_store() as store:
        return paper_sessions(store)


def _table(records: list[RunRecord], names: list[str]) -> pd.DataFrame:
    here = [record for record in records if record.run in names]
    return pd.DataFrame(
        {
            "session": [record.run for record in here],
            "status": [record.status for record in here],
            "process": [process_of(RUNS / record.run) for record in here],
            "kill switch": [is_killed(RUNS / record.run) for record in here],
            "begun (UTC)": pd.to_datetime([record.started_at for record in here], unit="ms"),
            "why": [record.message or "" for record in here],
        }
    )


_page()
