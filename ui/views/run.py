"""One run on the page: what it came to, pictures, tables, and its decisions as conversations."""

from __future__ import annotations

import streamlit as st

from backend.config.load import as_toml
from backend.reporting.labels import ABSENT
from backend.reporting.market_reload import MarketReload, market_of
from backend.reporting.run_page import RunPage, WindowPage
from backend.store.records import RunRecord
from cryptosentinel.protocol.untrusted import visible
from simulator.market.market import Market
from ui.access import escape_markdown, mistakes_explained, store_name
from ui.parts.decision import choose_decision
from ui.parts.download import offer_downloads
from ui.parts.drawing import draw_blocks
from ui.parts.training import show_training


def show_run(page: RunPage) -> None:
    """Show a run of any kind."""
    for warning in page.warnings:
        st.warning(escape_markdown(warning))
    if page.run.kind != "backtest":
        show_training(page)
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
