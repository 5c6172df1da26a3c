"""One group of a training step on the page."""

from __future__ import annotations

from backend.reporting.training.group import RolloutGroup
from backend.store.records import RolloutRecord
from tests.small_world import RUN


def test_a_rollout_that_goes_on_from_another_says_so() -> None:
    def rollout(number: int, **parts: float) -> RolloutRecord:
        return RolloutRecord(RUN, 0, 0, number, 1, True, 0.5, {"trader": 1}, parts)

    plain = RolloutGroup(1, None, (rollout(0), rollout(1)), ()).side_by_side()
    assert [row.label for row in plain.rows] == ["rollout 1", "rollout 2"] and "goes on" not in plain.caption
    further = RolloutGroup(1, None, (rollout(0), rollout(1), rollout(2, resampled_from=1.0)), ()).side_by_side()
    assert [row.label for row in further.rows][2] == "rollout 3, goes on from 2"
    assert "nothing repeated is paid twice" in further.caption
