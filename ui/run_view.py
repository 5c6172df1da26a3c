"""One run on the page: what it came to, pictures, tables, and its decisions as conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from backend import charts
from backend.naming import ABSENT, COLUMNS, Kind, duration_text, title_of
from backend.summary import Played, RunSummary, candles, how_it_was_run
from backend.telling import Line, headline, tell
from simulator.market import format_time
from ui.access import mistakes_explained, plain

MOMENT = st.column_config.DatetimeColumn(format="YYYY-MM-DD HH:mm")

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
_NUMBER_FORMATS: dict[Kind, tuple[float, str]] = {
    "change": (100, "%+.2f %%"),
    "share": (100, "%.1f %%"),
    "small_share": (100, "%.2f %%"),
    "ratio": (1, "%.2f"),
    "count": (1, "%.4g"),
}


def show_run(summary: RunSummary) -> None:
    """Show a run of any kind; what it did not get to is left out or said to be not available."""
    run = summary.run
    if run.status != "finished":
        st.warning(plain(f"This run is {run.status}" + (f": {run.message}" if run.message else ".")))
    if run.kind != "backtest":
        _training(summary)
    for played in summary.played():
        if played.window:
            st.subheader(plain(f"The first window of the evaluation {played.window}"))
        _played(summary, played)
    with st.expander("How it was run"):
        wall = ("Wall time", duration_text(summary.wall_seconds))
        for label, value in [*how_it_was_run(summary), wall]:
            st.text(f"{label}: {value}")
        if summary.settings:
            st.json(summary.settings, expanded=1)


def _played(summary: RunSummary, played: Played) -> None:
    own, results = played.own, played.results
    st.markdown(f"**{plain(played.sentence)}**")
    if own["absent_bars"]:
        st.warning(
            f"The data lacks {own['absent_bars']} bars of this period. Nothing was filled in: orders waited, and "
            "positions kept their last price."
        )
    curves: dict[str, Sequence[float]] = {name: result["equity"] for name, result in results.items()}
    times = charts.moments(own["times"])
    tabs = st.tabs(["Equity", "Decisions", "Trades", "Candles", "Numbers"])
    with tabs[0]:
        _plot(
            charts.equity_chart(curves, times, "", played.main),
            f"{played.window} Equity against the baselines",
        )
        st.markdown("**Drawdown**: how far each lies below its own best moment so far")
        _plot(charts.drawdown_chart(curves, times, "", played.main), f"{played.window} Drawdown")
        st.markdown("**Exposure**: above 0 it is long, below 0 short")
        _plot(charts.exposure_chart(own["times"], own["exposure"], own["symbols"]), f"{played.window} Exposure")
    with tabs[1]:
        _decisions(played)
    with tabs[2]:
        _trades(own["trades"])
    with tabs[3]:
        _candles(summary, played)
    with tabs[4]:
        _results(played.rows)
        st.caption("What trading cost, in quote currency; negative funding was received.")
        st.dataframe(pd.DataFrame({title_of(name): result["costs"] for name, result in results.items()}).T.round(2))


def _training(summary: RunSummary) -> None:
    st.subheader(plain(summary.opening))
    held_out, no_edge = summary.evaluations.get("held_out"), summary.evaluations.get("no_edge")
    tabs = st.tabs(["Did it help?", "How it learned", "One decision"])
    with tabs[0]:
        found = {"Held-out windows": held_out, "No-edge twin": no_edge}
        differences = {label: one["difference"] for label, one in found.items() if one and one.get("difference")}
        if differences:
            st.caption(
                "Trained minus warm-started on the same windows. A bar wholly right of 0 says that training helped; on "
                "the no-edge twin, where there is nothing to learn, it should touch 0."
            )
            _plot(charts.difference_chart(differences), "Trained minus warm-started")
        for label, result in found.items():
            st.markdown(f"**{label}**")
            if result:
                _results(result["rows"])
            else:
                st.caption(ABSENT)
        if held_out and held_out.get("equity"):
            st.caption("Mean return over the held-out windows, net of all costs.")
            chart = charts.equity_chart(held_out["equity"], held_out["equity_days"], "days into the window", "trained")
            _plot(chart, "Equity on held-out windows")
    with tabs[1]:
        curves = summary.curves()
        if not curves:
            st.caption(ABSENT)
        columns = st.columns(2)
        for number, curve in enumerate(curves):
            with columns[number % 2]:
                st.markdown(f"**{curve.title}**")
                st.caption(curve.caption)
                _plot(charts.step_chart(curve.series, summary.events), curve.title)
        if summary.calls:
            st.markdown("**Whom the manager asked**")
            _plot(charts.calls_chart(summary.calls), "Calls in one decision")
    with tabs[2]:
        story = summary.evaluations.get("story")
        if story:
            show_decision(story, "story")
        else:
            st.caption(ABSENT)


def _decisions(played: Played) -> None:
    """A choice of decisions, and the chosen one as a conversation."""
    if not played.decisions:
        st.caption("No decisions are stored.")
        return
    teams = list(played.decisions)
    team = st.selectbox("Team", teams, format_func=title_of, key=f"team {played.window}") if teams[1:] else teams[0]
    records = played.decisions[team]
    active = [record for record in records if record.story.get("orders")]
    st.caption(
        f"{len(active)} of {len(records)} decisions sent orders. The percentage is the whole account's change up to "
        "the next decision."
    )
    only_active = st.toggle("Only those that sent orders", value=bool(active), key=f"active {played.window}")
    offered = {record.ordinal: record for record in (active if only_active and active else records)}

    def label(ordinal: int) -> str:
        return f"{format_time(offered[ordinal].time)} · {headline(offered[ordinal].story)}"

    chosen = st.selectbox("Decision", list(offered), format_func=label, key=f"decision {played.window}")
    show_decision(offered[chosen].story, played.window)


def show_decision(story: Mapping[str, Any], key: str) -> None:
    """A decision as a conversation. What models and news said is shown as plain text, never as Markdown or HTML."""
    st.caption("Indented: consultations. Percentages of a position are of the part of the account that the coin has.")
    exact = st.toggle("Show the exact words too", key=f"exact {key}")
    for line in tell(dict(story)):
        if line.depth:
            with st.columns([1, 16])[1]:
                _line(line, exact)
        else:
            _line(line, exact)


def _line(line: Line, exact: bool) -> None:
    with st.chat_message(line.title, avatar=_AVATARS.get(line.speaker)):
        st.caption(plain(line.title))
        st.text(line.text)
        if exact and line.raw and line.raw != line.text:
            st.code(line.raw, language=None, wrap_lines=True)


def _trades(trades: list[dict[str, Any]]) -> None:
    if not trades:
        st.caption("There were no trades.")
        return
    st.caption("From flat to flat. The profit is net of fees, spread and funding; “open” was still held at the end.")
    frame = pd.DataFrame(
        {
            "symbol": [trade["symbol"] for trade in trades],
            "quantity": [trade["quantity"] for trade in trades],
            "from (UTC)": pd.to_datetime([trade["entry_time"] for trade in trades], unit="ms"),
            "at": [trade["entry_price"] for trade in trades],
            "to (UTC)": pd.to_datetime([trade["exit_time"] for trade in trades], unit="ms"),
            "at ": [trade["exit_price"] for trade in trades],
            "profit": [trade["pnl"] for trade in trades],
            "closed by": [trade["reason"] for trade in trades],
        }
    )
    number = st.column_config.NumberColumn(format="%.6g")
    config = {"from (UTC)": MOMENT, "to (UTC)": MOMENT, "quantity": number, "at": number, "at ": number}
    config["profit"] = st.column_config.NumberColumn(format="%+.2f")
    st.dataframe(frame, hide_index=True, column_config=config)


def _candles(summary: RunSummary, played: Played) -> None:
    if played.window == "no_edge":
        st.caption("The twin's bars are not kept: it is made anew for each evaluation.")
        return
    own = played.own
    symbol = st.selectbox("Symbol", own["symbols"], key=f"symbol {played.window}")
    with mistakes_explained():
        bars = candles(summary.run, symbol, own["times"][0], own["times"][-1])
        _plot(charts.candles_chart(bars, own["fills"]), f"{played.window} Candles of {symbol} with the trades")


def _results(rows: Mapping[str, Mapping[str, Any]]) -> None:
    """A table of results that can be sorted, its numbers as in the report."""
    frame = pd.DataFrame({"who": [title_of(name) for name in rows]})
    config = {}
    for column in COLUMNS:
        scale, form = _NUMBER_FORMATS[column.kind]
        values = [row.get(column.key) for row in rows.values()]
        frame[column.title] = [None if value is None else scale * value for value in values]
        config[column.title] = st.column_config.NumberColumn(format=form, help=column.meaning)
    st.dataframe(frame, hide_index=True, column_config=config, placeholder="–")


def _plot(figure: go.Figure, label: str) -> None:
    st.plotly_chart(figure, theme=None, config=charts.CONFIG, alt=label.strip(), key=label)
