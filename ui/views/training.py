"""The page of trainings: start one from a preset, watch it, stop it, resume it, and look at former ones."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from backend.config.load import load_config, presets
from backend.config.schema import Config
from backend.jobs.commands import command_words, request_command
from backend.jobs.files import Job
from backend.jobs.queue import JobQueue
from backend.runs.requests import RUNS, TrainRequest
from backend.store.records import RunRecord
from cryptosentinel.protocol.untrusted import visible
from ui.access import (
    asked_for,
    escape_markdown,
    job_queue,
    mistakes_explained,
    open_store,
    read_run,
    set_address,
    store_name,
)
from ui.parts.job import open_job, show_job
from ui.parts.ready import current_state, follow_store
from ui.parts.setting_fields import number_fields, other_settings
from ui.parts.training import show_training

_KINDS = ("train", "demo", "sft")
_COMMANDS = ("train", "demo", "sft")
_FIRST = "quick"  # a minute: one sees every part of it
# The settings that one changes: key, label, what it means.
_NUMBERS = (
    ("training.stage1_steps", "Steps of stage 1", "Stage 1 teaches the protocol and pays sub-agents for their advice.",
     1.0),
    ("training.stage2_steps", "Steps of stage 2", "In stage 2 all roles share the outcome of the team's trades.", 1.0),
    ("training.queries_per_step", "Windows a step", "Market windows that each step plays.", 1.0),
    ("training.rollouts_per_query", "Rollouts a window",
     "K: how often each window is played from the same state. They are compared with one another.", 1.0),
    ("training.seed", "Seed", "Same seed, same result, on the same kind of processor.", 1.0),
)  # fmt: skip


def _page() -> None:
    st.title("Training")
    st.caption(
        "M-GRPO: a team plays the same market window several times; what turned out better than its siblings is said "
        "more often afterwards. Each role has a small adapter of its own on one base model."
    )
    queue = job_queue()
    with mistakes_explained():
        state = current_state()
        jobs = [job for job in queue.jobs() if job.request.command[0] in _COMMANDS]
        with open_store() as store:
            runs = [run for run in store.runs() if run.kind in _KINDS]
        follow_store(state)
        with st.expander("Start a training", expanded=not runs and not jobs, icon=":material/play_arrow:"):
            _ask()
        if not runs and not jobs:
            st.info("No training is stored yet: start one. The preset quick takes about a minute.")
        _show_chosen(queue, jobs, runs)


def _show_chosen(queue: JobQueue, jobs: Sequence[Job], runs: Sequence[RunRecord]) -> None:
    """Offer the jobs and trainings, and show the chosen one."""
    by_run = {job.run: job for job in reversed(jobs) if job.run}
    waiting = [job for job in jobs if job.active and job.run not in {run.run for run in runs}]
    names = [*(job.name for job in waiting), *(run.run for run in runs)]
    asked = asked_for("job", [job.name for job in queue.jobs()], "a job")[:1]
    asked_run = asked_for("run", [run.run for run in runs], "a training")[:1]
    ended = {job.name: job for job in jobs}
    if asked and asked[0] in ended and asked[0] not in names:
        run = ended[asked[0]].run
        names = [asked[0], *names] if run not in names else names
        asked = [run] if run in names else asked
    to_open = (asked or asked_run)[:1]
    if not names:
        return
    if to_open and to_open[0] in names and st.session_state.get("training asked") != to_open[0]:
        st.session_state["training"] = to_open[0]
    elif st.session_state.get("training") not in names:
        st.session_state["training"] = names[0]
    # The names alone: how one stands is said below, and a label that changed would show its former words.
    chosen: str = st.selectbox("Training, the newest first", names, key="training", on_change=_let_address_follow)
    st.session_state["training asked"] = chosen
    of_run = {run.run: run for run in runs}
    if chosen not in of_run:
        show_job(queue.job(chosen))
        return
    job = by_run.get(chosen)
    if job is not None:
        show_job(queue.job(job.name))
    _offer_to_resume(of_run[chosen], job)
    summary = read_run(chosen, of_run[chosen])
    for warning in summary.warnings:
        st.warning(escape_markdown(warning))
    show_training(summary)
    st.page_link("views/runs.py", label=escape_markdown(f"All of run {chosen}"), icon=":material/open_in_new:",
                 query_params={"run": chosen})  # fmt: skip


def _let_address_follow() -> None:
    chosen = st.session_state["training"]
    is_job = any(job.name == chosen for job in job_queue().jobs())
    set_address("job", [chosen] if is_job else [])
    set_address("run", [] if is_job else [chosen])


def _offer_to_resume(run: RunRecord, job: Job | None) -> None:
    """Offer to resume a training that stopped."""
    if run.kind != "train" or run.status not in ("interrupted", "failed") or (job is not None and job.active):
        return
    command = _command(TrainRequest(resume=run.run))
    if st.button("Resume it", key=f"resume {run.run}", icon=":material/resume:"):
        open_job(job_queue().submit(command))


def _command(request: TrainRequest) -> tuple[str, ...]:
    return request_command(("train",), request, store=store_name(), runs=str(RUNS))


def _ask() -> None:
    """The preset, the few settings that one changes, and the same as a command."""
    names = presets()
    place, about = st.columns([1, 2], vertical_alignment="bottom")
    preset = place.selectbox("Preset", names, index=names.index(_FIRST) if _FIRST in names else 0)
    config = load_config(preset)
    about.caption(escape_markdown(_in_words(config)))
    changed = number_fields(_NUMBERS, config, len(_NUMBERS), preset)
    steps = max((int(one.partition("=")[2]) for one in changed if one.startswith("training.stage1_steps=")), default=0)
    if steps > config.training.stage1_max_steps:
        changed.append(f"training.stage1_max_steps={steps}")
    left, middle, right = st.columns(3)
    data = left.text_input(
        "Data folder", config.market.data, key=f"{preset} data",
        help="Empty: a synthetic market, whose truth is known. A folder of bars: presets such as recorded_training.",
    ).strip()  # fmt: skip
    start = middle.text_input(
        "Begin with the team in", config.training.start_from, key=f"{preset} start",
        help="The folder of a team, such as one that sft has made. Empty: the preset's own warm start.",
    ).strip()  # fmt: skip
    others = other_settings(preset, "training.kl=0.01", right)
    if start != config.training.start_from:
        changed.append(f"training.start_from={start}")
    changed += others
    request = TrainRequest(config=preset, overrides=tuple(changed), data=data if data != config.market.data else "")
    command = _command(request)
    st.caption("The same as a command:")
    st.code(visible(command_words(command)), language=None, wrap_lines=True)
    if st.button("Start", type="primary", icon=":material/play_arrow:", key="start training"):
        request.check()
        open_job(job_queue().submit(command))


def _in_words(config: Config) -> str:
    """What a preset is, in a line."""
    training, market = config.training, config.market
    model = training.base_model or "nano, a small model of its own that is made in the run"
    where = market.data or f"a synthetic market of {market.coins} coins and {market.bars:,} bars"
    steps = training.stage1_steps + training.stage2_steps
    decisions = steps * training.queries_per_step * training.rollouts_per_query
    return f"Base model: {model}. Data: {where}. {steps} steps, {decisions:,} decisions of the team."


_page()
