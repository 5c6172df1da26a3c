"""The answer in money: it claims what the intervals allow, in short sentences of few numbers."""

from __future__ import annotations

from typing import Any

import pytest

from backend.decisions.checked_documents import check_document
from backend.evaluation.answer import ANSWER, answer_of
from backend.store.records import EvaluationRecord
from tests.stored_runs import control_values, decision_values


def test_the_answer_is_the_figures_in_basis_points() -> None:
    answer = answer_of(decision_values(), control_values(), 91.26)
    assert answer["sentence"] == (
        "Training worked, in this invented market: a decision of the trained team earns +31 bp, before training +11. "
        "Its teacher earns +21, doing nothing +1."
    )
    assert answer["learned"] == (
        "It learned not to trade at the market while the spread is wide (82 % of cases → 3 %), beyond what its "
        "teacher does."
    )
    assert answer["caveat"] == "Where there is nothing to learn, it gains nothing."
    assert answer["bp"] == {"trained": 31.0, "initial": 11.0, "teacher": 21.0, "holding": 1.0}
    assert answer["minus_initial"] == [20.0, 16.0, 24.0] and answer["control"] == [-1.0, -3.0, 1.0]
    assert answer["achievable_share"] == 0.8 and answer["seconds"] == 91.3
    check_document(EvaluationRecord("run", ANSWER, 0, answer))


def moved(against: str, low: float, high: float) -> dict[str, Any]:
    """The values with another interval of one difference."""
    document = decision_values()
    row = next(one for one in document["differences"] if one["against"] == against)
    row |= {"net_return": (low + high) / 2, "net_return_ci95": [low, high]}
    return document


@pytest.mark.parametrize(
    ("value", "control", "begins", "contains"),
    [
        (
            moved("teacher", -0.001, 0.002),
            control_values(),
            "Training helped",
            "not measurably better than its teacher",
        ),
        (moved("warm_started", -0.001, 0.002), control_values(), "No effect of training can be measured", ""),
        (moved("warm_started", -0.003, -0.001), control_values(), "Training made the team worse", ""),
        (decision_values(), control_values(0.0005), "Training worked", "part of its gain is not skill"),
        (decision_values(), control_values(-0.0030), "Training worked", "it trades all the same and loses 30 bp"),
        (decision_values(), None, "Training worked", ""),
    ],
)
def test_it_claims_what_the_intervals_allow(
    value: dict[str, Any], control: dict[str, Any] | None, begins: str, contains: str
) -> None:
    answer = answer_of(value, control, 1.0)
    assert answer["sentence"].startswith(begins) and contains in answer["caveat"]
    shown = control is not None and not any(words in answer["caveat"] for words in ("not skill", "loses"))
    assert ("gains nothing" in answer["caveat"]) == shown


@pytest.mark.parametrize(
    ("trained", "teacher", "learned"),
    [
        (0.7, 0.6, ""),  # too small a change
        (0.45, 0.45, "It learned not to trade at the market while the spread is wide (82 % of cases → 45 %)."),
        (None, 0.6, ""),  # the question never arose
    ],
)
def test_it_tells_the_strongest_change_and_whether_an_example_showed_it(
    trained: float | None, teacher: float, learned: str
) -> None:
    document = decision_values()
    for row in document["rows"].values():
        row["behaviors"] = {}
    for name, share in (("trained", trained), ("teacher", teacher), ("warm_started", 0.82)):
        document["rows"][name]["behaviors"] = {"trader": share}
    assert answer_of(document, None, 1.0)["learned"] == learned
