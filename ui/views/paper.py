"""The page of paper sessions: all of them, and one as it stands, followed while it runs."""

from __future__ import annotations

import time
from pathlib import Path

import streamlit as st

from backend.jobs.commands import request_command
from backend.paper.overview import SessionOverview, overview, session_folders
from backend.paper.switch import process_of
from backend.reporting.labels import title_of
from backend.runs.choices import BacktestChoices
from backend.runs.requests import RUNS, WindowRequest
from simulator.folders import sample_data
from simulator.market.timeframes import SECOND_MS, interval_of
from ui.access import (
    address_follows,
    asked_for,
    escape_markdown,
    in_time,
    job_queue,
    mistakes_explained,
    open_store,
    store_name,
)
from ui.parts.again import known_teams
from ui.parts.job import job_label, newest_of, open_job, show_job
from ui.parts.paper_session import draw_session, draw_switch

_LOOK_SECONDS, _REST_SECONDS = 1.0, 10.0  # between two looks at a session that runs, and at one that does not


def _page() -> None:
    st.title("Paper")
    st.caption("Teams and strategies on live or recorded data, filled by the simulator. No real money.")
    names = session_folders(RUNS)
    with st.expander("Start a session", expanded=not names, icon=":material/play_arrow:"), mistakes_explained():
        _ask()
    with mistakes_explained():
        _jobs()
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


def _jobs() -> None:
    """The job that the address names, and others of sessions that wait or run."""
    queue = job_queue()
    jobs = queue.jobs()
    shown = asked_for("job", [job.name for job in jobs], "a job")[:1]
    for job in newest_of(jobs, "paper"):
        if job.name not in shown and st.button(escape_markdown(job_label(job)), key=f"open {job.name}"):
            open_job(job)
    if shown:
        show_job(queue.job(shown[0]))


def _ask() -> None:
    """What a session of recorded bars needs; one on live data of an exchange begins in a terminal."""
    st.caption("A session on recorded bars, as a job. On live data of an exchange it begins in a terminal:")
    st.code("cryptosentinel paper run --exchange binance --symbols BTC/USDT --timeframe 1m --decide-every 15",
            language=None)  # fmt: skip
    folder = Path(st.text_input("Data folder", str(sample_data())).strip())
    choices = BacktestChoices.of(folder)
    suggested = choices.suggested_symbols(choices.timeframe)
    first, after = choices.suggested_days(suggested, choices.timeframe)
    with st.form("session"):
        left, right = st.columns(2)
        symbols = left.multiselect("Symbols", choices.symbols(choices.timeframe), default=suggested)
        team = right.selectbox("Team", known_teams(), format_func=title_of)
        columns = st.columns(4)
        start = columns[0].date_input("From", first)
        end = columns[1].date_input("To (not included)", after)
        every = columns[2].number_input("Bars between decisions", 0, 10_000, 0, help="0: once a day.")
        pace = columns[3].number_input("Bars a second", 0.0, 1000.0, 2.0, help="0: as fast as they are used.")
        submitted = st.form_submit_button("Start", type="primary", icon=":material/play_arrow:")
    if submitted:
        speed = pace * interval_of(choices.timeframe) / SECOND_MS
        request = WindowRequest(
            data=folder, symbols=tuple(symbols), timeframe=choices.timeframe, start=start.isoformat(),
            end=end.isoformat(), decide_every=int(every), overrides=(f"paper.speed={speed:g}",),
        )  # fmt: skip
        request.check()
        command = request_command(("paper", "run"), request, team=str(team), store=store_name(), runs=str(RUNS))
        open_job(job_queue().submit(command))
    st.caption("Or a week of the sample in about a minute, killed three times and resumed:")
    if st.button("Play the demonstration", icon=":material/play_arrow:"):
        command = ("paper", "demo", f"--store={store_name()}", f"--runs={RUNS}")
        open_job(job_queue().submit(command))


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
