"""One run on the page: what it came to, pictures, tables, and its decisions as conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from backend.decisions.tree import tree_from
from backend.reporting import charts
from backend.reporting.backtest_sections import chapters, tiles
from backend.reporting.blocks import Missing, Picture, Row, Table
from backend.reporting.decision_narrative import Line, headline, tell
from backend.reporting.decision_views import page
from backend.reporting.labels import ABSENT, COLUMNS, Kind, duration_text, title_of
from backend.reporting.market_reload import Recalled, market_of, recall
from backend.reporting.result_stats import traded_notional
from backend.reporting.run_summary import Played, RunSummary, how_it_was_run
from backend.reporting.trade_sections import candles_part
from backend.store.records import RunRecord
from simulator.market.market import Market
from simulator.market.timeframes import format_time
from ui.access import plain, store_name

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
    "month": (100, "%+.1f %%"),
    "share": (100, "%.1f %%"),
    "small_share": (100, "%.2f %%"),
    "ratio": (1, "%.2f"),
    "count": (1, "%.4g"),
    "money": (1, "%+.2f"),
    "hours": (1, "%.1f h"),
    "days": (1, "%.1f d"),
    "price": (1, "%.6g"),
}


def show_run(summary: RunSummary) -> None:
    """Show a run of any kind; what it did not get to is left out or said to be not available."""
    run = summary.run
    if run.status != "finished":
        st.warning(plain(f"This run is {run.status}" + (f": {run.message}" if run.message else ".")))
    for note in summary.notes:
        st.warning(plain(note))
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
    own = played.own
    st.markdown(f"**{plain(played.sentence)}**")
    if own["absent_bars"]:
        st.warning(
            f"The data lacks {own['absent_bars']} bars of this period. Nothing was filled in: orders waited, and "
            "positions kept their last price."
        )
    for column, tile in zip(st.columns(5), tiles(played), strict=True):
        column.metric(tile.label, tile.value)
        column.caption(plain(tile.note))
    recalled = _recalled(summary, played)
    names = ("Equity", "Numbers", "Costs", "Trades", "Regimes")
    shown = dict(zip(names, chapters(played, summary.settings, recalled), strict=True))
    tabs = st.tabs([*names, "Candles", "Decisions"])
    for tab, chapter in zip(tabs, shown.values(), strict=False):
        with tab:
            _parts(chapter.parts, played.window)
    with tabs[-2]:
        _candles(played, recalled)
    with tabs[-1]:
        _decisions(played)


def _recalled(summary: RunSummary, played: Played) -> Recalled:
    """The market of a run, kept while the page looks at it; what cannot be had is tried anew each time."""
    if played.window == "no_edge":
        return Recalled(None, "the twin's bars are not kept, since it is made anew for each evaluation")
    return recall(summary.run, lambda run: _market(store_name(), run.run, run.data_hash, run))


@st.cache_resource(show_spinner="Reading the data", max_entries=1)
def _market(where: str, run_id: str, data_hash: str, _run: RunRecord) -> Market:
    """The first three arguments are the key of the cache."""
    return market_of(_run)


def _parts(parts: Sequence[Picture | Table | Missing], window: str) -> None:
    """The parts of a chapter one below the other."""
    for part in parts:
        if part.title:
            st.markdown(f"**{plain(part.title)}**")
        if isinstance(part, Missing):
            st.caption(plain(f"{ABSENT}: {part.reason}"))
            continue
        st.caption(plain(part.caption))
        if isinstance(part, Picture):
            _plot(part.figure, f"{window} {part.title}")
        elif part.folded:
            with st.expander(f"Show {len(part.rows)} rows"):
                _table(part)
        else:
            _table(part)


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
        st.caption("No decisions are stored: teams have them, strategies do not.")
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
    tree = tree_from(offered[chosen], records, played.results.get(team))
    name = f"{offered[chosen].run}-decision-{chosen}.html"
    st.download_button("Download the whole transcript", page(tree), name, "text/html", key=f"whole {played.window}")


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


def _candles(played: Played, recalled: Recalled) -> None:
    if recalled.market is None:
        st.caption(plain(f"{ABSENT}: {recalled.problem}"))
        return
    traded = list(traded_notional(played.own))
    symbols = [*traded, *(symbol for symbol in played.own["symbols"] if symbol not in traded)]
    symbol = st.selectbox("Symbol, most traded first", symbols, key=f"symbol {played.window}")
    _parts([candles_part(played, recalled.market, symbol)], f"{played.window} Candles of")


def _table(table: Table) -> None:
    """A table that can be sorted, its numbers as in the report."""
    frame = pd.DataFrame({table.first: [row.label for row in table.rows]})
    config: dict[str, Any] = {}
    for number, column in enumerate(table.columns):
        values = [row.values.get(column.key) for row in table.rows]
        title = column.title if column.title not in frame else f"{column.title} {number}"
        if column.kind == "text":
            frame[title] = values
        elif column.kind == "moment":
            frame[title] = pd.to_datetime(pd.Series(values), unit="ms")
            config[title] = MOMENT
        else:
            scale, form = _NUMBER_FORMATS[column.kind]
            frame[title] = [None if value is None else scale * value for value in values]
            config[title] = st.column_config.NumberColumn(format=form, help=column.meaning)
    st.dataframe(frame, hide_index=True, column_config=config, placeholder="–")


def _results(rows: Mapping[str, Mapping[str, Any]]) -> None:
    _table(Table("", "", COLUMNS, tuple(Row(title_of(name), row) for name, row in rows.items())))


def _plot(figure: go.Figure, label: str) -> None:
    st.plotly_chart(figure, theme=None, config=charts.CONFIG, alt=label.strip(), key=label)
