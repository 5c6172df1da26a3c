"""The candles of a window with the trades on them: which coin, which part of the time, and a way to each decision."""

from __future__ import annotations

import streamlit as st

from backend.reporting.blocks import Picture
from backend.reporting.labels import ABSENT
from backend.reporting.market_reload import MOST_CANDLES, MarketReload
from backend.reporting.result_stats import traded_notional
from backend.reporting.run_summary import WindowResult
from backend.reporting.trade_sections import candles_block
from ui.access import escape_markdown
from ui.parts.decision import open_decision
from ui.parts.drawing import choose_span, draw_blocks, draw_figure


def show_candles(window: WindowResult, reload: MarketReload) -> None:
    """A choice of coin and time, and its candles; a click on a mark opens its decision."""
    if reload.market is None:
        st.caption(escape_markdown(f"{ABSENT}: {reload.problem}"))
        return
    own, name = window.main_result, window.name
    symbols = list(dict.fromkeys([*traded_notional(own), *own.symbols]))
    symbol = st.selectbox("Symbol, most traded first", symbols, key=f"symbol {name}")
    key = f"candles {name} {symbol}"
    # Of more bars than are drawn as they are, a part shows finer ones.
    long = (own.times[-1] - own.times[0]) // reload.market.interval > MOST_CANDLES
    span = choose_span(own.times, name) if long else None
    picture = candles_block(window, reload.market, symbol, span)
    if not isinstance(picture, Picture):
        draw_blocks([picture], key)
        return
    decides = window.main in window.decisions
    st.caption(escape_markdown(picture.caption) + " A click on a mark opens its decision." * decides)

    def take() -> None:
        for point in st.session_state[key]["selection"]["points"][:1]:
            number = (point.get("customdata") or [None])[-1]
            if number is not None:
                open_decision(name, window.main, int(number))

    picture.figure.update_layout(clickmode="event+select", uirevision=str(span))
    draw_figure(picture.figure, picture.title, key, on_select=take if decides else "ignore", selection_mode="points")
