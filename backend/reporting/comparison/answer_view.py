"""The first screen of a demo or an evaluation: four cards and one picture, made of the answer's document
(`backend.evaluation.answer`), and the table of what each role learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backend.evaluation.answer import BEHAVIOURS
from backend.reporting import charts
from backend.reporting.blocks import Picture, Table, TableRow, Tile
from backend.reporting.drawing.figure import PlainFigure, trace
from backend.reporting.labels import Column
from cryptosentinel.agents.registry import role_title

_BARS = {
    "trained": ("trained", charts.BLUE),
    "initial": ("before training", charts.VERMILION),
    "teacher": ("its teacher", charts.PINK),
    "holding": ("doing nothing", charts.GREY),
}
_SHARES = (
    Column("initial", "Before training", "share", "of the cases in which the question arises"),
    Column("trained", "Trained", "share", "of the same cases"),
    Column("teacher", "Its teacher", "share", "of the same cases"),
)
_UNKNOWN = "no measurable difference"


def answer_tiles(answer: Mapping[str, Any]) -> list[Tile]:
    """Four cards: what the team earns, what training added, how much is achieved, and what the control shows."""
    low, high = answer["bp_ci95"]["trained"]
    earned = Tile("Earns", f"{answer['bp']['trained']:+.1f} bp", f"a decision; 95 % interval {low:+.1f} to {high:+.1f}")
    gained = Tile("Gained by training", *_shown(answer["minus_initial"]))
    share = answer["achievable_share"]
    achieved = (
        Tile("Leads its teacher by", *_shown(answer["minus_teacher"]))
        if share is None
        else Tile("Achieves", f"{100 * share:.0f} %", "of what the best decision given all evidence is worth")
    )
    return [earned, gained, achieved, _control_tile(answer["control"])]


def _shown(difference: Sequence[float]) -> tuple[str, str]:
    """A difference with its interval; a difference that includes 0 has no number on a card."""
    mean, low, high = difference
    note = f"a decision; 95 % interval {low:+.1f} to {high:+.1f} bp"
    return (f"{mean:+.1f} bp", note) if low > 0.0 or high < 0.0 else (_UNKNOWN, note)


def _control_tile(control: Sequence[float] | None) -> Tile:
    label = "Gains without an edge"
    if control is None:
        return Tile(label, "–", "there is no control market without an edge")
    mean, low, high = control
    note = f"in a market where nothing can be known, against doing nothing: {low:+.1f} to {high:+.1f} bp"
    return Tile(label, f"{mean:+.1f} bp" if low > 0.0 or high < 0.0 else "nothing", note)


def answer_picture(answer: Mapping[str, Any]) -> Picture:
    """The four bars with their intervals."""
    caption = "What a decision earns in the mean, net of all costs, in basis points. Lines are 95 % intervals."
    return Picture("What a decision earns", caption, _bars(answer))


def _bars(answer: Mapping[str, Any]) -> PlainFigure:
    figure = charts.blank_figure("basis points a decision", "", "")
    for place, (name, (label, colour)) in enumerate(_BARS.items()):
        value, ends = answer["bp"][name], answer["bp_ci95"][name]
        hover = f"%{{x:+.1f}} bp<extra>{label}</extra>"
        figure.add_trace(
            trace(
                "bar", x=[value], y=[place], orientation="h", width=0.62, marker={"color": colour}, hovertemplate=hover
            )
        )  # fmt: skip
        figure.add_trace(
            trace("scatter", x=ends, y=[place] * 2, mode="lines", line={"color": charts.INK, "width": 2},
                  hovertemplate=hover)
        )  # fmt: skip
        figure.add_annotation(
            x=max(value, *ends, 0.0), y=place, text=f"<b>{value:+.1f}</b>", xanchor="left", showarrow=False, xshift=6
        )
    labels = [label for label, _ in _BARS.values()]
    figure.update_yaxes(tickvals=list(range(len(labels))), ticktext=labels, range=[len(labels) - 0.5, -0.5])
    edges = [edge for ends in answer["bp_ci95"].values() for edge in ends]
    low, high = min(0.0, *edges), max(0.0, *edges)
    room = 0.15 * (high - low)
    figure.update_xaxes(range=[low - (room / 5 if low < 0.0 else 0.0), high + room], zeroline=False)
    figure.add_vline(x=0.0, line={"color": charts.INK, "width": 1})
    figure.update_layout(height=240, hovermode="closest", showlegend=False)
    return figure


def learned_table(answer: Mapping[str, Any]) -> Table:
    """How often each role does what counts, before training and after it."""
    rows = tuple(
        TableRow(role_title(role), answer["behaviours"].get(role, {}), behaviour.does)
        for role, behaviour in BEHAVIOURS.items()
    )
    caption = (
        "In the held-out states, with the likeliest answers. A dash: the question never arises. Trader's row is of the "
        "team's orders."
    )
    return Table("What each role learned", caption, _SHARES, rows, first="Role")
