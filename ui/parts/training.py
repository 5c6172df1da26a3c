"""A training on the page: its curves as they grow, what the doctor finds, one group of rollouts, adapters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd
import streamlit as st

from backend.evaluation.doctor import RULES, Examination, examine
from backend.reporting.blocks import ReportBlock
from backend.reporting.charts import Event
from backend.reporting.labels import ABSENT
from backend.reporting.run_page import RunPage
from backend.reporting.training.curves import CurveMark
from backend.reporting.training.group import group_steps, step_groups
from backend.runs.requests import RUNS
from backend.store.records import AdapterRecord, PublishedRecord
from cryptosentinel.agents.registry import role_title
from cryptosentinel.protocol.untrusted import visible
from ui.access import escape_markdown, mistakes_explained, open_store
from ui.parts.decision import draw_lines
from ui.parts.drawing import draw_blocks, draw_tiles, show_table

_LOOK_SECONDS = 1.0
_CHECKSUM = 12  # characters of a checksum that tell versions apart


def show_training(page: RunPage) -> None:
    """A training that has ended, or one that goes on and is followed."""
    if page.run.status == "running":
        _follow_training(page.run.run)
        return
    st.subheader(escape_markdown(page.summary.opening))
    draw_tiles(page.tiles)
    _parts(page, ended=True)


@st.fragment(run_every=_LOOK_SECONDS)
def _follow_training(run_id: str) -> None:
    """The curves of a training that goes on; the page is drawn anew when it has ended."""
    with mistakes_explained():
        with open_store() as store:
            page = RunPage.read_training(store, run_id)
        if page.run.status != "running":
            st.rerun(scope="app")
        if not page.steps:
            st.info("The training has begun; no step of it is done yet.")
            return
        st.subheader(f"Step {max(page.steps)} is done")
        _parts(page, ended=False)


def _parts(page: RunPage, *, ended: bool) -> None:
    """A choice of what to look at; only that is drawn, so that a training which is followed stays fluid."""
    run = page.run.run
    examination = _examined(page)
    marks = _marks(examination)
    parts: dict[str, Callable[[], None]] = {}
    if ended:
        parts["Did it help?"] = lambda: draw_blocks(page.comparison().blocks)
    parts |= {
        "How it learned": lambda: _in_pairs(page.learning(marks).blocks),
        "What was paid for": lambda: _in_pairs(page.rewards(marks).blocks),
        "What the optimizer saw": lambda: _in_pairs(page.optimizer(marks).blocks),
        "Findings": lambda: _findings(run, examination),
        "A group": lambda: _group(page),
        "Adapters": lambda: _adapters(run),
    }
    if ended:
        parts["One decision"] = lambda: _example(page)
    names = list(parts)
    key = f"part of {run} {'ended' if ended else 'running'}"
    measured = ended and not page.summary.evaluations.get("held_out")
    chosen = st.segmented_control(
        "What to look at", names, default=names[1] if measured else names[0], key=key, label_visibility="collapsed"
    )
    parts[chosen or names[0]]()


def _examined(page: RunPage) -> Examination | None:
    """What the doctor says by the metrics alone; None where there is no step of training."""
    if not any(step > 0 for step in page.steps):
        return None
    return examine(page.run.run, page.steps, page.settings)


def _marks(examination: Examination | None) -> list[CurveMark]:
    """Each finding at the step where it begins, in the pictures of the metrics that it is about."""
    if examination is None:
        return []
    needs = {rule.name: frozenset(name.removeprefix("{role}/") for name in rule.needs) for rule in RULES}
    return [
        CurveMark(
            Event(one.step, "finding", f"{role_title(one.role)}: {one.rule}" if one.role else one.rule), needs[one.rule]
        )
        for one in examination.findings
    ]


def _in_pairs(blocks: Sequence[ReportBlock]) -> None:
    columns = st.columns(2)
    for number, block in enumerate(blocks):
        with columns[number % 2]:
            draw_blocks([block])


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


def _group(page: RunPage) -> None:
    """One query of one step: its rollouts side by side, the rewards, and the alignment."""
    run = page.run.run
    with open_store() as store:
        steps = group_steps(store, run)
        if not steps:
            st.caption(f"{ABSENT}: no rollouts are stored yet; they come with the first step.")
            return
        left, right = st.columns([1, 3])
        step = left.selectbox("Step, the newest first", steps, key=f"group step {run}")
        groups = step_groups(store, run, step)
    number = right.selectbox(
        "Window of the market", range(len(groups)), format_func=lambda place: groups[place].title,
        key=f"group of {run}", help="Each window is played several times from the same state. These are one group.",
    )  # fmt: skip
    group = groups[min(number, len(groups) - 1)]
    training = page.settings.get("training")
    method = str(training.get("alignment", "duplicate_drop")) if isinstance(training, dict) else "duplicate_drop"
    metrics = page.steps.get(step, {})
    ending = "/alignment/target"
    targets = {name.removesuffix(ending): value for name, value in metrics.items() if name.endswith(ending)}
    draw_blocks([group.side_by_side()], run)
    _in_pairs([group.picture(), group.alignment(method, targets)])
    draw_blocks([group.conversations()], run)


def _adapters(run: str) -> None:
    """The versions of each role's weights."""
    with open_store() as store:
        versions: list[AdapterRecord | PublishedRecord] = [*store.adapters(run), *store.published(run)]
    if not versions:
        st.caption(f"{ABSENT}: a version is stored at each validation and at the end.")
        return
    st.caption("The weights that training changed, one file a role and version; the base model stays as it is.")
    gone = [one for one in versions if not (RUNS / run / one.path).is_file()]
    if gone:
        st.warning(
            escape_markdown(
                f"{len(gone)} of {len(versions)} files are not in {RUNS / run} any more. A team needs those of its "
                f"newest version: put them back from a backup, or train anew with the settings of this run."
            )
        )
    table = {
        "role": [role_title(one.role) for one in versions],
        "step": [one.step for one in versions],
        "version": [one.version for one in versions],
        "file": [one.path for one in versions],
        "there": ["no" if one in gone else "yes" for one in versions],
        "checksum (SHA-256)": [one.checksum[:_CHECKSUM] for one in versions],
    }
    show_table(pd.DataFrame(table))


def _example(page: RunPage) -> None:
    lines = page.example()
    if lines:
        draw_lines(lines, "example")
    else:
        st.caption(ABSENT)
