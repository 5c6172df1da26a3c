"""The candles of a window with the trades on them: which coin, which part of the time, and a way to each decision."""

from __future__ import annotations

import streamlit as st

from backend.reporting.blocks import Picture
from backend.reporting.charts import CONFIG
from backend.reporting.labels import ABSENT
from backend.reporting.market_reload import MarketReload
from backend.reporting.run_page import WindowPage
from cryptosentinel.protocol.untrusted import visible
from ui.access import escape_markdown
from ui.parts.decision import open_decision
from ui.parts.drawing import choose_span, draw_blocks, in_theme


def show_candles(window: WindowPage, market: MarketReload) -> None:
    """A choice of coin and time, and its candles; a click on a mark opens its decision."""
    if market.market is None:
        st.caption(escape_markdown(f"{ABSENT}: {market.problem}"))
        return
    symbol = st.selectbox("Symbol, most traded first", window.symbols, key=f"symbol {window.name}")
    key = f"candles {window.name} {symbol}"
    span = choose_span(window, market.market.interval) if window.zoomable(market) else None
    picture = window.candles(market, symbol, span)
    if not isinstance(picture, Picture):
        draw_blocks([picture], key)
        return
    st.markdown(f"**{escape_markdown(picture.title)}**")
    st.caption(escape_markdown(picture.caption))
    decides = window.result.main in window.result.decisions
    if decides:
        st.caption("Click a mark to open the decision that it came from.")

    def take() -> None:
        for point in st.session_state[key]["selection"]["points"][:1]:
            number = (point.get("customdata") or [None])[-1]
            if number is not None:
                open_decision(window, window.result.main, int(number))

    figure = in_theme(picture.figure)
    figure.update_layout(clickmode="event+select", uirevision=str(span))
    st.plotly_chart(
        figure, theme=None, config=CONFIG, alt=visible(picture.title), key=key, on_select=take if decides else "ignore",
        selection_mode="points",
    )  # fmt: skip
