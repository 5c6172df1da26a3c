"""A report's blocks as Streamlit draws them: pictures, tables, and words where something is missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from backend.reporting.blocks import Missing, Picture, ReportBlock, Table, Tile
from backend.reporting.charts import CONFIG, DARK
from backend.reporting.labels import ABSENT, NumberKind
from cryptosentinel.protocol.untrusted import visible
from ui.access import escape_markdown

MOMENT = st.column_config.DatetimeColumn(format="YYYY-MM-DD HH:mm")

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


def draw_blocks(blocks: Sequence[ReportBlock], key: str = "", *, pairs: bool = False) -> None:
    """The blocks one below the other, or in `pairs` side by side; `key` is added to the keys of their figures, which
    must be unique on the page."""
    places = st.columns(2) if pairs else [st.container()]
    for number, block in enumerate(blocks):
        with places[number % len(places)]:
            _draw_block(block, key)


def _draw_block(block: ReportBlock, key: str) -> None:
    if block.title:
        st.markdown(f"**{escape_markdown(block.title)}**")
    if isinstance(block, Missing):
        st.caption(escape_markdown(f"{ABSENT}: {block.reason}"))
        return
    if block.caption:
        st.caption(escape_markdown(block.caption))
    if isinstance(block, Picture):
        draw_figure(block.figure, block.title, f"{key} {block.title}".strip())
    elif block.folded:
        with st.expander(f"Show {len(block.rows)} rows"):
            _draw_table(block)
    else:
        _draw_table(block)


def draw_tiles(tiles: Sequence[Tile]) -> None:
    """Cards side by side; nothing without any."""
    for column, tile in zip(st.columns(len(tiles)) if tiles else (), tiles, strict=True):
        column.metric(tile.label, "–" if tile.value == ABSENT else tile.value)  # the note says why
        column.caption(escape_markdown(tile.note))


def draw_figure(figure: go.Figure, title: str, key: str, **options: Any) -> None:
    """A figure on the ground that the reader has chosen. `options` are those of `st.plotly_chart`."""
    if st.context.theme.type == "dark":
        figure = go.Figure(figure)  # the figure itself may be kept for other tabs
        figure.update_layout(template=DARK)
    st.plotly_chart(figure, theme=None, config=CONFIG, alt=visible(title), key=key, **options)


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
