"""Decisions as conversations: which one to show, and its lines."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from backend.reporting.decision_narrative import Line
from backend.reporting.labels import title_of
from backend.reporting.run_page import WindowPage
from cryptosentinel.protocol.untrusted import visible
from ui.access import escape_markdown

_AVATARS = {
    "manager": ":material/account_balance:",
    "market_analyst": ":material/query_stats:",
    "risk_analyst": ":material/shield:",
    "trader": ":material/swap_horiz:",
    "tool": ":material/build:",
    "desk": ":material/assignment:",
    "guard": ":material/gavel:",
    "orders": ":material/send:",
    "result": ":material/payments:",
}


def choose_decision(window: WindowPage) -> None:
    """A choice of the decisions of a window, and the chosen one as a conversation."""
    by_team, name = window.result.decisions, window.name
    if not by_team:
        st.caption("No decisions are stored: teams have them, strategies do not.")
        return
    teams = list(by_team)
    team = st.selectbox("Team", teams, format_func=title_of, key=f"team {name}") if teams[1:] else teams[0]
    decisions = by_team[team]
    active = [decision for decision in decisions if decision.document.orders]
    st.caption(
        f"{len(active)} of {len(decisions)} decisions sent orders. The percentage is the whole account's change up to "
        "the next decision."
    )
    only_active = st.toggle("Only those that sent orders", value=bool(active), key=f"active {name}")
    offered = {decision.ordinal: decision for decision in (active if only_active and active else decisions)}
    chosen = st.selectbox(
        "Decision", list(offered), format_func=lambda ordinal: window.label(offered[ordinal]), key=f"decision {name}"
    )
    decision = offered[chosen]
    draw_lines(window.lines(decision), name)
    file = f"{decision.run}-decision-{chosen}.html"
    transcript = window.transcript(team, decision)
    st.download_button("Download the whole transcript", transcript, file, "text/html", key=f"whole {name}")


def draw_lines(lines: Sequence[Line], key: str) -> None:
    """A decision line by line. What models and news said is shown as plain text, never as Markdown or HTML."""
    st.caption("Indented: consultations. Percentages of a position are of the part of the account that the coin has.")
    exact = st.toggle("Show the exact words too", key=f"exact {key}")
    for line in lines:
        if line.depth:
            with st.columns([1, 16])[1]:
                _draw_line(line, exact)
        else:
            _draw_line(line, exact)


def _draw_line(line: Line, exact: bool) -> None:
    with st.chat_message(line.title, avatar=_AVATARS.get(line.speaker)):
        st.caption(escape_markdown(line.title))
        st.text(visible(line.text))
        if exact and line.raw and line.raw != line.text:
            st.code(visible(line.raw), language=None, wrap_lines=True)
