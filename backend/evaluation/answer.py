"""The answer of a demo or an evaluation in money: what a decision earns, what was learned, and what is not shown.

One text for the terminal, the report, `runs show` and the page. It is made of the documents of
`backend.evaluation.held_out_value` on the team's own market and on its no-edge control, and claims what their
intervals allow. Money is in basis points (bp) of the equity a decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backend.evaluation.evaluate import TRAINED, WARM_STARTED

ANSWER = "answer"  # the name of its record
TEACHER, HOLDING = "teacher", "holding"
LEAST_CHANGE = 0.2  # of a behavior's share, below which nothing is said to have been learned
MOST_LETTERS = 240  # of the first sentence
_BARS = {"trained": TRAINED, "initial": WARM_STARTED, "teacher": TEACHER, "holding": HOLDING}


@dataclass(frozen=True)
class Behavior:
    """A role's behavior in words: what it `does` (the row of a table), and what a team learned that does it `more` or
    `less` than before."""

    does: str
    more: str
    less: str


BEHAVIORS = {
    "manager": Behavior("consults the whole team", "to consult its whole team", "to decide without its whole team"),
    "market_analyst": Behavior(
        "finds the direction where the evidence is clear",
        "to see where prices go when the evidence is clear",
        "less of where prices go",
    ),
    "risk_analyst": Behavior(
        "limits positions in crowded coins",
        "to limit positions in coins that may crash or jump",
        "to allow positions in coins that may crash or jump",
    ),
    "trader": Behavior(
        "trades at the market while the spread is wide",
        "to trade at the market while the spread is wide",
        "not to trade at the market while the spread is wide",
    ),
}


def answer_of(value: Mapping[str, Any], control: Mapping[str, Any] | None, seconds: float) -> dict[str, Any]:
    """The answer as a document: the `sentence`, what was `learned`, the `caveat`; `bp` a decision of each bar with its
    interval `bp_ci95`, the differences of the trained team as [point, low, high], and its share of the achievable
    value, None where that is not known. `control` is the trained team minus holding on the no-edge control."""
    rows = value["rows"]
    document: dict[str, Any] = {
        "bp": {name: _bp(rows[row]["net_return"]) for name, row in _BARS.items()},
        "bp_ci95": {name: [_bp(end) for end in rows[row]["net_return_ci95"]] for name, row in _BARS.items()},
        "minus_teacher": _minus(value, TEACHER),
        "minus_initial": _minus(value, WARM_STARTED),
        "minus_holding": _minus(value, HOLDING),
        "control": None if control is None else _minus(control, HOLDING),
        "achievable_share": _share(value),
        "behaviors": {
            role: {name: rows[row].get("behaviors", {}).get(role) for name, row in _BARS.items() if name != HOLDING}
            for role in BEHAVIORS
        },
        "seconds": round(seconds, 1),
    }
    return {"sentence": _sentence(document), "learned": _learned(document), "caveat": _caveat(document), **document}


def answer_text(answer: Mapping[str, Any]) -> str:
    """The whole answer."""
    return " ".join(part for part in (answer["sentence"], answer["learned"], answer["caveat"]) if part)


def _bp(value: float) -> float:
    return round(1e4 * value, 2)


def _minus(value: Mapping[str, Any], other: str) -> list[float]:
    difference = next(row for row in value["differences"] if row["against"] == other)
    return [_bp(end) for end in (difference["net_return"], *difference["net_return_ci95"])]


def _share(value: Mapping[str, Any]) -> float | None:
    """Of what the best decision given all evidence is worth above holding, both as outcome scores."""
    allowed, rows = value.get("allowed"), value["rows"]
    if allowed is None or allowed <= 0.0:
        return None
    return round((rows[TRAINED]["outcome"] - rows[HOLDING]["outcome"]) / allowed, 3)


def _sentence(answer: Mapping[str, Any]) -> str:
    bp = {name: f"{value:+.0f}" for name, value in answer["bp"].items()}
    return (
        f"{_judgement(answer)}, in this invented market: a decision of the trained team earns {bp['trained']} bp, "
        f"before training {bp['initial']}. Its teacher earns {bp['teacher']}, doing nothing {bp['holding']}."
    )


def _judgement(answer: Mapping[str, Any]) -> str:
    (_, low, high), (_, above_teacher, _) = answer["minus_initial"], answer["minus_teacher"]
    if low > 0.0:
        return "Training worked" if above_teacher > 0.0 else "Training helped"
    return "Training made the team worse" if high < 0.0 else "No effect of training can be measured"


def _learned(answer: Mapping[str, Any]) -> str:
    """The behavior that training changed most; empty where none changed much."""
    changes = {
        role: shares["trained"] - shares["initial"]
        for role, shares in answer["behaviors"].items()
        if shares["trained"] is not None and shares["initial"] is not None
    }
    role = max(changes, key=lambda one: abs(changes[one]), default=None)
    if role is None or abs(changes[role]) < LEAST_CHANGE:
        return ""
    shares, words = answer["behaviors"][role], BEHAVIORS[role]
    what = words.more if changes[role] > 0.0 else words.less
    shown = shares["teacher"]
    beyond = shown is not None and (shares["trained"] - shown) * changes[role] > LEAST_CHANGE * abs(changes[role])
    before, after = (f"{100 * shares[name]:.0f} %" for name in ("initial", "trained"))
    return f"It learned {what} ({before} of cases → {after}){', beyond what its teacher does' if beyond else ''}."


def _caveat(answer: Mapping[str, Any]) -> str:
    parts = []
    if answer["minus_initial"][1] > 0.0 >= answer["minus_teacher"][1]:
        parts.append("It is not measurably better than its teacher.")
    if answer["control"] is not None:
        mean, low, high = answer["control"]
        if low > 0.0:
            parts.append(f"It also gains {mean:+.0f} bp where nothing can be known, so part of its gain is not skill.")
        elif high < 0.0:
            parts.append(f"Where there is nothing to learn, it trades all the same and loses {-mean:.0f} bp.")
        else:
            parts.append("Where there is nothing to learn, it gains nothing.")
    return " ".join(parts)
