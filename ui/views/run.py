"""One run on the page: its result, pictures, tables, its decisions as conversations, and its files."""

from __future__ import annotations

from functools import partial

import streamlit as st

from backend.config.schema import Config
from backend.reporting import charts
from backend.reporting.backtest_sections import NEED_MARKET, SECTIONS, equity_section, section, tiles
from backend.reporting.blocks import ReportSection
from backend.reporting.comparison import teams_section
from backend.reporting.labels import duration_text
from backend.reporting.market_reload import MarketReload, reload_market
from backend.reporting.report import absent_bars_note
from backend.reporting.run_summary import RunSummary, WindowResult, how_it_was_run, settings_file
from backend.reporting.run_table import SINGLE_RESULT, blocks_of_result
from backend.runs.outcomes import BacktestOutcome
from backend.runs.requests import RUNS
from backend.store.records import PAPER
from cryptosentinel.protocol.untrusted import visible, visible_values
from ui.access import escape_markdown, key_of, market_kept, mistakes_explained, section_kept
from ui.parts.again import offer_again
from ui.parts.candles import show_candles
from ui.parts.decision import choose_decision, part_key
from ui.parts.drawing import choose_span, draw_blocks, draw_tiles
from ui.parts.training import show_training

_TABLES = ("equity", "trades", "metrics", "decisions")
_AGAINST, _CANDLES, _DECISIONS = "Against one another", "Candles", "Decisions"


def show_run(summary: RunSummary) -> None:
    """Show a run of any kind."""
    run = summary.run
    for warning in summary.warnings:
        st.warning(escape_markdown(warning))
    if run.kind in SINGLE_RESULT:
        draw_blocks(blocks_of_result(run.kind, summary.evaluations.get(run.kind, {})))
        about = run.config.get("experiment")
        if isinstance(about, dict):
            st.page_link(
                "views/experiments.py", label="Open it on the page Experiments", icon=":material/biotech:",
                query_params={"experiment": str(about.get("name", ""))},
            )  # fmt: skip
    elif run.kind == PAPER:
        st.page_link(
            "views/paper.py", label="Open the session on the page Paper", icon=":material/monitoring:",
            query_params={"session": run.run},
        )  # fmt: skip
    elif run.kind != "backtest":
        show_training(summary)
    for window in summary.windows():
        if window.name:
            st.subheader(escape_markdown(f"The first window of the evaluation {window.name}"))
        _window(summary, window)
    if run.kind == "backtest" and summary.backtests:
        if run.status == "finished" and not run.imported:  # an imported run is read only
            with mistakes_explained():
                offer_again(run)
        _offer_downloads(summary)
    _how_it_was_run(summary)


def _how_it_was_run(summary: RunSummary) -> None:
    with st.expander("How it was run"):
        for label, value in (*how_it_was_run(summary), ("Wall time", duration_text(summary.wall_seconds))):
            st.text(visible(f"{label}: {value}"))
        if not summary.settings:
            return
        with mistakes_explained():
            text, warning = settings_file(summary.run)
            if warning:
                st.caption(escape_markdown(warning))
            st.download_button(
                "Save as TOML", text, f"{summary.run.run}.toml", "application/toml", help="A file for --config.",
                on_click="ignore",
            )  # fmt: skip
        st.json(visible_values(summary.settings), expanded=1)


def _offer_downloads(summary: RunSummary) -> None:
    """A choice of table, and the report of the run where its folder has one."""
    run = summary.run.run
    report = RUNS / run / "report.html"
    with st.expander("Download"):
        left, right = st.columns(2, vertical_alignment="bottom")
        what = left.selectbox("Table", _TABLES, key=f"table of {run}")
        outcome = BacktestOutcome(run, report.parent, report, Config(), summary)

        def table() -> str:  # made at the click: that of a long run takes longer than the page
            return str((outcome.frame() if what == "metrics" else getattr(outcome, what)).to_csv())

        right.download_button(
            f"Download {what} (CSV)", table, f"{run}-{what}.csv", "text/csv", key=f"get {run}", on_click="ignore"
        )
        if report.is_file():
            st.download_button(
                "Download the report (HTML)", report.read_bytes, f"{run}.html", "text/html", key=f"report of {run}",
                on_click="ignore",
            )  # fmt: skip
        else:
            st.caption(escape_markdown(f"Its report is not in {RUNS / run} any more."))


def _window(summary: RunSummary, window: WindowResult) -> None:
    st.markdown(f"**{escape_markdown(window.sentence)}**")
    st.caption(escape_markdown(window.where))
    if absent_bars_note(window):
        st.warning(absent_bars_note(window))
    draw_tiles(tiles(window))
    parts = [*([_AGAINST] if len(window.subjects) > 1 else []), *SECTIONS, _CANDLES, _DECISIONS]
    key = part_key(window.name)
    if key not in st.session_state and not window.name and "decision" in st.query_params:
        st.session_state[key] = _DECISIONS
    # Only the open one is drawn: all of them together take seconds.
    tabs = dict(zip(parts, st.tabs(parts, key=key, on_change="rerun"), strict=True))
    part = next(name for name, tab in tabs.items() if tab.open)
    with tabs[part]:
        if part == _CANDLES:
            show_candles(window, reload_market(summary.run, market_kept))
        elif part == _DECISIONS:
            choose_decision(summary.run, window)
        else:
            _section(summary, window, part)


def _section(summary: RunSummary, window: WindowResult, name: str) -> None:
    """A section of the report; where the window has more bars than are drawn, of a part of it that is chosen."""
    times = window.main_result.times
    if name == SECTIONS[0] and len(times) > charts.MOST_POINTS:
        span = choose_span(times, window.name)
        if span != (times[0], times[-1]):
            draw_blocks(equity_section(window, span).blocks, window.name)
            return
    reload = MarketReload(None)
    if name in NEED_MARKET:
        reload = reload_market(summary.run, market_kept)
    make = partial(_made, summary, window, name, reload)
    # What lacks its data is tried again each time; a run that goes on changes.
    kept = summary.run.status != "running" and not reload.problem
    shown = section_kept(key_of(summary.run), window.name, name, make) if kept else make()
    draw_blocks(shown.blocks, window.name)


def _made(summary: RunSummary, window: WindowResult, name: str, reload: MarketReload) -> ReportSection:
    if name == _AGAINST:
        return teams_section(window, summary.run) or ReportSection(name, ())
    return section(name, window, reload)
