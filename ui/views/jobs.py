"""The page of jobs: what waits, runs and has ended, submitted here or elsewhere, and one of them with its log."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from backend.jobs.commands import command_words
from backend.jobs.files import Job
from cryptosentinel.protocol.untrusted import visible
from ui.access import address_follows, asked_for, escape_markdown, job_queue, mistakes_explained
from ui.parts.drawing import MOMENT, show_table
from ui.parts.job import show_job
from ui.parts.ready import LOOK_SECONDS

_COLUMNS = {
    "asked for (UTC)": MOMENT,
    "began (UTC)": MOMENT,
    "ended (UTC)": MOMENT,
    "done": st.column_config.ProgressColumn(min_value=0.0, max_value=1.0, format="percent"),
}


def _page() -> None:
    st.title("Jobs")
    st.caption("Work that continues without this page, as `cryptosentinel jobs` shows it.")
    queue = job_queue()
    with mistakes_explained():
        jobs = queue.jobs()
        if not jobs:
            st.info("There are no jobs yet. Start a backtest under New backtest, or hand a command to the queue:")
            st.code("cryptosentinel jobs run -- train --config quick", language=None)
            _follow([])
            return
        names = [job.name for job in jobs]
        _follow(names)
        asked = asked_for("job", names, "a job")
        # What never changes of a job: a label that changed would show its former words.
        labels = {job.name: visible(f"{job.name}: {command_words(job.request.command)}") for job in jobs}
        if asked:
            st.session_state["job chosen"] = asked[0]
        elif st.session_state.get("job chosen") not in names:
            st.session_state["job chosen"] = names[0]
        chosen = st.selectbox(
            "Open", names, key="job chosen", format_func=labels.__getitem__,
            on_change=address_follows("job", "job chosen"),
        )  # fmt: skip
        job = queue.job(chosen)
        show_job(job)
        if job.run:
            st.page_link("views/runs.py", label=escape_markdown(f"Run {job.run}"), icon=":material/open_in_new:",
                         query_params={"run": job.run})  # fmt: skip


@st.fragment(run_every=LOOK_SECONDS)
def _follow(names: Sequence[str]) -> None:
    """The table as it stands; the page is drawn again when there are other jobs than those of `names`."""
    with mistakes_explained():
        jobs = job_queue().jobs()
        if [job.name for job in jobs] != list(names):
            st.rerun(scope="app")
        if jobs:
            show_table(_table(jobs), column_config=_COLUMNS)


def _table(jobs: Sequence[Job]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "job": [job.name for job in jobs],
            "state": [job.status for job in jobs],
            "done": [job.share for job in jobs],
            "asked for (UTC)": pd.to_datetime([job.request.submitted_at for job in jobs], unit="ms"),
            "began (UTC)": pd.to_datetime(pd.Series([job.state.started_at or None for job in jobs]), unit="ms"),
            "ended (UTC)": pd.to_datetime(pd.Series([job.state.finished_at for job in jobs]), unit="ms"),
            "command": [command_words(job.request.command) for job in jobs],
        }
    )


_page()
