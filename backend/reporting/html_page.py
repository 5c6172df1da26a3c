"""A page as one HTML file that works offline: the template, the library that draws the charts, and the figures, packed.

All text is escaped: what models and news said is untrusted.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from backend.reporting import charts
from backend.reporting.blocks import ReportSection
from backend.reporting.labels import ABSENT, number_text
from cryptosentinel.protocol.untrusted import visible

_PLOTLY = Path(__file__).parent / "plotly" / "plotly-finance.min.js.gz"
_NOTHING: dict[str, Any] = {
    "lead": "", "tiles": [], "first": None, "notes": [], "talks": None, "facts": [], "config": None,
}  # fmt: skip


def render_sections(kind: str, opening: str, source: str, sections: Sequence[ReportSection]) -> str:
    """A page of its own with the look of a report: `opening` is its first sentence, `source` what it was made from."""
    return render_page({"name": kind, "kicker": kind, "heading": opening, "source": source, "sections": sections})


def render_page(context: dict[str, Any]) -> str:
    """The template with what it shows; what `context` leaves out is not there."""
    environment = Environment(
        loader=PackageLoader("backend.reporting"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_shown,
    )
    environment.filters |= {"number": number_text, "slug": _slug, "pack": lambda figure: _packed(figure.to_json())}
    drawing = {
        "plotly": _plotly(),
        "dark": Markup(json.dumps(charts.DARK.to_plotly_json())),
        "plotly_config": Markup(json.dumps(charts.CONFIG)),
        "absent": ABSENT,
    }
    return environment.get_template("page.html.j2").render(_NOTHING | context | drawing)


def _shown(value: object) -> object:
    """What the template writes for a value: of a text that is not HTML of ours, only what can be seen."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _slug(title: str) -> str:
    """A title as the name of its place in the page."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _packed(text: str) -> Markup:
    """Text as base64 of gzip, which cannot end the element that it is in."""
    return Markup(base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode("ascii"))


@cache
def _plotly() -> Markup:
    """The library that draws the charts, as base64 of gzip: the partial bundle `finance` of plotly.js, which has lines,
    bars and candles, in 0.6 MB where the whole has 2 MB. The page unpacks it."""
    return Markup(base64.b64encode(_PLOTLY.read_bytes()).decode("ascii"))
