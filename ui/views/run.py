"""One run on the page: what it came to, pictures, tables, and its decisions as conversations."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from backend.config.load import as_toml
from backend.reporting.blocks import ReportBlock
from backend.reporting.labels import ABSENT
from backend.reporting.market_reload import MarketReload, market_of
from backend.reporting.run_page import RunPage, WindowPage
from backend.store.records import RunRecord
from cryptosentinel.agents.registry import role_title
from cryptosentinel.protocol.untrusted import visible
from simulator.market.market import Market
from ui.access import escape_markdown, mistakes_explained, open_store, store_name
from ui.parts.decision import choose_decision, draw_lines
from ui.parts.download import offer_downloads
from ui.parts.drawing import draw_blocks

_LOOK_SECONDS = 2.0


def show_run(page: RunPage) -> None:
    """Show a run of any kind."""
    for warning in page.warnings:
        st.warning(escape_markdown(warning))
    if page.run.kind != "backtest":
        _training(page)
    for window in page.windows:
        if window.name:
            st.subheader(escape_markdown(f"The first window of the evaluation {window.name}"))
        _window(window)
    if page.run.kind == "backtest" and page.windows:
        offer_downloads(page)
    with st.expander("How it was run"):
        for label, value in page.facts:
            st.text(visible(f"{label}: {value}"))
        if page.settings:
            with mistakes_explained():
                st.download_button(
                    "Save as TOML", as_toml(page.settings), f"{page.run.run}.toml", "application/toml",
                    help="A file for --config.", on_click="ignore",
                )  # fmt: skip
            st.json(page.settings, expanded=1)


def _window(window: WindowPage) -> None:
    st.markdown(f"**{escape_markdown(window.result.sentence)}**")
    if window.absent_bars:
        st.warning(
            f"The data lacks {window.absent_bars} bars of this period. Nothing was filled in: orders waited, and "
            "positions kept their last price."
        )
    for column, tile in zip(st.columns(5), window.tiles, strict=True):
        column.metric(tile.label, tile.value)
        column.caption(escape_markdown(tile.note))
    market = window.market(lambda run: _market(store_name(), run.run, run.data_hash, run))
    against = window.against()
    titles = ["Equity", "Numbers", "Costs", "Trades", "Regimes", "Candles", "Decisions"]
    *tabs, candles, decisions = st.tabs([*(["Against one another"] if against else []), *titles])
    if against:
        with tabs.pop(0):
            draw_blocks(against.blocks, window.name)
    for tab, section in zip(tabs, window.sections(market), strict=True):
        with tab:
            draw_blocks(section.blocks, window.name)
    with candles:
        _candles(window, market)
    with decisions:
        choose_decision(window)


def _candles(window: WindowPage, market: MarketReload) -> None:
    if market.market is None:
        st.caption(escape_markdown(f"{ABSENT}: {market.problem}"))
        return
    symbol = st.selectbox("Symbol, most traded first", window.symbols, key=f"symbol {window.name}")
    draw_blocks([window.candles(market, symbol)], f"{window.name} Candles of")


@st.cache_resource(show_spinner="Reading the data", max_entries=1)
def _market(where: str, run_id: str, data_hash: str, _run: RunRecord) -> Market:
    """The market of a run, kept while the page looks at it; what cannot be had is tried anew each time.

    The first three arguments are the key of the cache.
    """
    return market_of(_run)


def _training(page: RunPage) -> None:
    if page.run.status == "running":
        _follow_training(page.run.run)
        return
    st.subheader(escape_markdown(page.summary.opening))
    comparison, learning, optimizer = page.comparison(), page.learning(), page.optimizer()
    tabs = st.tabs([comparison.title, learning.title, optimizer.title, "Findings", "One decision"])
    with tabs[0]:
        draw_blocks(comparison.blocks)
    with tabs[1]:
        _in_pairs(learning.blocks)
    with tabs[2]:
        _in_pairs(optimizer.blocks)
    with tabs[3]:
        _findings(page)
    with tabs[4]:
        lines = page.example()
        if lines:
            draw_lines(lines, "example")
        else:
            st.caption(ABSENT)


@st.fragment(run_every=_LOOK_SECONDS)
def _follow_training(run_id: str) -> None:
    """The curves of a training that goes on; the page is drawn anew when it has ended."""
    with mistakes_explained():
        with open_store() as store:
            page = RunPage.read_training(store, run_id)
        if page.run.status != "running":
            st.rerun(scope="app")
        if not page.steps:
            st.info("The training has begun; no step of it is done yet.")
            return
        st.subheader(f"Step {max(page.steps)} is done")
        learning, optimizer = page.learning(), page.optimizer()
        tabs = st.tabs([learning.title, optimizer.title, "Findings"])
        with tabs[0]:
            _in_pairs(learning.blocks)
        with tabs[1]:
            _in_pairs(optimizer.blocks)
        with tabs[2]:
            _findings(page)


def _in_pairs(blocks: Sequence[ReportBlock]) -> None:
    columns = st.columns(2)
    for number, block in enumerate(blocks):
        with columns[number % 2]:
            draw_blocks([block])


def _findings(page: RunPage) -> None:
    """What the doctor says by the metrics alone; the command also reads the conversations."""
    if not any(step > 0 for step in page.steps):
        st.caption(f"{ABSENT}: there is no step of training")
        return
    from backend.training.diagnostics.examine import examine  # it imports torch, which takes seconds

    found = examine(page.run.run, page.steps, {})
    st.markdown(f"**{escape_markdown(found.verdict())}**")
    for finding in found.findings:
        steps = f"steps {finding.step} to {finding.until}" if finding.until > finding.step else f"step {finding.step}"
        who = f"{role_title(finding.role)}: " if finding.role else ""
        with st.expander(escape_markdown(f"{finding.severity}: {who}{finding.rule}, {steps}")):
            st.text(visible(f"{finding.condition}; at step {finding.step} it was {finding.value:.4g}"))
            st.text(visible(f"What to try: {finding.advice}"))
    st.caption(escape_markdown(f"By the metrics. The conversations too: cryptosentinel doctor {page.run.run}"))
