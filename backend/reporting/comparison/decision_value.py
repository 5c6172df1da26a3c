"""What likeliest decisions are worth on held-out states, as tables: the trained team beside its teacher, its beginning
and holding (the document of `backend.evaluation.held_out_value`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backend.evaluation.value_difference import shown_difference
from backend.reporting.blocks import ReportSection, Table, TableRow
from backend.reporting.labels import Column, title_of

HELD_OUT_VALUE = "held_out_value"  # the name of its record
_NOTES = {
    "trained, greedy": "after M-GRPO",
    "warm_started, greedy": "before it",
    "teacher": "the rules that the warm start learned from",
    "scripted": "rules that read all evidence",
    "holding": "leaves every position as it is",
}
_COLUMNS = (
    Column("net_return", "Return, bp", "text", "mean over the states and scenarios, net of all costs, in basis points"),
    Column("outcome", "Outcome", "text", "the score that training raises, 0 to 1"),
    Column("questions", "Questions", "ratio", "put to sub-agents, a decision"),
    Column("traded", "Trades", "share", "decisions that changed a position"),
)
_TIMED = (
    Column("traded_now", "Trades if now", "share", "of the decisions in which Trader would send the orders at once"),
    Column("traded_later", "Trades if later", "share", "of the decisions in which Trader would wait"),
)
_DIFFERENCES = (
    Column("net_return", "Return, bp", "text", "what the trained team earns more a decision"),
    Column("net_return_ci95", "95 % interval", "text", "of that"),
    Column("outcome", "Outcome, thousandths", "text", "how much more its outcome scores"),
    Column("outcome_ci95", "95 % interval", "text", "of that"),
)


def above_teacher(document: Mapping[str, Any]) -> tuple[float, float, float, str]:
    """What the trained team is worth more than its teacher, as `shown_difference` has it."""
    difference = next(row for row in document["differences"] if row["against"] == "teacher")
    return shown_difference(difference, document.get("tail_weight", 0.0))


def value_section(document: Mapping[str, Any]) -> ReportSection:
    """The decisions' worth of each team, and what the trained one earns more than each other."""
    ordered = sorted(document["rows"].items(), key=lambda item: -item[1]["outcome"])
    rows = tuple(
        TableRow(
            title_of(name),
            row | {"net_return": f"{1e4 * row['net_return']:+.1f}", "outcome": f"{row['outcome']:.4f}"},
            _NOTES.get(name, ""),
            main=name == "trained, greedy",
        )
        for name, row in ordered
    )
    timed = tuple(one for one in _TIMED if any(row.get(one.key) is not None for row in document["rows"].values()))
    differences = tuple(
        TableRow(
            f"Trained − {title_of(row['against'])}",
            {
                "net_return": f"{1e4 * row['net_return']:+.1f}",
                "net_return_ci95": _interval(row["net_return_ci95"], 1e4),
                "outcome": f"{1e3 * row['outcome']:+.1f}",
                "outcome_ci95": _interval(row["outcome_ci95"], 1e3),
            },
        )
        for row in document["differences"]
    )
    caption = (
        f"Each team decided once in each of {document['states']:,} held-out states, with its likeliest answers. Each "
        f"decision was scored over the same {document['scenario_paths']:,} simulated scenarios, so luck plays no part "
        "in it. One basis point (bp) is a hundredth of a percent of the equity."
    )
    intervals = f"Intervals are over the means of {document['stretches']} stretches of the held-out part."
    return ReportSection(
        "What a decision is worth",
        (
            Table("What a decision is worth", caption, (*_COLUMNS, *timed), rows),
            Table("Trained, compared", intervals, _DIFFERENCES, differences, first="Difference"),
        ),
    )


def _interval(bounds: tuple[float, float], scale: float) -> str:
    low, high = bounds
    return f"{scale * low:+.1f} to {scale * high:+.1f}"
