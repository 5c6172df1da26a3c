"""Decisions as conversations: which one to show, and its lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import streamlit as st

from backend.decisions.document import StoredDecision
from backend.reporting.decision_narrative import Line, decision_facts, headline, narrate, transcript
from backend.reporting.labels import title_of
from backend.reporting.run_summary import WindowResult
from backend.store.records import RunRecord
from cryptosentinel.protocol.untrusted import visible
from simulator.market.timeframes import format_time
from ui.access import address_follows, asked_for, escape_markdown, set_address
from ui.parts.replay import ask_replay

_MOST_LISTED = 400  # decisions in a list that say what was decided

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


def part_key(window: str) -> str:
    """The key under which the page keeps which part of a window is open."""
    return f"part {window}"


def open_decision(window: str, team: str, number: int) -> None:
    """Let the page show a decision when it is drawn next; only for callbacks."""
    st.session_state[part_key(window)] = "Decisions"
    st.session_state[f"team {window}"] = team
    st.session_state[f"active {window}"] = False
    st.session_state[f"decision {window}"] = number
    if not window:
        set_address("decision", [str(number)])


def choose_decision(run: RunRecord, window: WindowResult) -> None:
    """A choice of the decisions of a window, and the chosen one as a conversation."""
    by_team, name = window.decisions, window.name
    if not by_team:
        st.caption("No decisions are stored: teams have them, strategies do not.")
        return
    teams = list(by_team)
    team = st.selectbox("Team", teams, format_func=title_of, key=f"team {name}") if teams[1:] else teams[0]
    decisions = by_team[team]
    active = [decision for decision in decisions if decision.document.orders]
    st.caption(
        f"{len(active)} of {len(decisions)} decisions sent orders. The percentage is the whole account's change up to "
        "the next decision. A click on a mark under Candles opens its decision here."
    )
    only_active = st.toggle("Only those that sent orders", value=bool(active), key=f"active {name}")
    offered = {decision.ordinal: decision for decision in (active if only_active and active else decisions)}
    decision = _chosen(window, offered, {one.ordinal: one for one in decisions})
    talk, replay = st.tabs(["Conversation", "What if"])
    with talk:
        tree = window.traced(decision)
        for fact in decision_facts(tree):
            st.caption(escape_markdown(fact))
        draw_lines(narrate(tree), name)
    with replay:
        ask_replay(run, window, team, decision)

    st.download_button(
        "Download the whole transcript", lambda: transcript(decision, tree),
        f"{decision.run}-decision-{decision.ordinal}.txt", "text/plain", key=f"whole {name}", on_click="ignore",
    )  # fmt: skip


def _chosen(
    window: WindowResult, offered: Mapping[int, StoredDecision], every: Mapping[int, StoredDecision]
) -> StoredDecision:
    """The decision that is shown, which the address names."""
    key = f"decision {window.name}"
    follow = None if window.name else address_follows("decision", key)
    asked = asked_for("decision", [str(number) for number in every], "a decision") if not window.name else []
    if asked and st.session_state.get("decision asked") != asked[0]:
        st.session_state["decision asked"] = asked[0]
        st.session_state[key] = int(asked[0])
        offered = offered if int(asked[0]) in offered else every

    many = len(offered) > _MOST_LISTED

    def label(number: int) -> str:
        when = format_time(every[number].time)
        return f"{number}: {when}" if many else f"{when} · {headline(window.tree(every[number]))}"

    if st.session_state.get(key) not in offered:
        st.session_state.pop(key, None)
    number = st.selectbox("Decision", list(offered), format_func=label, key=key, on_change=follow)
    return every[number]


def draw_lines(lines: Sequence[Line], key: str) -> None:
    """A decision line by line. What models and news said is shown as plain text, never as Markdown or HTML."""
    st.caption("Indented: consultations. Percentages of a position are of the part of the account that the coin has.")
    exact = st.toggle("Show the exact words too", key=f"exact {key}")
    for line in lines:
        with st.columns([1, 16])[1] if line.depth else st.container():
            _draw_line(line, exact)


def _draw_line(line: Line, exact: bool) -> None:
    if line.speaker == "tool":
        with st.expander(escape_markdown(line.title), icon=_AVATARS["tool"]):
            _draw_words(line, exact)
        return
    with st.chat_message(line.title, avatar=_AVATARS.get(line.speaker)):
        st.caption(escape_markdown(line.title))
        _draw_words(line, exact)


def _draw_words(line: Line, exact: bool) -> None:
    st.text(visible(line.text))
    if exact and line.raw and line.raw != line.text:
        st.code(visible(line.raw), language=None, wrap_lines=True)
    if line.note:
        st.caption(escape_markdown(line.note))
