"""Runs that come to one result of their own: `sft`, a search of parameters, an experiment. What stands in the table of
runs, and what is shown of an opened one. The result is the evaluation that has the name of the run's kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backend.reporting.blocks import Missing, ReportBlock, Table, TableRow
from backend.reporting.labels import ABSENT, Column, listed
from cryptosentinel.agents.registry import role_title

SINGLE_RESULT = ("sft", "search", "experiment")  # kinds of runs
_MOST_SETS = 50  # of a search, the best of them
_SCORES = (
    Column("before", "Before", "text", "mean held-out score of the role as the base answers"),
    Column("after", "After", "text", "the same after sft"),
    Column("interval", "Difference, 95 % interval", "text", "over the held-out states"),
    Column("reference", "Scripted", "text", "the score of the scripted team's role"),
    Column("valid_before", "Valid before", "share", "answers in the right format"),
    Column("valid_after", "Valid after", "share", "answers in the right format"),
)
_SETS = (
    Column("sharpe", "Sharpe", "ratio", "annual, on the part that was searched"),
    Column("total_return", "Return", "change", "on the part that was searched, net of all costs"),
    Column("adjusted", "p corrected", "ratio", "of a ratio above 0, corrected for the number of sets"),
)


def row_of_result(kind: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the table's row. Raises `KeyError`, `TypeError`, `ValueError` or `IndexError` for a damaged one."""
    match kind:
        case "experiment":
            arms = [str(arm["arm"]) for arm in result["markets"][0]["arms"]]
            return {"teams": listed(arms), "verdict": str(result["sentence"])}
        case "search":
            final, hold = float(result["final_return"]), float(result["hold_return"])
            return {
                "teams": str(result["tried"][0]["name"]),
                "total_return": final,
                "sharpe": float(result["final_sharpe"]),
                "difference": final - hold,
                "verdict": f"the best of {len(result['tried'])} sets, on the part of the window that was not searched",
            }
    words = [
        f"{role_title(role)} {_score(score['before'])} to {_score(score['after'])}"
        for role, score in result["scores"].items()
    ]
    return {"verdict": "; ".join(words)}


def blocks_of_result(kind: str, result: Mapping[str, Any]) -> tuple[ReportBlock, ...]:
    """What is shown of an opened run of this kind; says so where its result is damaged or not there yet."""
    try:
        return (_table(kind, result),) if result else (Missing("Result", "the run did not come to its end"),)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):
        return (Missing("Result", "its records cannot be read"),)


def _table(kind: str, result: Mapping[str, Any]) -> Table:
    if kind == "experiment":
        arms = result["markets"][0]["arms"]
        sentence = Column("problem", "What is missing", "text", "why there is no interval")
        rows = tuple(TableRow(str(arm["arm"]), {"problem": str(arm["problem"]) or "nothing"}) for arm in arms)
        return Table("Arms", str(result["sentence"]), (sentence,), rows, "Arm")
    if kind == "search":
        row = row_of_result(kind, result)
        caption = (
            f"Chosen: {row['teams']}. On the last part of the window, which was not searched, it made "
            f"{100 * row['total_return']:+.2f} % with a Sharpe ratio of {row['sharpe']:.2f}, and holding "
            f"{100 * float(result['hold_return']):+.2f} %. Probability that its ratio is above 0 after "
            f"{result['trials']} trials: {100 * float(result['deflated']):.0f} %."
        )
        rows = tuple(
            TableRow(str(one["name"]), {column.key: float(one[column.key]) for column in _SETS}, main=number == 0)
            for number, one in enumerate(result["tried"][:_MOST_SETS])
        )
        return Table("Parameter sets", caption, _SETS, rows, "Set")
    rows = tuple(
        TableRow(
            role_title(role),
            {
                "before": _score(score["before"]),
                "after": _score(score["after"]),
                "interval": _difference(score["difference"]),
                "reference": _score(score["reference"]),
                "valid_before": float(score["valid_before"]),
                "valid_after": float(score["valid_after"]),
            },
        )
        for role, score in result["scores"].items()
    )
    caption = "Mean score of each role on the same held-out states. Good: an interval wholly above 0."
    return Table("Scores before and after", caption, _SCORES, rows, "Role")


def _score(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.3f}"


def _difference(difference: Mapping[str, Any] | None) -> str:
    if difference is None or None in difference["ci95"]:
        return ABSENT
    low, high = difference["ci95"]
    return f"{difference['mean']:+.3f} ({low:+.3f} to {high:+.3f})"
