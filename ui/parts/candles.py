"""The candles of a window with the trades on them: which coin, which part of the time, and a way to each decision."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import streamlit as st

from backend.reporting.blocks import Picture
from backend.reporting.labels import ABSENT
from backend.reporting.market_reload import MOST_CANDLES, MarketReload
from backend.reporting.result_stats import traded_notional
from backend.reporting.run_summary import WindowResult
from backend.reporting.trade_sections import candles_block
from ui.access import escape_markdown
from ui.parts.decision import open_decision
from ui.parts.drawing import draw_blocks, draw_figure


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
    span = _span(own.times, name) if long else None
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


def _span(times: Sequence[int], key: str) -> tuple[int, int]:
    """A part of a window whose bars close at `times` (ms), which is drawn as fine as it allows."""
    interval = times[1] - times[0]
    first, last = (datetime.fromtimestamp(time / 1000, tz=UTC).replace(tzinfo=None) for time in (times[0], times[-1]))
    begin, end = st.slider(
        "From and to (UTC)", first, last, (first, last), timedelta(milliseconds=interval), "YYYY-MM-DD HH:mm",
        key=f"span {key}", help="The window has more bars than a screen has room for: a part of it shows "
        "finer bars, and all trades in it. The arrow keys move a handle by one bar.",
    )  # fmt: skip
    low, high = (int(one.replace(tzinfo=UTC).timestamp() * 1000) for one in (begin, end))
    return low, high
