"""A stored backtest again with something changed: which one, the job that plays it, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from backend.builders.strategies import named_strategies
from backend.config.schema import SCRIPTED
from backend.jobs.commands import backtest_command
from backend.jobs.queue import Submission
from backend.models.manifest import MANIFEST, SAMPLE_TEAM
from backend.runs.requests import RUNS, BacktestRequest
from backend.runs.stored_setup import StoredSetup, stored_setup
from ui.access import (
    asked_for,
    escape_markdown,
    job_queue,
    market_kept,
    mistakes_explained,
    open_store,
    read_run,
    set_address,
    store_name,
)
from ui.parts.drawing import draw_blocks
from ui.parts.job import job_label, open_job, show_job


def choose_backtest(key: str) -> StoredSetup | None:
    """A choice of the finished backtests of the store, the address's first; None where there is none."""
    with open_store() as store:
        names = [run.run for run in store.runs() if run.kind == "backtest" and run.status == "finished"]
        if not names:
            st.info("There is no finished backtest yet: start one under New backtest. It takes half a minute.")
            return None
        asked = asked_for("run", names, "a run")
        if asked and st.session_state.get(key) not in asked:
            st.session_state[key] = asked[0]
        chosen = st.selectbox(
            "Backtest", names, key=key, on_change=lambda: set_address("run", [st.session_state[key]]),
            help="Its data, window, costs, settings and seed are used.",
        )  # fmt: skip
        setup = stored_setup(store, chosen)
    set_address("run", [chosen])
    market, (first, last) = setup.config.market, setup.window_words
    coins = f"{', '.join(market.symbols) or 'all coins'} of {market.data or 'the synthetic market'}"
    st.caption(escape_markdown(f"{coins}, {first} to {last} UTC, a decision every {setup.window.decide_every} bars."))
    return setup


def known_teams() -> Sequence[str]:
    """What can be named as a team: the scripted one, the shipped one, folders under `runs/` that hold one, the newest
    first, and strategies."""
    found = sorted(RUNS.glob(f"**/{MANIFEST}"), key=lambda path: path.stat().st_mtime, reverse=True)
    return [SCRIPTED, SAMPLE_TEAM, *(str(path.parent) for path in found), *named_strategies()]


def hand_over(request: BacktestRequest) -> None:
    """Let the queue play it, and show its job. Raises `UserError` for what can be refused at once."""
    request.check()
    open_job(job_queue().submit(backtest_command(request, store_name(), str(RUNS)), once=True))


def show_again(key: str, part: str) -> None:
    """The job that the address names and what came of it; `part` is in the commands of those that belong here."""
    queue = job_queue()
    queue.wake()
    jobs = [job for job in queue.jobs() if any(word.startswith(part) for word in job.request.command)]
    shown = asked_for("job", [job.name for job in queue.jobs()], "a job")[:1]
    notice = st.session_state.pop("told of job", None)
    if notice:
        st.info(notice)
    for job in (one for one in jobs if one.active and one.name not in shown):
        if st.button(escape_markdown(job_label(job)), key=f"{key} {job.name}", icon=":material/visibility:"):
            open_job(Submission(job, True))
    if not shown:
        return
    with mistakes_explained():
        job = queue.job(shown[0])
        show_job(job)
        if job.status == "done" and job.run:
            show_against(job.run)


def show_against(run: str) -> None:
    """The teams of a run against one another, and the way to all of it."""
    page = read_run(run)
    for window in page.windows:
        against = window.against()
        if against is None:
            st.info("Only one was played, so there is nothing to compare.")
        else:
            draw_blocks(against.blocks, run)
        if window.result.decisions:
            st.markdown("**What they did, and how well their forecasts fit what came**")
            draw_blocks(window.behaviour(market_kept).blocks, run)
    for note in page.warnings:
        st.caption(escape_markdown(note))
    st.page_link(
        "views/runs.py",
        label=escape_markdown(f"All of run {run}"),
        icon=":material/open_in_new:",
        query_params={"run": run},
    )
