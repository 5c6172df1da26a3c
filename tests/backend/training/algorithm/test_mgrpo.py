"""M-GRPO as a library is the trainer's: the same weights, advantages and loss, for any team."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import cryptosentinel as cs
from backend.training.algorithm.advantages import group_advantages
from backend.training.algorithm.alignment import AlignmentMethod, align
from backend.training.algorithm.mgrpo import Call, RoleBatch, batches
from backend.training.algorithm.recipes import DrGrpo, Mgrpo


def call(role: str, rollout: int, reward: float, query: str = "q", length: int = 3) -> Call:
    ids = np.arange(1, length + 1)
    return Call(role, rollout, ids, [False] + [True] * (length - 1), [0.0] + [-1.0] * (length - 1), reward, query)


COUNTS = st.lists(st.lists(st.integers(0, 4), min_size=2, max_size=4), min_size=1, max_size=3)


@given(COUNTS, st.sampled_from(["fractional", "duplicate_drop", "none"]), st.integers(0, 99))
def test_each_rollout_counts_once_and_each_group_is_compared_within(
    counts: list[list[int]], method: AlignmentMethod, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    calls = []
    for query, of_query in enumerate(counts):
        for rollout, number in enumerate(of_query):
            calls.append(call("planner", rollout, float(rng.normal()), f"q{query}"))
            calls += [call("searcher", rollout, float(rng.normal()), f"q{query}", 2 + one) for one in range(number)]
    made = batches([calls[number] for number in rng.permutation(len(calls))], main="planner", alignment=method)
    asked = [of_query for of_query in counts if any(of_query)]
    for role, batch in made.items():
        queries = list(dict.fromkeys(one.query for one in batch.calls))
        assert batch.groups == len(queries) == (len(counts) if role == "planner" else len(asked))
        for asked_query in queries:
            rows = [row for row, one in enumerate(batch.calls) if one.query == asked_query]
            assert float(batch.weights[rows].sum()) == pytest.approx(1.0, abs=1e-6)
            rewards, weights = [batch.calls[row].total for row in rows], batch.weights[rows].double().tolist()
            expected, _ = group_advantages(rewards, weights, True)
            assert batch.advantages[rows].tolist() == pytest.approx(expected.tolist(), abs=1e-4)
            by_rollout: dict[int, float] = {}
            for row in rows:
                by_rollout[batch.calls[row].rollout] = by_rollout.get(batch.calls[row].rollout, 0.0) + float(
                    batch.weights[row]
                )
            if method == "fractional" or (method == "duplicate_drop" and role == "searcher"):
                assert list(by_rollout.values()) == pytest.approx([1 / len(by_rollout)] * len(by_rollout), abs=1e-6)
    assert ("searcher" in made) == bool(asked)


def test_the_loss_by_hand() -> None:
    calls = [call("planner", 0, 1.0), call("planner", 1, 0.0), *(call("searcher", 0, one) for one in (1.0, 0.0)),
             call("searcher", 1, 0.5)]  # fmt: skip
    made = batches(calls, main="planner")
    assert made["searcher"].weights.tolist() == [0.25, 0.25, 0.5]
    new = made["planner"].logps.clone().requires_grad_()
    loss = made["planner"].loss(new)
    assert loss.item() == pytest.approx(0.0)  # at the old weights: the advantages of a group sum to 0
    loss.backward()
    assert new.grad is not None
    # -w A / n for each of two sampled tokens: w = 1/2, A = +1 and -1.
    assert new.grad.tolist() == [[0.0, -0.25, -0.25], [0.0, 0.25, 0.25]]
    weights = align([2, 1], "fractional", 1, np.random.default_rng(0))
    objective, _ = Mgrpo().objective(
        made["searcher"].logps + 0.1, made["searcher"].logps, made["searcher"].mask, made["searcher"].advantages,
        torch.from_numpy(weights).float(),
    )  # fmt: skip
    assert made["searcher"].loss(made["searcher"].logps + 0.1).item() == pytest.approx(-objective.item())


def test_rewards_are_any_numbers_and_may_have_parts() -> None:
    parts = Call("a", 0, [1, 2], [False, True], [0.0, -1.0], {"answer": -3.0, "format": 0.5})
    other = Call("a", 1, [1, 2], [False, True], [0.0, -1.0], 7.5)
    batch = batches([parts, other], recipe=DrGrpo())["a"]
    assert (parts.total, batch.advantages.tolist()) == (-2.5, [-5.0, 5.0])
    assert batches([parts])["a"].degenerate == 1


def test_the_target_counts_rollouts_in_which_nobody_asked() -> None:
    calls = [call("planner", rollout, 0.0) for rollout in range(200)]
    calls += [call("searcher", 0, 1.0), call("searcher", 0, 0.0)]
    with_silent = batches(calls, main="planner", alignment="duplicate_drop")["searcher"]
    alone = batches(calls[200:], alignment="duplicate_drop")["searcher"]
    assert sorted(with_silent.weights.tolist()) == [0.0, 1.0]  # the target is 1: one of two is dropped
    assert alone.weights.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: Call("a", 0, [1, 2], [False], [0.0, 0.0], 0.0), "2 ids, 1 of mask"),
        (lambda: Call("a", 0, [], [], [], 0.0), "0 ids"),
        (lambda: Call("a", 0, [1, 2], [True, True], [0.0, 0.0], 0.0), "samples its first token"),
        (lambda: Call("a", 0, [1, 2], [False, True], [0.0, 0.0], float("nan")), "finite"),
        (lambda: batches([call("sub", 0, 1.0)], main="planner"), "exactly once in each rollout"),
        (lambda: batches([call("planner", 0, 1.0)] * 2, main="planner"), "exactly once in each rollout"),
    ],
)
def test_what_cannot_be_learned_from_is_refused(made: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made()


def test_it_is_at_the_front_door() -> None:
    assert cs.mgrpo.RoleBatch is RoleBatch and cs.mgrpo.batches is batches
