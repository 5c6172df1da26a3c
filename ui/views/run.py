"""One run on the page: its result, pictures, tables, its decisions as conversations, and its files."""

from __future__ import annotations

from functools import partial

import streamlit as st

from backend.reporting.backtest_sections import SECTIONS, section, tiles, window_notes
from backend.reporting.blocks import ReportSection
from backend.reporting.comparison import teams_section
from backend.reporting.labels import duration_text
from backend.reporting.market_reload import reload_market
from backend.reporting.run_summary import RunSummary, WindowResult, how_it_was_run
from backend.reporting.run_table import SINGLE_RESULT, single_result_text
from backend.runs.requests import RUNS
from backend.store.records import PAPER
from cryptosentinel.protocol.untrusted import visible, visible_values
from ui.access import escape_markdown, key_of, market_kept, mistakes_explained, section_kept
from ui.parts.again import offer_again
from ui.parts.candles import show_candles
from ui.parts.decision import choose_decision, part_key
from ui.parts.drawing import draw_blocks, draw_tiles
from ui.parts.training import show_training

_AGAINST, _CANDLES, _DECISIONS = "Against one another", "Candles", "Decisions"


def show_run(summary: RunSummary) -> None:
    """Show a run of any kind."""
    run = summary.run
    for warning in summary.warnings:
        st.warning(escape_markdown(warning))
    if run.kind == "experiment":
        about = run.config.get("experiment")
        name = about.get("name", "") if isinstance(about, dict) else ""
        st.page_link(
            "views/experiments.py", label="Open it on the page Experiments", icon=":material/biotech:",
            query_params={"experiment": str(name)},
        )  # fmt: skip
    elif run.kind in SINGLE_RESULT:
        st.info(escape_markdown(single_result_text(run.kind, summary.evaluations.get(run.kind, {}))))
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
        _offer_report(summary)
    _how_it_was_run(summary)


def _how_it_was_run(summary: RunSummary) -> None:
    with st.expander("How it was run"):
        for label, value in (*how_it_was_run(summary), ("Wall time", duration_text(summary.wall_seconds))):
            st.text(visible(f"{label}: {value}"))
        if summary.settings:
            st.json(visible_values(summary.settings), expanded=1)


def _offer_report(summary: RunSummary) -> None:
    """The report of the run, where its folder has one. Tables have a download of their own."""
    run = summary.run.run
    report = RUNS / run / "report.html"
    if report.is_file():
        st.download_button(
            "Download the report (HTML)", report.read_bytes, f"{run}.html", "text/html", key=f"report of {run}",
            on_click="ignore",
        )  # fmt: skip


def _window(summary: RunSummary, window: WindowResult) -> None:
    st.markdown(f"**{escape_markdown(window.sentence)}**")
    st.caption(escape_markdown(window.where))
    for note in window_notes(window):
        st.warning(escape_markdown(note))
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
    """A section of the report, made once for all tabs; one that runs changes."""
    make = partial(_made, summary, window, name)
    ended = summary.run.status != "running"
    shown = section_kept(key_of(summary.run), window.name, name, make) if ended else make()
    draw_blocks(shown.blocks, window.name)


def _made(summary: RunSummary, window: WindowResult, name: str) -> ReportSection:
    if name == _AGAINST:
        return teams_section(window, summary.run) or ReportSection(name, ())
    return section(name, window)
