"""What several processes tell each other through the store, and that numbers survive the way to the bit."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.store import (
    PublishedRecord,
    QueryRecord,
    RewardRecord,
    RolloutRecord,
    ServiceRecord,
    ShardRecord,
    Store,
    StoreError,
    TrajectoryRecord,
)
from backend.training.algorithm.trajectory import Trajectory
from tests.backend.store.servers import ServerThread, server_thread

SERVICE = ServiceRecord("r", "trainer-manager", "trainer", "manager", "1.0.0", "4711", "starting", None, 0)
TOKENS = ((1, 2), (False, True), (0.0, -0.5))


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.open("mem://") as opened:
        yield opened


@pytest.fixture(scope="module")
def served() -> Iterator[ServerThread]:
    with server_thread() as running:
        yield running


def write_shard(store: Store, shard: int, queries: tuple[int, ...], calls: int = 1, mark: bool = True) -> None:
    """Two rollouts a query, each a manager and `calls` traders."""
    talks, rollouts = [], []
    for query in queries:
        store.add_queries([QueryRecord("r", 3, query, 2, ("A",), 7, 1_000, 9)])
        for k in range(2):
            rollouts.append(RolloutRecord("r", 3, query, k, 5, True, 0.5, {"trader": calls}, {}))
            talks.append(TrajectoryRecord("r", 3, query, k, "manager", 0, "v", *TOKENS))
            for ordinal in range(calls):
                talks.append(TrajectoryRecord("r", 3, query, k, "trader", ordinal, "v", *TOKENS, caller=("manager", 0)))
    store.add_rollouts(rollouts)
    store.add_trajectories(talks)
    if mark:
        store.add_shard(ShardRecord("r", 3, shard, len(queries), len(rollouts), len(talks)))


def test_a_step_is_complete_when_all_its_shards_are_marked(store: Store) -> None:
    assert not store.step_complete("r", 3, 2)
    write_shard(store, 0, (0, 1))
    write_shard(store, 1, (2,), mark=False)
    assert not store.step_complete("r", 3, 2)
    write_shard(store, 1, (2,))
    assert store.step_complete("r", 3, 2)
    assert not store.step_complete("r", 3, 3) and not store.step_complete("r", 4, 1)
    assert [mark.shard for mark in store.shards("r", 3)] == [0, 1]


@pytest.mark.parametrize("table", ["query", "rollout", "trajectory"])
def test_a_record_that_is_missing_or_too_many_is_told(store: Store, table: str) -> None:
    write_shard(store, 0, (0, 1))
    store._connection.query(f"DELETE {table} WHERE query = 1")
    name = {"query": "queries", "rollout": "rollouts", "trajectory": "trajectories"}[table]
    with pytest.raises(StoreError, match=rf"step 3 of run r holds \d {name}, its shards wrote \d: roll this step out"):
        store.step_complete("r", 3, 1)


def test_a_shard_done_anew_keeps_nothing_of_the_attempt_before(store: Store) -> None:
    write_shard(store, 0, (0, 1))
    write_shard(store, 1, (2,), calls=3, mark=False)  # it died before the marker
    store.add_rewards([RewardRecord("r", 3, query, 0, "trader", 2, 0.5, {}) for query in (1, 2)])
    store.clear_shard("r", 3, 1, (2,))
    assert {talk.query for talk in store.trajectories("r", 3)} == {0, 1}
    assert {edge.query for edge in store.delegations("r", 3)} == {0, 1}
    assert [reward.query for reward in store.rewards("r", 3)] == [1]
    write_shard(store, 1, (2,), calls=2)
    assert store.step_complete("r", 3, 2)
    store.clear_shard("r", 3, 1, (2,))
    assert not store.step_complete("r", 3, 2)


def test_published_weights_are_found_by_step_and_role(store: Store) -> None:
    made = [
        PublishedRecord("r", role, step, f"{role}@{step}", f"adapters/{role}-{step}", "ab" * 32, {"loss": 0.5 * step})
        for role in ("manager", "trader")
        for step in (0, 1, 10)
    ]
    for record in reversed(made):
        store.add_published(record)
    store.add_published(replace(made[0], run="other"))
    assert store.published("r") == made
    assert store.published("r", 1) == [made[1], made[4]]
    assert store.published("r", 10, "trader") == [made[5]]
    again = replace(made[5], version="again", metrics={"loss": None, "roles": ["a"]})
    store.add_published(again)
    assert store.published("r", 10, "trader") == [again]


def test_a_service_reports_by_the_clock_of_the_database(store: Store) -> None:
    before = store.now()
    store.report_service(replace(SERVICE, updated_at=77))
    (found,) = store.services("r")
    assert replace(found, updated_at=0) == SERVICE
    assert before <= found.updated_at <= store.now() and abs(store.now() - 1000 * time.time()) < 60_000
    time.sleep(0.01)
    working = replace(SERVICE, state="working", step=4, beat=1, message="step 4: \0 of \ud800")
    store.report_service(working)
    store.report_service(working)  # the answer to the first was lost
    (later,) = store.services("r")
    assert (later.state, later.step, later.beat, later.message) == ("working", 4, 1, "step 4: ? of ?")
    assert later.updated_at > found.updated_at
    store.report_service(replace(SERVICE, step=None, role=None))
    assert (store.services("r")[0].step, store.services("r")[0].role) == (None, None)
    store.report_service(replace(SERVICE, name="rollout-0"))
    assert [one.name for one in store.services("r")] == ["rollout-0", "trainer-manager"]
    assert store.services("other") == []


SLEEPING: dict[str, Any] = {"state": "sleeping"}


def test_a_state_out_of_the_list_is_refused_by_the_schema(store: Store) -> None:
    with pytest.raises(StoreError, match="state"):
        store.report_service(replace(SERVICE, **SLEEPING))


# -- to the bit --------------------------------------------------------------------------------------------------------


def bits(*values: float | None) -> list[bytes | None]:
    return [None if value is None else struct.pack("<d", value) for value in values]


NUMBERS = count()
UNIT = st.floats(0.0, 1.0) | st.just(-0.0)
FLOAT32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
FLOAT64 = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(FLOAT32, max_size=30), UNIT, st.none() | UNIT, st.none() | UNIT, FLOAT64, st.booleans())
@settings(max_examples=120, deadline=None)
def test_scores_and_log_probs_come_back_to_the_bit(
    served: ServerThread, logps: list[float], score: float, expert: float | None, shared: float | None,
    outcome: float, behind_a_server: bool,
) -> None:  # fmt: skip
    # A key of its own: the database leaves a record as it is where the new one equals it, and -0.0 equals 0.0.
    key, length = (f"r{next(NUMBERS)}", 0, 0, 0), len(logps)
    talk = TrajectoryRecord(
        *key, "trader", 0, "v", (7,) * length, (True,) * length, tuple(logps),
        format_score=score, expert=expert, shared=shared,
    )  # fmt: skip
    rollout = RolloutRecord(*key, 5, True, outcome, {}, {"net_return": outcome, "fees": 1.0})
    with Store.open(served.url if behind_a_server else "mem://") as store:
        store.add_trajectories([talk])
        store.add_rollouts([rollout])
        (back,) = store.trajectories(key[0], 0)
        (told,) = store.rollouts(key[0], 0)
    assert np.asarray(back.sampled_logps, np.float32).tobytes() == np.asarray(logps, np.float32).tobytes()
    assert bits(back.format_score, back.expert, back.shared) == bits(score, expert, shared)
    assert bits(told.outcome, *told.parts.values()) == bits(outcome, 1.0, outcome)
    assert isinstance(told.outcome, float) and isinstance(back.format_score, float)


@st.composite
def training_inputs(draw: st.DrawFn) -> Trajectory:
    """What a role is trained on: any conversation that a trajectory can be."""
    sampled = [False, *draw(st.lists(st.booleans(), max_size=20))]
    logps = [draw(st.floats(-50, 0, width=32)) if one else 0.0 for one in sampled]
    return Trajectory(
        role="trader", query=f"{draw(st.integers(0, 9))}-{draw(st.integers(0, 99))}", rollout=draw(st.integers(0, 9)),
        ordinal=draw(st.integers(0, 5)), ids=np.array(draw(st.lists(st.integers(0, 2**31 - 1), min_size=len(sampled),
        max_size=len(sampled))), np.int32), mask=np.array(sampled), sampled_logps=np.array(logps, np.float32),
        policy_version=draw(st.text("abc@0", max_size=5)), valid=draw(st.booleans()), format_score=draw(UNIT),
        expert=draw(st.none() | UNIT), truncated=draw(st.booleans()),
    )  # fmt: skip


@given(training_inputs())
@settings(max_examples=60, deadline=None)
def test_a_trainer_elsewhere_gets_the_very_same_inputs(made: Trajectory) -> None:
    step, query = map(int, made.query.split("-"))
    record = TrajectoryRecord(
        "r", step, query, made.rollout, made.role, made.ordinal, made.policy_version, tuple(made.ids.tolist()),
        tuple(made.mask.tolist()), tuple(made.sampled_logps.tolist()), made.valid, made.truncated,
        format_score=made.format_score, expert=made.expert,
    )  # fmt: skip
    with Store.open("mem://") as store:
        store.add_trajectories([record])
        (back,) = store.trajectories("r", step, made.role)
    assert back.format_score is not None
    again = Trajectory(
        back.role, f"{back.step}-{back.query}", back.rollout, back.ordinal, np.asarray(back.ids, np.int32),
        np.asarray(back.mask, np.bool_), np.asarray(back.sampled_logps, np.float32), back.policy_version, back.valid,
        back.format_score, back.expert, back.truncated,
    )  # fmt: skip
    for field in fields(Trajectory):  # one that is added there must be stored too
        one, other = getattr(made, field.name), getattr(again, field.name)
        assert type(one) is type(other), field.name
        assert one.tobytes() == other.tobytes() if isinstance(one, np.ndarray) else one == other, field.name


@pytest.mark.parametrize("name", ["format_score", "expert", "shared"])
@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_a_score_outside_its_range_is_refused(name: str, value: float) -> None:
    wrong: dict[str, Any] = {name: value}
    with pytest.raises(StoreError, match=rf"{name} is .*, which is outside \[0, 1\]"):
        TrajectoryRecord("r", 0, 0, 0, "trader", 0, "v", *TOKENS, **wrong)


def test_a_log_prob_beyond_float32_is_refused() -> None:
    record = TrajectoryRecord("r", 0, 0, 0, "trader", 0, "v", (1,), (True,), (-1e39,))
    with pytest.raises(StoreError, match="sampled_logps holds a value that does not fit float32"):
        record.row()


# -- one step of many --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "names"),
    [
        ("query", ("run", "step")), ("rollout", ("run", "step")), ("trajectory", ("run", "step")),
        ("trajectory", ("run", "step", "role")), ("reward", ("run", "step", "role")), ("delegated", ("run", "step")),
        ("shard", ("run", "step")), ("published", ("run", "step")), ("service", ("run",)),
    ],
)  # fmt: skip
def test_what_is_read_for_a_step_is_found_by_an_index(store: Store, table: str, names: tuple[str, ...]) -> None:
    condition = " AND ".join(f"{name} = 0" for name in names)
    (plan,) = store._connection.query(f"SELECT * FROM {table} WHERE {condition} EXPLAIN")["children"]
    assert plan["operator"] == "IndexScan"
    assert plan["attributes"]["access"] == (str([0] * len(names)) if len(names) > 1 else "= 0")
