"""A stored backtest again with something changed: which one, the job that plays it, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from backend.builders.strategies import named_strategies
from backend.builders.variants import ABLATIONS, Variant
from backend.config.schema import SCRIPTED
from backend.jobs.commands import request_command
from backend.jobs.queue import Submission
from backend.models.manifest import MANIFEST, SAMPLE_TEAM
from backend.runs.requests import RUNS, BacktestRequest
from backend.runs.stored_setup import StoredSetup, named_source, stored_setup
from backend.store.records import RunRecord
from ui.access import (
    address_follows,
    asked_for,
    escape_markdown,
    job_queue,
    market_kept,
    mistakes_explained,
    open_store,
    read_run,
    store_name,
)
from ui.parts.drawing import draw_blocks
from ui.parts.job import job_label, note_job, open_job, show_job

_MEANINGS = {
    "without": "It is not there; the manager has its tools itself. Worse without it: it was worth something.",
    "scripted": "Rules answer in its place. As good with rules: the model has learnt no more than they say.",
    "no_veto": "RiskAnalyst is asked, and its verdict caps nothing. Better so: the verdicts cost money here.",
    "unmasked": "The team reads the real names and dates. Better so: it may remember what happened.",
    "shuffled_news": "Each headline's words at another headline's time. As good so: it did not read the news.",
    "shuffled_days": "The window's days in another order, with their news. As good on the real days only: it may "
    "remember them, or trade trends of several days.",
    "altered_future": "At each decision everything later is other data; orders fill at the real prices. Other than "
    "before: something of it reads the future. Rules do the same to the bit; a sampled model of a provider does not.",
}
_COLUMNS = 4  # of buttons


def variant_label(text: str) -> str:
    """A variant in words, for a place that reads Markdown."""
    words = Variant.parse(text).suffix.removeprefix(", ")
    return escape_markdown(words[:1].upper() + words[1:])


def variant_meaning(text: str) -> str:
    """What a variant answers."""
    return _MEANINGS[Variant.parse(text).kind]


def offer_again(run: RunRecord, team: str) -> None:
    """A click for each part of a team: the run is played again without it, beside the team as it was."""
    source = named_source(run, team)
    if source is None or source.variant:
        return
    with st.expander("What is each part of the team worth?", icon=":material/science:"):
        st.caption(
            "A click plays this run again beside the same team with that part changed: on the same bars, at the same "
            "costs, with the difference and its interval. The page Laboratory offers several at once, and checks "
            "whether the team knew more than it was shown."
        )
        columns = st.columns(_COLUMNS)
        for number, variant in enumerate(ABLATIONS):
            button = columns[number % _COLUMNS].button(
                variant_label(variant), key=f"again {variant} {run.run}", help=variant_meaning(variant), width="stretch"
            )
            if button:
                request = BacktestRequest(like=run.run, teams=(source.team,), variants=(variant,))
                request.check()
                queue = job_queue()
                submission = queue.submit(request_command(("backtest",), request, store=store_name(), runs=str(RUNS)))
                note_job(submission)
                st.switch_page("views/laboratory.py", query_params={"run": run.run, "job": submission.job.name})
        st.page_link(
            "views/arena.py", label="Let other teams play this window", icon=":material/trophy:",
            query_params={"run": run.run},
        )  # fmt: skip


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
            "Backtest", names, key=key, on_change=address_follows("run", key),
            help="Its data, window, costs, settings and seed are used.",
        )  # fmt: skip
        setup = stored_setup(store, chosen)
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
    open_job(job_queue().submit(request_command(("backtest",), request, store=store_name(), runs=str(RUNS))))


def show_again(key: str, part: str) -> bool:
    """The job that the address names and what came of it; `part` is in the commands of those that belong here. False
    where the address names none."""
    queue = job_queue()
    jobs = [job for job in queue.jobs() if any(word.startswith(part) for word in job.request.command)]
    shown = asked_for("job", [job.name for job in queue.jobs()], "a job")[:1]
    notice = st.session_state.pop("told of job", None)
    if notice:
        st.info(notice)
    for job in (one for one in jobs if one.active and one.name not in shown):
        if st.button(escape_markdown(job_label(job)), key=f"{key} {job.name}", icon=":material/visibility:"):
            open_job(Submission(job, True))
    if not shown:
        return False
    with mistakes_explained():
        job = queue.job(shown[0])
        show_job(job)
        if job.status == "done" and job.run:
            show_against(job.run)
    return True


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
