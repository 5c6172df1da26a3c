"""All decisions of a team on a line of time."""

from __future__ import annotations

from collections.abc import Sequence

from backend.decisions.document import StoredDecision
from backend.reporting import charts
from backend.reporting.blocks import Picture
from backend.reporting.drawing.figure import trace

_KINDS = (
    ("sent orders", "circle", charts.BLUE),
    ("changed nothing", "circle-open", charts.GREY),
    ("no valid answer", "x", charts.VERMILION),
    ("cut by RiskAnalyst or the guard", "diamond", charts.ORANGE),
)
_POINTS_OF_SVG = 2_000  # more are drawn by WebGL


def timeline(decisions: Sequence[StoredDecision]) -> Picture:
    """A mark a decision, at its time and at the account's change up to the next one, by what came of it. The number of
    the decision is the mark's `customdata`."""
    figure = charts.blank_figure("", "change", "%")
    kind_of_trace = "scatter" if len(decisions) <= _POINTS_OF_SVG else "scattergl"
    by_kind: dict[str, list[StoredDecision]] = {}
    for decision in decisions:
        by_kind.setdefault(_kind(decision), []).append(decision)
    for kind, symbol, colour in _KINDS:
        of_kind = by_kind.get(kind)
        if of_kind:
            changes = [one.document.net_return for one in of_kind]
            figure.add_trace(
                trace(
                    kind_of_trace,
                    x=charts.moments([one.time for one in of_kind]),
                    y=[None if change is None else round(100.0 * change, 4) for change in changes],
                    customdata=[one.ordinal for one in of_kind],
                    mode="markers",
                    name=kind,
                    marker={"symbol": symbol, "color": colour, "size": 9},
                    hovertemplate="decision %{customdata}: %{y:+.2f} %",
                )
            )
    figure.add_hline(y=0.0, line={"color": "#c5cdd5", "width": 1})
    figure.update_layout(height=230, hovermode="closest", uirevision="kept", clickmode="event+select")
    caption = "Each mark is a decision, at the account's change up to the next one. Click one to open it."
    return Picture("Decisions over time", caption, figure)


def _kind(decision: StoredDecision) -> str:
    document = decision.document
    if not document.conversations or document.conversations[0].answer is None:
        return "no valid answer"
    if document.rulings or document.clamps:
        return "cut by RiskAnalyst or the guard"
    return "sent orders" if document.orders else "changed nothing"
