"""A report's blocks as Streamlit draws them: pictures, tables, and words where something is missing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from backend.reporting.blocks import Missing, Picture, ReportBlock, Table, Tile
from backend.reporting.charts import CONFIG, in_dark
from backend.reporting.drawing.figure import PlainFigure
from backend.reporting.labels import ABSENT, NumberKind
from backend.reporting.run_page import WindowPage
from cryptosentinel.protocol.untrusted import visible
from ui.access import escape_markdown

MOMENT = st.column_config.DatetimeColumn(format="YYYY-MM-DD HH:mm")
_FEWEST_BARS = 30  # that a part of a window shows

_NUMBER_FORMATS: dict[NumberKind, tuple[float, str]] = {
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


def draw_blocks(blocks: Sequence[ReportBlock], key: str = "") -> None:
    """The blocks one below the other; `key` is added to the keys of their figures, which must be unique on the page."""
    for block in blocks:
        if block.title:
            st.markdown(f"**{escape_markdown(block.title)}**")
        if isinstance(block, Missing):
            st.caption(escape_markdown(f"{ABSENT}: {block.reason}"))
            continue
        if block.caption:
            st.caption(escape_markdown(block.caption))
        if isinstance(block, Picture):
            _draw_picture(block, f"{key} {block.title}".strip())
        elif block.folded:
            with st.expander(f"Show {len(block.rows)} rows"):
                _draw_table(block)
        else:
            _draw_table(block)


def draw_tiles(tiles: Sequence[Tile]) -> None:
    """Cards side by side; nothing without any."""
    if not tiles:
        return
    for column, tile in zip(st.columns(len(tiles)), tiles, strict=True):
        column.metric(tile.label, "–" if tile.value == ABSENT else tile.value)  # the note says why
        column.caption(escape_markdown(tile.note))


def show_table(frame: pd.DataFrame, **options: Any) -> None:
    """A table with its texts as they are: nothing in them turns a line, hides or is obeyed. `options` are those of
    `st.dataframe`."""
    shown = frame.rename(columns=visible)
    for place, kind in enumerate(shown.dtypes):
        if pd.api.types.is_object_dtype(kind) or pd.api.types.is_string_dtype(kind):
            cells = [visible(cell) if isinstance(cell, str) else cell for cell in frame.iloc[:, place]]
            shown.isetitem(place, np.array([*cells, None], dtype=object)[:-1])
    st.dataframe(shown, **{"hide_index": True, "placeholder": "–", **options})


def _draw_table(table: Table) -> None:
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
    show_table(frame, column_config=config)


def in_theme(figure: PlainFigure) -> go.Figure:
    """The figure of plotly for the ground that the reader has chosen."""
    return (in_dark(figure) if is_dark() else figure).plotly()


def is_dark() -> bool:
    """Whether the reader has chosen a dark ground."""
    return st.context.theme.type == "dark"


def _draw_picture(picture: Picture, label: str) -> None:
    figure = picture.dark if is_dark() else picture.light
    st.plotly_chart(figure, theme=None, config=CONFIG, alt=visible(label), key=label)


def choose_span(window: WindowPage, interval: int) -> tuple[int, int]:
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
