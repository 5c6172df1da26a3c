"""What is told of a role's conversations and of what they were paid."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from backend.training.algorithm.alignment import align
from backend.training.algorithm.credit import RoleCredit, TrajectoryCredit
from backend.training.algorithm.rewards import RewardParts, sub_reward
from backend.training.algorithm.trajectory import Trajectory, failure_kind
from backend.training.learning.training_metrics import conversation_metrics, credit_metrics, practice_metrics

ROLE = "trader"
BETA = (0.1, 0.4, 0.5)
PARTS = st.tuples(st.booleans(), st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.floats(0.0, 1.0))


def said(rollout: int = 0, query: str = "0-0", length: int = 3, reason: str | None = None, **more: Any) -> Trajectory:
    mask = np.arange(length + 1) > 0
    logps = np.where(mask, np.float32(-1.0), np.float32(0.0))
    fields: dict[str, Any] = {"truncated": reason is not None and reason.startswith("cut_off"), **more}
    return Trajectory(
        ROLE, query, rollout, 0, np.ones(length + 1, np.int32), mask, logps, "v", reason is None, 1.0, None,
        failure=failure_kind(reason), **fields,
    )  # fmt: skip


@given(
    spoken=st.lists(
        st.tuples(
            st.integers(0, 3),
            st.integers(1, 9),
            st.sampled_from([None, "bad_json: at 3", "bad_json: at 4", "cut_off: no end", "no_answer"]),
        ),
        min_size=1,
    )
)
def test_kinds_of_failure_and_validity_are_shares_of_all_conversations(
    spoken: list[tuple[int, int, str | None]],
) -> None:
    calls = [said(rollout, length=length, reason=reason) for rollout, length, reason in spoken]
    found = conversation_metrics(ROLE, calls, 4)
    failed = {name.rpartition("/")[2]: share for name, share in found.items() if "/failed/" in name}
    assert failed.keys() == {reason.partition(":")[0] for _, _, reason in spoken if reason is not None}
    assert sum(failed.values()) + found[f"{ROLE}/valid"] == pytest.approx(1.0)
    assert failed.get("cut_off", 0.0) == found[f"{ROLE}/truncated"]
    assert found[f"{ROLE}/length"] == pytest.approx(np.mean([length for _, length, _ in spoken]))
    assert found[f"{ROLE}/calls/max"] == max(Counter(rollout for rollout, _, _ in spoken).values())
    assert found[f"{ROLE}/calls"] == len(spoken) / 4


def test_practice_is_counted_apart_from_the_calls_of_the_team() -> None:
    """Of a sub-agent that the manager never asks nothing else says whether its answers are valid."""
    spoken, practice = [said(), said(reason="cut_off: no end")], [said(reason="bad_json: at 3")] * 3 + [said()]
    assert practice_metrics(ROLE, spoken, [*practice, *spoken]) == {f"{ROLE}/practice/valid": 0.25}
    assert practice_metrics(ROLE, [], practice) == {f"{ROLE}/practice/valid": 0.25}
    assert practice_metrics(ROLE, spoken, spoken) == practice_metrics(ROLE, [], []) == {}


@given(parts=st.lists(PARTS, min_size=1))
def test_shares_of_the_reward_are_what_valid_answers_are_paid_for(
    parts: list[tuple[bool, float, float, float]],
) -> None:
    items = []
    for valid, form, outcome, expert in parts:
        reward = sub_reward(valid, form, outcome, expert, BETA)
        items.append(TrajectoryCredit(said(), RewardParts(valid, form, outcome, expert), reward, 1.0, 0.0))
    found = credit_metrics(ROLE, RoleCredit(items, 1, 0), BETA)
    shares = [found.get(f"{ROLE}/reward/{name}_share") for name in ("format", "outcome", "expert")]
    paid = sum(item.reward or 0.0 for item in items)
    assume(paid == 0.0 or paid > 1e-9)
    if paid == 0.0:
        assert shares == [None] * 3
        return
    assert None not in shares and sum(share or 0.0 for share in shares) == pytest.approx(1.0)
    valid_ones = [one for one in parts if one[0]]
    for share, weight, column in zip(shares, BETA, (1, 2, 3), strict=True):
        assert share == pytest.approx(weight * sum(one[column] for one in valid_ones) / paid)
    assert found[f"{ROLE}/outcome/mean"] == pytest.approx(np.mean([one[2] for one in valid_ones]))


@given(queries=st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=8), min_size=1, max_size=4))
def test_effective_calls_are_the_harmonic_by_the_arithmetic_mean_of_the_callers(queries: list[list[int]]) -> None:
    assume(any(map(sum, queries)))
    items, effective = [], 0.0
    for number, counts in enumerate(queries):
        weights = align(counts, "fractional", 1, np.random.default_rng(0))
        parts = RewardParts(True, 1.0, 1.0, 1.0)
        items += [TrajectoryCredit(said(query=f"0-{number}"), parts, 1.0, weight, 0.0) for weight in weights]
        callers = [count for count in counts if count]
        effective += len(callers) ** 2 / sum(1.0 / count for count in callers) if callers else 0.0
    found = credit_metrics(ROLE, RoleCredit(items, len(queries), 0), BETA)[f"{ROLE}/calls/efficiency"]
    assert found == pytest.approx(effective / len(items)) and found <= 1.0 + 1e-9


def test_nothing_is_told_of_a_role_that_was_not_paid() -> None:
    unscored = TrajectoryCredit(said(), RewardParts(True, 1.0, 1.0), None, 0.0, 0.0)
    assert credit_metrics(ROLE, RoleCredit([unscored]), BETA) == {f"{ROLE}/unscored": 1.0}
    assert conversation_metrics(ROLE, [], 4) == {}
