"""What decisions are worth on held-out states, as tables: the trained team beside its teacher, the initial team and
holding (the documents of `backend.evaluation.held_out_value`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backend.reporting.blocks import ReportBlock, ReportSection, Table, TableRow
from backend.reporting.labels import Column, title_of

HELD_OUT_VALUE, CONTROL_VALUE = "held_out_value", "control_value"  # the names of the records
_NOTES = {
    "trained": "after M-GRPO",
    "warm_started": "before it",
    "teacher": "the rules that the warm start learned from",
    "scripted": "rules that read all evidence",
    "holding": "leaves every position as it is",
}
_COLUMNS = (
    Column("net_return", "Return, bp", "text", "mean over the states and scenarios, net of all costs, in basis points"),
    Column("outcome", "Outcome score", "text", "what training raises, 0 to 1; large losses count more in it"),
    Column("questions", "Questions", "ratio", "put to sub-agents, a decision"),
    Column("traded", "Trades", "share", "decisions that changed a position"),
)
_DIFFERENCES = (
    Column("net_return", "Return, bp", "text", "what the trained team earns more a decision"),
    Column("net_return_ci95", "95 % interval", "text", "of that"),
)


def value_section(value: Mapping[str, Any], control: Mapping[str, Any] | None) -> ReportSection:
    """The decisions' worth of each team, and what the trained one earns more than each other; and than holding on the
    no-edge control."""
    ordered = sorted(value["rows"].items(), key=lambda item: -item[1]["outcome"])
    rows = tuple(
        TableRow(
            title_of(name),
            row | {"net_return": f"{1e4 * row['net_return']:+.1f}", "outcome": f"{row['outcome']:.4f}"},
            _NOTES.get(name, ""),
            main=name == "trained",
        )
        for name, row in ordered
    )
    caption = (
        f"Each team decided once in each of {value['states']:,} held-out states, with its likeliest answers. Each "
        f"decision was scored over the same {value['scenario_paths']:,} simulated scenarios, so luck plays no part. "
        "One basis point (bp) is a hundredth of a percent of the equity."
    )
    blocks: list[ReportBlock] = [Table("What a decision is worth", caption, _COLUMNS, rows)]
    blocks.append(_differences("Trained, compared", value))
    if control is not None:
        blocks.append(_differences("The same on the no-edge control", control))
    return ReportSection("What a decision is worth", tuple(blocks))


def _differences(title: str, value: Mapping[str, Any]) -> Table:
    rows = tuple(
        TableRow(
            f"Trained − {title_of(row['against'])}",
            {"net_return": f"{1e4 * row['net_return']:+.1f}", "net_return_ci95": _interval(row["net_return_ci95"])},
        )
        for row in value["differences"]
    )
    caption = (
        f"Over {value['states']:,} held-out states. Intervals are over the means of {value['stretches']} stretches of "
        "the held-out part."
    )
    return Table(title, caption, _DIFFERENCES, rows, first="Difference")


def _interval(bounds: tuple[float, float]) -> str:
    low, high = bounds
    return f"{1e4 * low:+.1f} to {1e4 * high:+.1f}"
