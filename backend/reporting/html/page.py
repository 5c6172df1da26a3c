"""A page as one HTML file that works offline: templates, the library that draws the charts, and the figures, packed.

All text is escaped: what models and news said is untrusted.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from backend.reporting import charts
from backend.reporting.blocks import ReportSection
from backend.reporting.decision_views import shown
from backend.reporting.drawing.figure import PlainFigure
from backend.reporting.labels import ABSENT, duration_text, number_text, title_of
from simulator.market.timeframes import format_time

_PLOTLY = Path(__file__).parents[1] / "plotly" / "plotly-finance.min.js.gz"


@dataclass(frozen=True)
class PageFigure:
    """A figure of the page: its JSON as base64 of gzip, and what it says in words."""

    number: int
    label: str
    packed: Markup
    height: int


class PageFigures:
    """Numbers the figures of one page."""

    def __init__(self) -> None:
        self._count = 0

    def add(self, label: str, figure: PlainFigure) -> PageFigure:
        self._count += 1
        packed = gzip.compress(figure.to_json().encode(), mtime=0)
        return PageFigure(self._count, label, _as_text(packed), int(figure.layout["height"]))


def _as_text(packed: bytes) -> Markup:
    """Bytes as base64, which cannot end the element that they are in."""
    return Markup(base64.b64encode(packed).decode("ascii"))


def render_sections(title: str, opening: str, source: str, sections: Sequence[ReportSection]) -> str:
    """A page of its own with the look of a report: `opening` is its first sentence, `source` what it was made from."""
    context = {"title": title, "opening": opening, "source": source, "sections": sections, "absent": ABSENT}
    return render_page("sections.html.j2", PageFigures(), context)


def render_page(template: str, figures: PageFigures, context: dict[str, Any]) -> str:
    """A template of this package with its figures; `context` is what else it names."""
    environment = Environment(
        loader=PackageLoader("backend.reporting"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=shown,
    )
    environment.filters |= {"number": number_text, "duration": duration_text, "title_of": title_of, "time": format_time}
    environment.filters["slug"] = _slug
    drawing = {
        "draw": lambda picture: figures.add(picture.title, picture.figure),
        "plotly": packed_plotly(),
        "dark": charts.DARK,
        "plotly_config": Markup(json.dumps(charts.CONFIG)),
    }
    return environment.get_template(template).render(context | drawing)


def _slug(title: str) -> str:
    """A title as the name of its place in the page."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


@cache
def packed_plotly() -> Markup:
    """The library that draws the charts, as base64 of gzip: the partial bundle `finance` of plotly.js, which has lines,
    bars, histograms and candles, in 0.6 MB where the whole has 2 MB. The page unpacks it."""
    return _as_text(_PLOTLY.read_bytes())
