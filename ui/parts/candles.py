"""The candles of a window with the trades on them: which coin, which part of the time, and a way to each decision."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import streamlit as st

from backend.reporting.blocks import Picture
from backend.reporting.charts import CONFIG
from backend.reporting.labels import ABSENT
from backend.reporting.market_reload import MarketReload
from backend.reporting.run_page import WindowPage
from ui.access import escape_markdown
from ui.parts.decision import open_decision
from ui.parts.drawing import draw_blocks, in_theme

_FEWEST_BARS = 30  # that a part of the window shows


def show_candles(window: WindowPage, market: MarketReload) -> None:
    """A choice of coin and time, and its candles; a click on a mark opens its decision."""
    if market.market is None:
        st.caption(escape_markdown(f"{ABSENT}: {market.problem}"))
        return
    symbol = st.selectbox("Symbol, most traded first", window.symbols, key=f"symbol {window.name}")
    key = f"candles {window.name} {symbol}"
    span = _choose_span(window, market.market.interval) if window.zoomable(market) else None
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
        figure, theme=None, config=CONFIG, alt=picture.title, key=key, on_select=take if decides else "ignore",
        selection_mode="points",
    )  # fmt: skip


def _choose_span(window: WindowPage, interval: int) -> tuple[int, int]:
    """A part of the window, whose bars are drawn as fine as it allows (ms)."""
    times = window.result.main_result.times
    first, last = (datetime.fromtimestamp(time / 1000, tz=UTC).replace(tzinfo=None) for time in (times[0], times[-1]))
    begin, end = st.slider(
        "From and to (UTC)", first, last, (first, last), timedelta(milliseconds=interval), "YYYY-MM-DD HH:mm",
        key=f"span {window.name}", help="The window has more bars than a screen has room for: a part of it shows "
        "finer bars, and all trades in it. The arrow keys move a handle by one bar.",
    )  # fmt: skip
    low, high = (int(one.replace(tzinfo=UTC).timestamp() * 1000) for one in (begin, end))
    least = min(_FEWEST_BARS * interval, times[-1] - times[0])
    low = min(low, times[-1] - least)
    return low, max(high, low + least)
