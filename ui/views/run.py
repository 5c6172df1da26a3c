"""One run on the page: what it came to, pictures, tables, and its decisions as conversations."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from backend.reporting.backtest_sections import SECTIONS
from backend.reporting.blocks import ReportBlock
from backend.reporting.decision.behaviour import TITLE as BEHAVIOUR
from backend.reporting.run_page import RunPage, WindowPage
from backend.store.records import PAPER
from cryptosentinel.protocol.untrusted import visible, visible_values
from ui.access import escape_markdown, market_kept, mistakes_explained
from ui.parts.again import offer_again
from ui.parts.candles import show_candles
from ui.parts.decision import choose_decision, part_key
from ui.parts.download import offer_downloads
from ui.parts.drawing import choose_span, draw_blocks, draw_tiles
from ui.parts.training import show_training


def show_run(page: RunPage) -> None:
    """Show a run of any kind."""
    for warning in page.warnings:
        st.warning(escape_markdown(warning))
    result = page.single_result()
    if result is not None:
        _result(page, result)
    elif page.run.kind == PAPER:
        st.page_link(
            "views/paper.py", label="Open the session on the page Paper", icon=":material/monitoring:",
            query_params={"session": page.run.run},
        )  # fmt: skip
    elif page.run.kind != "backtest":
        show_training(page)
    for window in page.windows:
        if window.name:
            st.subheader(escape_markdown(f"The first window of the evaluation {window.name}"))
        _window(window)
    if page.run.kind == "backtest" and page.windows:
        if page.run.status == "finished" and page.windows[0].result.decisions:
            with mistakes_explained():
                offer_again(page.run, page.windows[0].result.main)
        offer_downloads(page)
    with st.expander("How it was run"):
        for label, value in page.facts:
            st.text(visible(f"{label}: {value}"))
        if page.settings:
            with mistakes_explained():
                text, warning = page.settings_file()
                if warning:
                    st.caption(escape_markdown(warning))
                st.download_button(
                    "Save as TOML", text, f"{page.run.run}.toml", "application/toml", help="A file for --config.",
                    on_click="ignore",
                )  # fmt: skip
            st.json(visible_values(page.settings), expanded=1)


def _result(page: RunPage, blocks: Sequence[ReportBlock]) -> None:
    """A run with one result of its own; an experiment has a page with its pictures."""
    draw_blocks(blocks)
    about = page.run.config.get("experiment")
    if isinstance(about, dict):
        st.page_link(
            "views/experiments.py", label="Open it on the page Experiments", icon=":material/biotech:",
            query_params={"experiment": str(about.get("name", ""))},
        )  # fmt: skip


def _window(window: WindowPage) -> None:
    st.markdown(f"**{escape_markdown(window.result.sentence)}**")
    st.caption(escape_markdown(window.result.where))
    if window.absent_bars:
        st.warning(
            f"The data lacks {window.absent_bars} bars of this period. Nothing was filled in: orders waited, and "
            "positions kept their last price."
        )
    draw_tiles(window.tiles)
    against = ["Against one another"] if len(window.result.subjects) > 1 else []
    behaviour = [BEHAVIOUR] if window.result.decisions else []
    parts = [*against, *SECTIONS, "Candles", "Decisions", *behaviour]
    key = part_key(window.name)
    if key not in st.session_state and not window.name and "decision" in st.query_params:
        st.session_state[key] = "Decisions"
    # Only the open one is drawn: all of them together take seconds.
    tabs = dict(zip(parts, st.tabs(parts, key=key, on_change="rerun"), strict=True))
    part = next(name for name, tab in tabs.items() if tab.open)
    with tabs[part]:
        if part == "Candles":
            show_candles(window, window.market(market_kept))
        elif part == "Decisions":
            choose_decision(window)
        elif part == BEHAVIOUR:
            draw_blocks(window.behaviour(market_kept).blocks, window.name)
        elif part == "Equity" and window.has_finer_lines:
            times = window.result.main_result.times
            draw_blocks(window.equity(choose_span(window, times[1] - times[0])).blocks, window.name)
        elif part in SECTIONS:
            draw_blocks(window.section(part, market_kept).blocks, window.name)
        else:
            section = window.against()
            draw_blocks(section.blocks if section is not None else (), window.name)
