"""A training on the page: its curves as they grow, what the doctor finds, the rollouts of a step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import streamlit as st

from backend.decisions.tree import decision_tree
from backend.evaluation.doctor import Examination, examine
from backend.reporting.decision_narrative import narrate
from backend.reporting.labels import ABSENT
from backend.reporting.run_summary import RunSummary, summarise_training
from backend.reporting.training_sections import (
    CURVES,
    answer_picture,
    answer_tiles,
    comparison_sections,
    curves_section,
    group_steps,
    step_rollouts,
)
from cryptosentinel.agents.registry import role_title
from cryptosentinel.protocol.untrusted import visible
from ui.access import escape_markdown, mistakes_explained, open_store
from ui.parts.decision import draw_lines
from ui.parts.drawing import draw_blocks, draw_tiles

_LOOK_SECONDS = 1.0
_EFFECT = "Did it help?"


def show_training(summary: RunSummary) -> None:
    """A training that has ended, or one that runs and is followed."""
    if summary.run.status == "running":
        _follow_training(summary.run.run)
        return
    answer = summary.answer
    st.subheader(escape_markdown(summary.opening if answer is None else answer["sentence"]))
    if answer is not None:
        st.markdown(escape_markdown(" ".join(filter(None, (answer["learned"], answer["caveat"])))))
        draw_tiles(answer_tiles(answer))
    _parts(summary, ended=True)


@st.fragment(run_every=_LOOK_SECONDS)
def _follow_training(run_id: str) -> None:
    """The curves of a training that runs; the page is drawn again when it has ended."""
    with mistakes_explained():
        with open_store() as store:
            summary = summarise_training(store, run_id)
        if summary.run.status != "running":
            st.rerun(scope="app")
        if not summary.metrics:
            st.info("The training has begun; no step of it is done yet.")
            return
        st.subheader(f"Step {max(one.step for one in summary.metrics)} is done")
        _parts(summary, ended=False)


def _parts(summary: RunSummary, *, ended: bool) -> None:
    """A choice of what to look at; only that is drawn, so that a training which is followed stays fluid."""
    run = summary.run.run
    examination = _examined(summary)
    parts: dict[str, Callable[[], None]] = {_EFFECT: lambda: _effect(summary)} if ended else {}
    parts |= {title: partial(_curves, title, summary) for title in CURVES}
    parts |= {
        "Findings": lambda: _findings(run, examination),
        "Rollouts": lambda: _rollouts(run),
    }
    if ended:
        parts["One decision"] = lambda: _example(summary)
    names = list(parts)
    key = f"part of {run} {'ended' if ended else 'running'}"
    unmeasured = ended and not summary.evaluations.get("held_out")
    chosen = st.segmented_control(
        "What to look at", names, default=names[1] if unmeasured else names[0], key=key, label_visibility="collapsed"
    )
    parts[chosen or names[0]]()


def _effect(summary: RunSummary) -> None:
    if summary.answer is not None:
        draw_blocks([answer_picture(summary.answer)])
    for section in comparison_sections(summary):
        if section.caption:
            st.caption(escape_markdown(section.caption))
        draw_blocks(section.blocks)


def _curves(title: str, summary: RunSummary) -> None:
    draw_blocks(curves_section(title, summary).blocks, pairs=True)


def _examined(summary: RunSummary) -> Examination | None:
    """What the doctor says by the metrics alone; None where there is no step of training."""
    steps = {record.step: dict(record.values) for record in summary.metrics}
    return examine(summary.run.run, steps, summary.settings) if any(step > 0 for step in steps) else None


def _findings(run: str, examination: Examination | None) -> None:
    if examination is None:
        st.caption(f"{ABSENT}: there is no step of training")
        return
    st.markdown(f"**{escape_markdown(examination.verdict())}**")
    for finding in examination.findings:
        steps = f"steps {finding.step} to {finding.until}" if finding.until > finding.step else f"step {finding.step}"
        who = f"{role_title(finding.role)}: " if finding.role else ""
        with st.expander(escape_markdown(f"{finding.severity}: {who}{finding.rule}, {steps}")):
            st.text(visible(f"{finding.condition}; at step {finding.step} it was {finding.value:.4g}"))
            st.text(visible(f"What to try: {finding.advice}"))
    st.caption(escape_markdown(f"By the metrics. The conversations too: cryptosentinel doctor {run}"))


def _rollouts(run: str) -> None:
    """The rollouts of a step side by side."""
    with open_store() as store:
        steps = group_steps(store, run)
        if not steps:
            st.caption(f"{ABSENT}: no rollouts are stored yet; they come with the first step.")
            return
        step = st.selectbox("Step, the newest first", steps, key=f"group step {run}")
        draw_blocks([step_rollouts(store, run, step)], run)


def _example(summary: RunSummary) -> None:
    """The decision that the run chose to be shown."""
    example = summary.example
    if example is None:
        st.caption(ABSENT)
    else:
        draw_lines(narrate(decision_tree(example)), "example")
