"""One decision replayed on the page: what is changed, and both decisions side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pandas as pd
import streamlit as st

from backend.decisions.document import StoredDecision
from backend.decisions.tree import DecisionTree
from backend.reporting.decision_narrative import paired_rows
from backend.reporting.run_summary import WindowResult
from backend.runs.replay import Answering, DecisionReplay, parse_answers, replay_decision
from backend.store.records import RunRecord
from cryptosentinel.agents.registry import role_title
from cryptosentinel.protocol.untrusted import visible
from ui.access import escape_markdown, mistakes_explained, open_store
from ui.parts.drawing import show_table


def ask_replay(run: RunRecord, window: WindowResult, team: str, decision: StoredDecision) -> None:
    """A form in which an answer is edited, and what the decision becomes with it."""
    if run.kind != "backtest":
        st.caption("Decisions of backtests can be replayed.")
        return
    tree = window.tree(decision)
    st.caption(
        "What would have been decided with another answer? The team plays up to this decision as it did; then the "
        "roles that are shown something else answer again."
    )
    key = f"{decision.backtest} {decision.ordinal}"
    offered = dict(_answers(tree))
    if not offered:
        st.caption("This decision has none that is stored.")
        return
    what = st.selectbox("Whose answer", list(offered), format_func=role_title, key=f"which {key}")
    with st.form(f"replay {key}"):
        text = st.text_area("Instead", offered[what], key=f"instead {what} {key}", height=110)
        rules = st.toggle(
            "Rules answer what was not asked then", key=f"rules {key}",
            help="Off: the team's own model answers. A recording can only repeat, so it needs the rules.",
        )  # fmt: skip
        submitted = st.form_submit_button("Replay", type="primary", icon=":material/replay:")
    if submitted:
        with mistakes_explained(), st.spinner("The team plays up to this decision"):
            instead = parse_answers([f"{what}={text}"])
            with open_store() as store:
                by: Answering = "rules" if rules else "team"
                replay = replay_decision(store, decision.run, decision.ordinal, instead, team=team, by=by)
            _show(replay)


def _show(replay: DecisionReplay) -> None:
    """Both decisions row by row; the cells hold plain text."""
    rows = paired_rows(replay.then_tree, replay.now_tree)
    (st.info if replay.same else st.success)(
        f"{'The orders are the same' if replay.same else 'The orders differ'}: "
        f"{sum(row.differs for row in rows)} of {len(rows)} rows differ. {replay.asked} requests were answered again."
    )
    for row in rows:
        if row.differs:
            st.caption(escape_markdown(row.label))
            left, right = st.columns(2)
            left.text(visible(f"then: {row.then}"))
            right.text(visible(f"now: {row.now}"))
    same = [row for row in rows if not row.differs]
    with st.expander("What is the same"):
        show_table(
            pd.DataFrame({"what": [row.label for row in same], "as it was": [row.then for row in same]}),
        )


def _answers(tree: DecisionTree) -> Iterator[tuple[str, str]]:
    """Each role that answered, the sub-agents first, with its first valid answer as JSON."""
    nodes = [] if tree.manager is None else list(tree.manager.everyone())
    for node in sorted(nodes, key=lambda one: one is tree.manager):
        answer = node.document.answer
        if answer is not None:
            yield node.role, json.dumps(answer, ensure_ascii=False)
