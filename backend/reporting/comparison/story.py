"""The story of a training in three pictures: what the teacher does, what each role alone cannot know, and what the team
learned that nobody told it (the `story` of the document of `backend.evaluation.held_out_value`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backend.reporting import charts
from backend.reporting.blocks import Picture
from backend.reporting.comparison.decision_value import above_teacher
from backend.reporting.drawing.figure import PlainFigure, trace
from backend.reporting.labels import title_of
from cryptosentinel.agents.registry import role_title

_EVIDENCE = ("surely falling", "falling", "unclear", "rising", "surely rising")
_TEACHER, _BEFORE, _TRAINED = "teacher", "warm_started, greedy", "trained, greedy"
_LINES = {
    _TEACHER: ("teacher", charts.PINK, "dashdot", "diamond"),
    _BEFORE: ("before training", charts.VERMILION, "dot", "square"),
    _TRAINED: ("trained", charts.BLUE, "solid", "circle"),
}
_TIMINGS = {"traded_now": "Trader would send at once", "traded_later": "Trader would wait"}
_LEARNED = "3. What the team learned that nobody told it"
_HEIGHT = 260
_CLOSED = "closed"
_SELDOM = 0.01  # of a role's conversations


def story_pictures(document: Mapping[str, Any]) -> list[Picture]:
    """The three pictures; none where the states have no evidence to go by, or were measured before there were any."""
    story = document.get("story")
    if not story:
        return []
    against_teacher = _against_teacher(document)
    timed = _timed(document.get("rows", {}), against_teacher)
    return [_teacher(story), _roles(story), timed or _learned(story, against_teacher)]


def _teacher(story: Mapping[str, Any]) -> Picture:
    figure = _by_evidence(story, "position", "position after the decision", 1.0, "", (_TEACHER,))
    figure.update_yaxes(range=[-1.05, 1.05])
    caption = (
        "The position that the teacher wants, from -1 (all short) to 1 (all long), by what the public data say of the "
        "market. A teacher that used all of it would rise from the left below to the right above; the flatter the "
        "line, the more it leaves lying."
    )
    return Picture("1. What the teacher does", caption, figure)


def _roles(story: Mapping[str, Any]) -> Picture:
    lookups: Mapping[str, Mapping[str, float | None]] = story["lookups"]
    roles = ["manager", *lookups]
    every = [(tool, share or 0.0) for used in lookups.values() for tool, share in used.items()]
    # A role may use more tools than fit here; what nobody uses says nothing.
    tools = list(dict.fromkeys(tool for tool, share in every if share >= _SELDOM) or dict.fromkeys(dict(every)))
    cells = [(role, tool, lookups.get(role, {})) for role in roles for tool in tools]
    texts = [_cell(tool in used, used.get(tool)) for _, tool, used in cells]
    figure = charts.blank_figure("", "", "")
    # The report's part of plotly has no heat maps: squares on a grid are one.
    figure.add_trace(
        trace(
            "scatter",
            x=[tool.removeprefix("get_").replace("_", " ") for _, tool, _ in cells],
            y=[role_title(role) for role, _, _ in cells],
            mode="markers+text",
            text=["" if text == _CLOSED else text for text in texts],
            hovertext=texts,
            marker={
                "symbol": "square",
                "size": 34,
                "color": [_shade(used[tool] or 0.0) if tool in used else "#9aa5b1" for _, tool, used in cells],
            },
            textfont={"size": 11, "color": "#10161d"},
            hovertemplate="%{y}, %{x}: %{hovertext}<extra></extra>",
            showlegend=False,
        )
    )
    figure.update_layout(height=_HEIGHT, hovermode="closest")
    figure.update_yaxes(autorange="reversed")
    caption = (
        "How often each role of the trained team looks each thing up when it is asked; what nobody looks up is left "
        "out. Grey is closed to it: the manager sees no data at all, and no role sees everything, so a good decision "
        "needs the right questions."
    )
    return Picture("2. What each role alone cannot know", caption, figure)


def _shade(share: float) -> str:
    """From nearly white to sky blue."""
    low, high = (232, 243, 250), (86, 180, 233)
    red, green, blue = (round(a + share * (b - a)) for a, b in zip(low, high, strict=True))
    return f"rgb({red},{green},{blue})"


def _cell(open_to_it: bool, share: float | None) -> str:
    if not open_to_it:
        return _CLOSED
    return "not asked" if share is None else f"{100 * share:.0f} %"


def _timed(rows: Mapping[str, Mapping[str, Any]], against_teacher: str) -> Picture | None:
    """How often a team trades by what Trader would do with the orders; None where that was not known of each team, or
    Trader would always do the same."""
    shares: dict[str, list[float]] = {}
    for name in _LINES:
        shown = [rows.get(name, {}).get(key) for key in _TIMINGS]
        shares[name] = [float(share) for share in shown if share is not None]
    if any(len(known) < len(_TIMINGS) for known in shares.values()):
        return None
    figure = charts.blank_figure("what Trader's tools say of the spread", "decisions that trade", "%")
    for name, traded in shares.items():
        label, colour, _, _ = _LINES[name]
        figure.add_trace(
            trace(
                "bar",
                x=list(_TIMINGS.values()),
                y=[100.0 * share for share in traded],
                name=label,
                marker={"color": colour},
                hovertemplate=f"{title_of(name)}: %{{y:.0f}} %<extra></extra>",
            )
        )
    figure.update_yaxes(range=[0.0, 105.0])
    figure.update_layout(height=_HEIGHT, barmode="group")
    caption = (
        "How often a decision trades where Trader would send the orders at once, and where it would wait, since the "
        f"spread is wide. {against_teacher}"
    )
    return Picture(_LEARNED, caption, figure)


def _learned(story: Mapping[str, Any], against_teacher: str) -> Picture:
    figure = _by_evidence(story, "net_return", "return a decision", 1e4, "bp", (_TEACHER, _BEFORE, _TRAINED))
    caption = (
        "What a decision earns in the mean, net of all costs, by what the public data say of the market; holding earns "
        f"about nothing. {against_teacher}"
    )
    return Picture(_LEARNED, caption, figure)


def _against_teacher(document: Mapping[str, Any]) -> str:
    mean, low, high, unit = above_teacher(document)
    size = f"{mean:+.1f} {unit} a decision (95 % interval {low:+.1f} to {high:+.1f})"
    if low > 0.0:
        return f"Trained lies above its teacher by {size}: that much no example has shown it, rewards alone did."
    if high < 0.0:
        return f"Trained lies below its teacher, {size}: here it has not learned all that it was shown."
    return f"Trained and teacher cannot be told apart, {size}: here it found back to its teacher, and not beyond."


def _by_evidence(
    story: Mapping[str, Any], key: str, title: str, scale: float, unit: str, names: Sequence[str]
) -> PlainFigure:
    """A line for each team over the stretches of evidence; how many states each stretch has is said when pointed at."""
    figure = charts.blank_figure("what the public data say of the market", title, unit)
    for name in names:
        label, colour, dash, symbol = _LINES[name]
        figure.add_trace(
            trace(
                "scatter",
                x=list(_EVIDENCE),
                y=[None if value is None else scale * value for value in story[key][name]],
                customdata=story["states"],
                name=label,
                mode="lines+markers",
                line={"color": colour, "dash": dash, "width": 2.5},
                marker={"symbol": symbol, "size": 9},
                hovertemplate=f"{title_of(name)}: %{{y:.2f}} {unit}, %{{customdata}} states<extra></extra>",
            )
        )
    figure.add_hline(y=0.0, line={"color": "#c5cdd5", "width": 1})
    figure.update_layout(height=_HEIGHT)
    return figure
