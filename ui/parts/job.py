"""A job on the page: what it is doing now, its log, and how to end it."""

from __future__ import annotations

from datetime import UTC, datetime

import streamlit as st

from backend.jobs.commands import command_words
from backend.jobs.files import Job
from cryptosentinel.protocol.untrusted import visible
from simulator.market.timeframes import format_time
from ui.access import asked_for, escape_markdown, job_queue, mistakes_explained, set_address

_LOOK_SECONDS = 1.0
_LOG_BYTES = 20_000
_SAID = {
    "queued": "waits for its turn",
    "running": "runs",
    "done": "is done",
    "failed": "failed",
    "cancelled": "was cancelled",
    "died": "ended unexpectedly",
}


def show_job(job: Job) -> None:
    """A job; while it waits or runs what is shown follows it, and the page is drawn again when it has begun its run and
    when it has ended."""
    if job.active:
        _follow(job.name, job.run)
    else:
        _draw(job)
    with st.expander("As a command, and its log", expanded=job.status in ("failed", "died")):
        st.code(visible(command_words(job.request.command)), language=None, wrap_lines=True)
        st.caption(escape_markdown(f"in {job.request.folder}"))
        if job.active:
            _follow_log(job.name)
        else:
            _draw_log(job)


def show_jobs_of(command: str) -> Job | None:
    """The job that the address names, and a way to others of this command that wait or run; gives the shown one."""
    queue = job_queue()
    jobs = queue.jobs()
    shown = asked_for("job", [job.name for job in jobs], "a job")[:1]
    for job in jobs:
        if job.active and job.request.command[:1] == (command,) and job.name not in shown:
            share = "" if job.share is None else f", {job.share:.0%}"
            label = escape_markdown(f"{job.name}, {job.status}{share}")
            if st.button(label, key=f"open {job.name}", icon=":material/visibility:"):
                open_job(job)
    if not shown:
        return None
    job = queue.job(shown[0])
    show_job(job)
    return job


def open_job(job: Job) -> None:
    """Show a job that was just handed in: the address names it."""
    set_address("job", [job.name])
    st.rerun()


@st.fragment(run_every=_LOOK_SECONDS)
def _follow(name: str, run: str) -> None:
    with mistakes_explained():
        job = job_queue().job(name)
        if not job.active or job.run != run:
            st.rerun(scope="app")
        _draw(job)


@st.fragment(run_every=_LOOK_SECONDS)
def _follow_log(name: str) -> None:
    with mistakes_explained():
        _draw_log(job_queue().job(name))


def _draw(job: Job) -> None:
    words, button = st.columns([4, 1], vertical_alignment="center")
    # One id: that of its run is all but the same as the job's own.
    words.markdown(f"**{escape_markdown(job.run or job.name)}** {_SAID[job.status]}{_since(job)}")
    if job.message:
        (st.error if job.status in ("failed", "died") else st.info)(escape_markdown(job.message))
    may_end = job.active and not job.cancelled
    if may_end and button.button("Cancel", key=f"cancel {job.name}", icon=":material/stop_circle:"):
        _cancel(job)
    if job.active:
        state = job.state
        counted = f"{state.what} {state.done} of {state.total} {state.note}" if state.total else ""
        st.progress(job.share or 0.0, text=escape_markdown(counted or "It has not begun to count yet"))


def _cancel(job: Job) -> None:
    with mistakes_explained():
        job_queue().cancel(job.name)
        st.rerun()


def _draw_log(job: Job) -> None:
    said = job.log(_LOG_BYTES).rstrip()
    if said:
        st.code(visible(said), language=None, wrap_lines=True, height=240)
    else:
        st.caption("It has said nothing yet.")


def _since(job: Job) -> str:
    """For how long, or when."""
    if job.state.finished_at is not None:
        return f" ({format_time(job.state.finished_at)} UTC)"
    moment = job.state.started_at or job.request.submitted_at
    seconds = max(0, int(datetime.now(tz=UTC).timestamp() - moment / 1000))
    return f" for {_clock(seconds)}"


def _clock(seconds: float) -> str:
    """A duration as minutes and seconds, or as hours, minutes and seconds."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
