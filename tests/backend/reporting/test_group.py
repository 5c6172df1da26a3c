"""One group of a training step on the page."""

from __future__ import annotations

from backend.reporting.training_sections import RolloutGroup
from backend.store.records import RolloutRecord
from tests.small_world import RUN


def test_every_rollout_has_a_row_with_what_came_of_it() -> None:
    def rollout(number: int, **parts: float) -> RolloutRecord:
        return RolloutRecord(RUN, 0, 0, number, 1, number == 0, 0.5, {"trader": 1}, parts)

    found = RolloutGroup(1, None, (rollout(0, orders=2.0), rollout(1)), ()).side_by_side()
    assert [row.label for row in found.rows] == ["rollout 1", "rollout 2"]
    assert [(row.values["orders"], row.values["valid"]) for row in found.rows] == [(2.0, "yes"), (None, "no")]
