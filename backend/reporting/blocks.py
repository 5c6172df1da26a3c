"""What reports and pages are made of: pictures, tables, figures of the first screen, and words where one is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backend.reporting.labels import Column

if TYPE_CHECKING:
    import plotly.graph_objects as go


@dataclass(frozen=True)
class Picture:
    """A figure with its heading, and a caption that says what it shows and what good looks like."""

    title: str
    caption: str
    figure: go.Figure


@dataclass(frozen=True)
class TableRow:
    """A row of a table: its heading, a note below that, and the values by the columns' keys. `main` stands out."""

    label: str
    values: Mapping[str, Any]
    note: str = ""
    main: bool = False


@dataclass(frozen=True)
class Table:
    """A table. `first` heads the column of the rows' headings; `tinted`: gains and losses have a color beside their
    sign; `folded`: long and seldom needed, so that it opens at a click."""

    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    first: str = "Who"
    tinted: bool = False
    folded: bool = False


@dataclass(frozen=True)
class Missing:
    """What would stand here, and why it does not."""

    title: str
    reason: str


ReportBlock = Picture | Table | Missing


@dataclass(frozen=True)
class ReportSection:
    """Blocks under one heading, with a caption where there is something to say about all of them. `pairs`: they fit two
    side by side."""

    title: str
    blocks: tuple[ReportBlock, ...]
    caption: str = ""
    pairs: bool = False


@dataclass(frozen=True)
class Tile:
    """One number of the first screen: what it is, the number, what to compare it with."""

    label: str
    value: str
    note: str
