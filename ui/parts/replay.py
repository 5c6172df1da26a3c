"""One decision replayed on the page: what is changed, and both decisions side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pandas as pd
import streamlit as st

from backend.decisions.document import StoredDecision
from backend.decisions.tree import ConversationNode, DecisionTree, decision_tree
from backend.reporting.decision.side_by_side import paired_rows
from backend.reporting.run_page import WindowPage
from backend.runs.again.decision_edit import parse_edit
from backend.runs.again.decision_replay import DecisionReplay, replay_decision
from cryptosentinel.agents.registry import role_title
from cryptosentinel.protocol.tool_calls import ToolCall
from cryptosentinel.protocol.untrusted import visible
from ui.access import escape_markdown, mistakes_explained, open_store
from ui.parts.drawing import show_table

_ANSWER, _OBSERVATION = "What a role answers", "What a role is shown"


def ask_replay(window: WindowPage, team: str, decision: StoredDecision) -> None:
    """A form in which an answer or an observation is edited, and what the decision becomes with it."""
    if window.run.kind != "backtest":
        st.caption("Decisions of backtests can be replayed.")
        return
    tree = decision_tree(decision.document)
    st.caption(
        "What would have been decided with another answer, or with other facts? The team plays up to this decision as "
        "it did; then whoever is shown something else answers anew."
    )
    key = f"{decision.backtest} {decision.ordinal}"
    kind = st.segmented_control("Change", [_ANSWER, _OBSERVATION], default=_ANSWER, key=f"change {key}")
    offered = dict(_answers(tree) if kind == _ANSWER else _observations(tree))
    if not offered:
        st.caption("This decision has none that is stored.")
        return
    what = st.selectbox("Which", list(offered), format_func=_label, key=f"which {kind} {key}")
    with st.form(f"replay {key}"):
        text = st.text_area("Instead", offered[what], key=f"instead {what} {key}", height=110)
        rules = st.toggle(
            "Rules answer what was not asked then", key=f"rules {key}",
            help="Off: the team's own model answers. A recording can only repeat, so it needs the rules.",
        )  # fmt: skip
        source = st.text_input(
            "The team, as it was named in the backtest", key=f"source {key}",
            help="Needed only where the run does not say it, such as a run of another user.",
        )  # fmt: skip
        submitted = st.form_submit_button("Replay", type="primary", icon=":material/replay:")
    if submitted:
        with mistakes_explained(), st.spinner("The team plays up to this decision"):
            edits = [f"{what}={text}"]
            edit = parse_edit(edits, ()) if kind == _ANSWER else parse_edit((), edits)
            with open_store() as store:
                replay = replay_decision(
                    store, decision.run, decision.ordinal, edit, backtest=team, team=source.strip(),
                    by="rules" if rules else "team",
                )  # fmt: skip
            _show(replay)


def _show(replay: DecisionReplay) -> None:
    """Both decisions row by row; the cells hold plain text."""
    rows = paired_rows(replay.then_tree, replay.now_tree)
    (st.info if replay.same else st.success)(
        f"{'The orders are the same' if replay.same else 'The orders differ'}: "
        f"{sum(row.differs for row in rows)} of {len(rows)} rows differ. {replay.asked} requests were answered anew."
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


def _observations(tree: DecisionTree) -> Iterator[tuple[str, str]]:
    """What each role was shown: results of its tools, and its question."""
    for node in [] if tree.manager is None else tree.manager.everyone():
        yield from _shown(node)


def _shown(node: ConversationNode) -> Iterator[tuple[str, str]]:
    for turn in node.turns:
        if isinstance(turn.call, ToolCall) and not turn.consults and turn.result is not None:
            yield f"{node.role}.{turn.call.name}", turn.result
    yield f"{node.role}.brief", node.prompt


def _label(name: str) -> str:
    role, _, what = name.partition(".")
    return f"{role_title(role)}: {what or 'answer'}"
