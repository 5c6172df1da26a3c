"""A figure as plotly.js reads it: traces and a layout, as plain documents.

plotly's own figure looks at every number and copies it several times: that was half the time in which a report is
written. A report needs none of it. Whoever wants plotly's gets it from `PlainFigure.plotly`, which also refuses what
plotly.js would not know.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import plotly.graph_objects as go

Trace = dict[str, Any]

# The ends of a line across the whole figure, in shares of its width or height.
_ACROSS = {"0": 0, "1": 1}

_LISTS = ("x", "y", "open", "high", "low", "close")  # attributes of a trace, a value a point
_LONG = 100  # points


def trace(kind: str, **attributes: Any) -> Trace:
    """One trace of a figure; `kind` is plotly.js's word for it, such as "scatter" or "bar"."""
    return {"type": kind, **attributes}


@dataclass
class PlainFigure:
    """`data` are the traces, `layout` is what is around them: axes, lines, words."""

    data: list[Trace] = field(default_factory=list)
    layout: dict[str, Any] = field(default_factory=dict)

    def add_trace(self, added: Trace) -> None:
        """Draw one more trace on top."""
        self.data.append(added)

    def add_traces(self, added: Iterable[Trace]) -> None:
        """Draw more traces on top, in their order."""
        self.data.extend(added)

    def update_layout(self, **changes: Any) -> None:
        """Change the layout; a dict changes only the keys that it has."""
        _merge(self.layout, changes)

    def update_xaxes(self, **changes: Any) -> None:
        """Change the x axis, as `update_layout`."""
        self.update_layout(xaxis=changes)

    def update_yaxes(self, **changes: Any) -> None:
        """Change the y axis, as `update_layout`."""
        self.update_layout(yaxis=changes)

    def add_hline(self, y: float, line: Mapping[str, Any]) -> None:
        """A line across the whole width at `y`."""
        self._add_line("x", "y", y, line)

    def add_vline(self, x: float, line: Mapping[str, Any]) -> None:
        """A line across the whole height at `x`."""
        self._add_line("y", "x", x, line)

    def add_annotation(self, **attributes: Any) -> None:
        """Words at a place."""
        self.layout.setdefault("annotations", []).append(attributes)

    def copy(self) -> PlainFigure:
        """A figure that can be changed without a change of this one. Traces share their numbers, which nobody changes
        in place."""
        return PlainFigure([_copied(each) for each in self.data], deepcopy(self.layout))

    def to_json(self) -> str:
        """What plotly.js reads. What is no number, or not finite, is a hole."""
        document = {"data": self.data, "layout": self.layout}
        try:
            return json.dumps(document, allow_nan=False, separators=(",", ":"))
        except ValueError:
            return json.dumps(finite(document), allow_nan=False, separators=(",", ":"))

    def plotly(self) -> go.Figure:
        """The same as a figure of plotly. Raises `ValueError` for an attribute that plotly.js does not know."""
        import plotly.graph_objects as go

        return go.Figure(data=[_with_arrays(each) for each in self.data], layout={**self.layout, "template": "none"})

    def _add_line(self, along: str, at: str, value: float, line: Mapping[str, Any]) -> None:
        ends = {f"{along}{end}": share for end, share in _ACROSS.items()}
        place = {f"{at}0": value, f"{at}1": value}
        shape = {"type": "line", **ends, **place, f"{along}ref": f"{along} domain", f"{at}ref": at, "line": dict(line)}
        self.layout.setdefault("shapes", []).append(shape)


def _merge(document: dict[str, Any], changes: Mapping[str, Any]) -> None:
    for name, value in changes.items():
        if isinstance(value, Mapping):
            inner = document.get(name)
            document[name] = merged = dict(inner) if isinstance(inner, Mapping) else {}
            _merge(merged, value)
        else:
            document[name] = value


def _with_arrays(drawn: Trace) -> Trace:
    """A trace whose long lists of numbers or of words are arrays: plotly looks at each item of a list, several times,
    and at an array once. What is not there is NaN, which is a hole too."""
    return {name: _array(value) if name in _LISTS and isinstance(value, list) else value for name, value in
            drawn.items()}  # fmt: skip


def _array(values: list[Any]) -> Any:
    if len(values) < _LONG:
        return values
    kinds = set(map(type, values))
    if kinds == {str}:
        return np.array(values)
    return np.array(values, np.float64) if kinds <= {float, int, type(None)} else values


def _copied(drawn: Trace) -> Trace:
    """A trace whose styles (dicts) are its own."""
    return {name: deepcopy(value) if isinstance(value, dict) else value for name, value in drawn.items()}


def finite(value: Any) -> Any:
    """`value` with None for every float in it that is NaN or infinite, which JSON cannot hold."""
    if isinstance(value, Mapping):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
