"""A paper session on the page: account, orders, decisions, guard, parity, drift, alerts, and its kill switch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import streamlit as st

from backend.decisions.tree import decision_tree
from backend.jobs.commands import session_resume_command
from backend.paper.overview import SessionOverview, is_killed
from backend.paper.switch import process_of, set_kill, set_stop
from backend.reporting.charts import accounts_chart
from backend.reporting.decision_narrative import headline, narrate
from backend.runs.requests import RUNS
from cryptosentinel.protocol.untrusted import visible
from simulator.market.timeframes import format_time
from ui.access import escape_markdown, job_queue, store_name
from ui.parts.decision import draw_lines
from ui.parts.drawing import MOMENT, draw_figure, show_table
from ui.parts.job import open_job

_SWITCHES = {
    "Close everything": ("flatten", "All orders are withdrawn and all positions closed at the market."),
    "Freeze": ("freeze", "Orders that could open anything are withdrawn; positions stay."),
}
_EVENTS_SHOWN = 50
_TRADE = ("time", "symbol", "quantity", "price", "fee", "reason")
_POSITIONS = {
    "entry": st.column_config.NumberColumn("entry price", help="The average price of what is open."),
    "price": st.column_config.NumberColumn("last price"),
    "profit": st.column_config.NumberColumn(format="%+.2f", help="By the last price, before the costs of closing."),
    "share": st.column_config.NumberColumn(format="%+.2f %%", help="Of the equity; below 0: short."),
}


def draw_switch(session: str) -> None:
    """The kill switch and the stop of a session that runs here. They write the files that the commands write, and ask
    no store."""
    folder = RUNS / session
    if process_of(folder) is None:
        return
    words, stop, kill = st.columns([4, 1, 1], vertical_alignment="center")
    if is_killed(folder):
        words.error("The kill switch is set.", icon=":material/block:")
        return
    words.caption("The kill switch works within about a second, also while a model thinks and while this page waits.")
    with stop.popover("Stop", icon=":material/pause:", width="stretch"):
        st.text("The decision under way is finished; orders and positions stay. The session can be resumed.")
        if st.button("Stop it", key=f"stop {session}"):
            set_stop(folder)
            st.toast("The session stops.")
    with kill.popover("Kill", icon=":material/dangerous:", width="stretch"):
        st.text("From then on the session decides nothing more. Choose what becomes of its positions:")
        for label, (how, meaning) in _SWITCHES.items():
            st.caption(meaning)
            if st.button(f"{label} now", key=f"{how} {session}", type="primary" if how == "flatten" else "secondary"):
                set_kill(folder, "flatten" if how == "flatten" else "freeze")
                st.rerun(scope="app")


def _offer_to_resume(session: str) -> None:
    """A button that resumes a session whose process is gone, as a job; of one with its kill switch set, only after the
    reader has said that it may be released."""
    words, place = st.columns([5, 1], vertical_alignment="center")
    killed = is_killed(RUNS / session)
    release = False
    if killed:
        words.error("The kill switch is set.", icon=":material/block:")
        release = words.checkbox("Release the kill switch", key=f"release {session}")
    else:
        words.caption("It can be resumed with the same account.")
    if place.button("Resume", key=f"resume {session}", icon=":material/resume:", disabled=killed and not release):
        open_job(job_queue().submit(session_resume_command(session, store_name(), str(RUNS), release=release)))


def draw_session(found: SessionOverview) -> None:
    """Everything that is known of a session."""
    outcome = found.outcome
    # Each part has a container of its own, so that what comes and goes above does not move what is below.
    with st.container():
        _standing(found)
    gained = outcome.equity / outcome.begun_with - 1.0
    held = 100.0 * sum(abs(one.share) for one in found.positions)
    tiles = (
        ("Equity", f"{outcome.equity:,.2f}", f"{100.0 * gained:+.2f} % since the session began"),
        ("Bars", f"{outcome.bars:,}", f"{outcome.fills:,} fills"),
        ("Decisions", f"{outcome.decisions:,}", f"{outcome.missed:,} missed"),
        ("Held", f"{held:.0f} %", "of the equity, all positions together"),
        ("Guard", *_guard(found.guard)),
    )
    for column, (label, value, note) in zip(st.columns(5), tiles, strict=True):
        column.metric(label, value)
        column.caption(escape_markdown(note))
    with st.container():
        _curve(found)
    tabs = st.tabs(["Positions and orders", "Decisions", "Alerts and events", "Parity"])
    with tabs[0]:
        _holdings(found)
    with tabs[1]:
        _decisions(found)
    with tabs[2]:
        _events(found)
    with tabs[3]:
        _report(found)


def _standing(found: SessionOverview) -> None:
    record = found.record
    where = f", process {found.process}" if found.process else ""
    st.markdown(f"**{escape_markdown(record.run)}** is {record.status}{where}, traded by {escape_markdown(found.team)}")
    if record.message and record.message != record.status:
        st.caption(escape_markdown(record.message))
    if found.process is None and record.status != "finished":
        _offer_to_resume(record.run)
    if found.problem:
        st.warning(escape_markdown(f"Not well: {found.problem}"))


def _curve(found: SessionOverview) -> None:
    if len(found.curve) > 1:
        curves = {"session": ([time for time, _ in found.curve], [equity for _, equity in found.curve])}
        figure = accounts_chart(curves, f"return over the newest {len(found.curve)} bars")
        draw_figure(figure, "Equity of the session", f"equity {found.record.run}")
    else:
        st.caption("No bar is over yet.")


def _guard(state: Mapping[str, Any]) -> tuple[str, str]:
    """One word, and what it means."""
    if state.get("flat_rule"):
        until = state.get("flat_until")
        return "flat", f"{state['flat_rule']}, until {format_time(until) if until else 'the end'}"
    held = len(state.get("held_back") or ())
    return "open", f"{held} orders are held back" if held else "within all limits"


def _holdings(found: SessionOverview) -> None:
    st.markdown("**Positions at the last close**")
    if found.positions:
        frame = pd.DataFrame([vars(one) for one in found.positions])
        frame["share"] *= 100.0
        show_table(frame, column_config=_POSITIONS)
    else:
        st.caption("Nothing is held.")
    st.markdown("**Open orders**")
    if found.waiting:
        show_table(pd.DataFrame([_order(one) for one in found.waiting]))
    else:
        st.caption("No order waits.")
    st.markdown("**Trades**")
    if found.trades:
        frame = pd.DataFrame([{name: one.get(name) for name in _TRADE} for one in found.trades])
        frame["time"] = pd.to_datetime(frame["time"], unit="ms")
        frame = frame.rename(columns={"time": "at (UTC)", "reason": "because of"})
        show_table(frame, column_config={"at (UTC)": MOMENT})
    else:
        st.caption("No trade so far.")


def _order(order: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("symbol", "kind", "quantity", "price", "trigger", "stop", "target", "reduce_only")
    return {name.replace("_", " "): order.get(name) for name in kept}


def _decisions(found: SessionOverview) -> None:
    if not found.decisions:
        st.caption("Nothing was decided lately.")
        return
    trees = [decision_tree(decision.document) for decision, _ in found.decisions]
    labels = {
        number: f"{format_time(decision.time)} · {visible(headline(trees[number]))}"
        for number, (decision, _) in enumerate(found.decisions)
    }
    chosen = st.selectbox("The newest first", list(labels), format_func=labels.__getitem__,
                          key=f"decision {found.record.run}")  # fmt: skip
    entry = found.decisions[chosen][1]
    late = max([int(entry["begun"]), *(one[1] for one in entry["requests"])]) / 1000.0
    st.caption(f"{late:.1f} s after the close, {len(entry['requests'])} orders")
    if entry.get("cut_off"):
        st.warning(escape_markdown(f"The model was left behind: {entry['cut_off']}"))
    if entry.get("dropped"):
        st.warning("The kill switch was set: nothing of it was sent.")
    draw_lines(narrate(trees[chosen]), f"of {found.record.run}")


def _events(found: SessionOverview) -> None:
    met = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in found.outcome.met.items())
    st.caption(escape_markdown(f"The feed met: {met or 'no trouble'}."))
    if not found.events:
        st.caption("No alert and no event lately.")
        return
    frame = pd.DataFrame([vars(one) for one in reversed(found.events[-_EVENTS_SHOWN:])])
    frame["time"] = pd.to_datetime(frame["time"], unit="ms")
    show_table(frame.rename(columns={"time": "at (UTC)"}), column_config={"at (UTC)": MOMENT})


def _report(found: SessionOverview) -> None:
    report = found.report
    if report is None:
        st.caption("No report was made yet. It plays the session again, which takes as long as its decisions do:")
    else:
        st.caption(f"The report of {format_time(report.at)} UTC. Again:")
    st.code(f"cryptosentinel paper report {found.record.run}", language=None)
    if report is None:
        return
    if report.differences:
        st.error(f"Parity: {report.differences} differences from the backtest of the recorded inputs")
    else:
        st.success("Parity: the backtest of the recorded inputs does the same")
    for sentence in report.parity:
        st.text(visible(sentence))
