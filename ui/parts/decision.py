"""Decisions as conversations: which one to show, and its lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import streamlit as st

from backend.decisions.document import StoredDecision
from backend.reporting.charts import CONFIG
from backend.reporting.decision.token_colours import coloured_tokens, token_legend
from backend.reporting.decision_narrative import Line
from backend.reporting.labels import title_of
from backend.reporting.run_page import WindowPage
from cryptosentinel.protocol.untrusted import visible
from ui.access import address_follows, asked_for, escape_markdown, set_address
from ui.parts.drawing import in_theme
from ui.parts.replay import ask_replay

_MOST_LISTED = 400  # decisions in a list; of more one gives the number

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


def open_decision(window: WindowPage, team: str, number: int) -> None:
    """Let the page show a decision when it is drawn next; only for callbacks."""
    name = window.name
    st.session_state[part_key(name)] = "Decisions"
    st.session_state[f"team {name}"] = team
    st.session_state[f"active {name}"] = False
    st.session_state[f"decision {name}"] = number
    if not name:
        set_address("decision", [str(number)])


def choose_decision(window: WindowPage) -> None:
    """A choice of the decisions of a window, and the chosen one as a conversation and as a graph."""
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
    _choose_on_timeline(window, team)
    only_active = st.toggle("Only those that sent orders", value=bool(active), key=f"active {name}")
    offered = {decision.ordinal: decision for decision in (active if only_active and active else decisions)}
    decision = _chosen(window, offered, {one.ordinal: one for one in decisions})
    chosen = decision.ordinal
    talk, graph, replay = st.tabs(["Conversation", "Who asked whom", "What if"])
    with talk:
        for fact in window.cost(decision):
            st.caption(escape_markdown(fact))
        draw_lines(window.lines(decision), name)
    with graph:
        st.caption("From the situation down to what the account made of it; the numbers say in which order it asked.")
        st.graphviz_chart(window.graph(team, decision, st.context.theme.type == "dark"))
    with replay:
        ask_replay(window, team, decision)
    file = f"{decision.run}-decision-{chosen}.html"
    st.download_button(
        "Download the whole transcript", lambda: window.transcript(team, decision), file, "text/html",
        key=f"whole {name}", on_click="ignore",
    )  # fmt: skip


def _choose_on_timeline(window: WindowPage, team: str) -> None:
    """The decisions over time; a click on one chooses it."""
    picture, name = window.timeline(team), window.name
    st.caption(picture.caption)

    def take() -> None:
        for point in st.session_state[f"timeline {name} {team}"]["selection"]["points"][:1]:
            number = point.get("customdata")
            open_decision(window, team, int(number[0] if isinstance(number, list) else number))

    st.plotly_chart(
        in_theme(picture.figure), theme=None, config=CONFIG, alt=visible(picture.title), key=f"timeline {name} {team}",
        on_select=take, selection_mode="points",
    )  # fmt: skip


def _chosen(
    window: WindowPage, offered: Mapping[int, StoredDecision], every: Mapping[int, StoredDecision]
) -> StoredDecision:
    """The decision that is shown, which the address names: by a list, or where that is too long by its number."""
    key = f"decision {window.name}"
    follow = None if window.name else address_follows("decision", key)
    asked = asked_for("decision", [str(number) for number in every], "a decision") if not window.name else []
    if asked and st.session_state.get("decision asked") != asked[0]:
        st.session_state["decision asked"] = asked[0]
        st.session_state[key] = int(asked[0])
        offered = offered if int(asked[0]) in offered else every
    if len(offered) > _MOST_LISTED:
        first, last = min(every), max(every)
        if not first <= st.session_state.get(key, first) <= last:
            st.session_state.pop(key, None)
        number = int(st.number_input(f"Decision, {first} to {last}", first, last, key=key, step=1, on_change=follow))
        decision = every[number] if number in every else every[first]
        st.caption(escape_markdown(window.label(decision)))
    else:
        if st.session_state.get(key) not in offered:
            st.session_state.pop(key, None)
        number = st.selectbox(
            "Decision", list(offered), format_func=lambda ordinal: window.label(offered[ordinal]), key=key,
            on_change=follow,
        )  # fmt: skip
        decision = offered[number]
    return decision


def draw_lines(lines: Sequence[Line], key: str) -> None:
    """A decision line by line. What models and news said is shown as plain text, never as Markdown or HTML."""
    st.caption("Indented: consultations. Percentages of a position are of the part of the account that the coin has.")
    exact = st.toggle(
        "Show the exact words too", key=f"exact {key}",
        help="Of a model whose log-probabilities are recorded, on grounds that say how sure it was of each word.",
    )  # fmt: skip
    if exact:
        if any(line.tokens for line in lines):
            st.html(token_legend())
        else:
            st.caption(
                "No log-probabilities are recorded here: rules have none, many endpoints give none, and programs "
                "before this one kept only their sum."
            )
    for line in lines:
        if line.depth:
            with st.columns([1, 16])[1]:
                _draw_line(line, exact)
        else:
            _draw_line(line, exact)


def _draw_line(line: Line, exact: bool) -> None:
    if line.speaker == "tool":
        with st.expander(escape_markdown(line.title), icon=_AVATARS["tool"]):
            st.text(visible(line.text))
            _draw_exact(line, exact)
        return
    with st.chat_message(line.title, avatar=_AVATARS.get(line.speaker)):
        st.caption(escape_markdown(line.title))
        st.text(visible(line.text))
        _draw_exact(line, exact)
        if line.note:
            st.caption(escape_markdown(line.note))


def _draw_exact(line: Line, exact: bool) -> None:
    if not exact:
        return
    if line.tokens:
        st.html(coloured_tokens(line.tokens))
    if line.raw and (line.speaker == "tool" or not line.tokens) and line.raw != line.text:
        st.code(visible(line.raw), language=None, wrap_lines=True)
