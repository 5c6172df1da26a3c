"""Tokens of conversations in files beside the database: the same records, for whoever reads, copies, checks, exports or
deletes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.runs.store_check import check_store
from backend.store.records import (
    ClaimRecord,
    QueryRecord,
    RewardRecord,
    RolloutRecord,
    RunRecord,
    ServiceRecord,
    ShardRecord,
    TensorRecord,
    TrajectoryRecord,
)
from backend.store.sharing.fences import Fence, StoreFenced
from backend.store.sharing.objects import ObjectFolder, object_name
from backend.store.sharing.token_files import conversations, in_file
from backend.store.store import Store
from backend.store.transfer import export_run, import_run

RUN = "r"
SHARDS = 2


def conversation(query: int, role: str, tokens: list[tuple[int, bool, float]], step: int = 0) -> TrajectoryRecord:
    ids, mask, logps = (tuple(values) for values in zip(*tokens, strict=True))
    return TrajectoryRecord(
        RUN, step, query, 0, role, 0, "v", ids, mask, logps, caller=None if role == "manager" else ("manager", 0)
    )  # fmt: skip


def add_run(store: Store) -> None:
    store.add_run(RunRecord(RUN, "train", 1, "hash", 1_000, {"config": {"store": {"keep": 1}}}, "finished", 2_000))


def add_step(store: Store, records: list[TrajectoryRecord], step: int = 0) -> None:
    """One query for each shard, as two workers write them."""
    for shard in range(SHARDS):
        own = [record for record in records if record.query == shard]
        store.clear_shard(RUN, step, shard, [shard])
        store.add_queries([QueryRecord(RUN, step, shard, 2, ("A",), 7, 1_000, 9)])
        store.add_rollouts([RolloutRecord(RUN, step, shard, 0, 5, True, 0.5, {"trader": 1}, {"fees": 0.1})])
        store.add_trajectories(own, shard)
        store.add_rewards([RewardRecord(RUN, step, shard, 0, one.role, 0, 0.5, {"format": 1.0}) for one in own])
        store.add_shard(ShardRecord(RUN, step, shard, 1, 1, len(own)))


def some(step: int = 0, first: int = 1) -> list[TrajectoryRecord]:
    tokens = [(first + step, False, 0.0), (2, True, -0.5), (2**31 - 1, True, -1.5)]
    return [
        conversation(query, role, tokens[: 1 + query + (role == "trader")], step)
        for query in range(SHARDS)
        for role in ("manager", "trader")
    ]


def problems(store: Store, runs: Path) -> list[str]:
    return [text for of_run in check_store(store, runs, lambda *_: None).problems.values() for text in of_run]


def places(store: Store) -> set[str]:
    """Where the files lie that the records name."""
    return {object_name(file) for file in store.tensors(RUN)}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "s") as opened:
        add_run(opened)
        yield opened


_TOKENS = st.lists(
    st.tuples(
        st.integers(-(2**31), 2**31 - 1), st.booleans(), st.floats(-1024.0, 0.0, width=32)
    ),
    min_size=1,
    max_size=9,
)  # fmt: skip


@settings(max_examples=5, deadline=None)
@given(st.lists(_TOKENS, min_size=4, max_size=4))
def test_whoever_reads_finds_what_rows_would_hold(
    tmp_path_factory: pytest.TempPathFactory, tokens: list[list[tuple[int, bool, float]]]
) -> None:
    keys = [(query, role) for query in range(SHARDS) for role in ("manager", "trader")]
    records = [conversation(*key, own) for key, own in zip(keys, tokens, strict=True)]
    folder = tmp_path_factory.mktemp("property")
    with Store.open(folder / "s") as store, Store.open("mem://") as rows:
        for opened in (store, rows):
            add_run(opened)
            add_step(opened, records)
        assert store.step_complete(RUN, 0, SHARDS) and len(store.tensors(RUN, 0)) == 4 and not rows.tensors(RUN)
        assert store.trajectories(RUN, 0) == rows.trajectories(RUN, 0) == records
        for there, arrays in (
            *store.conversation_tokens(RUN, 0, "trader"),
            *rows.conversation_tokens(RUN, 0, "trader"),
        ):
            whole = next(one for one in records if (one.query, one.role) == (there.query, there.role))
            assert replace(there, ids=whole.ids, mask=whole.mask, sampled_logps=whole.sampled_logps) == whole
            assert (tuple(arrays.ids), tuple(arrays.mask)) == (whole.ids, whole.mask)
            assert np.array_equal(arrays.sampled_logps, np.array(whole.sampled_logps, np.float32))
        assert problems(store, folder) == []


def test_the_database_holds_no_tokens_and_an_export_all_of_them(store: Store, tmp_path: Path) -> None:
    add_step(store, some())
    stored, _ = conversations(store.connection, {"run": RUN})
    assert all(in_file(row) and row.get("ids") is None for row in stored)
    assert len(ObjectFolder(tmp_path / "s" / "objects").names()) == 4
    export_run(store, RUN, tmp_path / "file")
    with Store.open(tmp_path / "other") as other:
        import_run(other, tmp_path / "file")
        assert other.trajectories(RUN, 0) == some() and not other.tensors(RUN)
        export_run(other, RUN, tmp_path / "again")
    assert (tmp_path / "file").read_bytes() == (tmp_path / "again").read_bytes()


def test_a_shard_that_is_done_again_replaces_the_former_one(store: Store, tmp_path: Path) -> None:
    add_step(store, some())
    rows, reader = conversations(store.connection, {"run": RUN, "step": 0})
    add_step(store, some(first=7)[:1] + some(first=7)[2:])  # the manager of the first query asks nobody this time
    assert [reader.tokens(row).ids[0] for row in rows] == [1] * 4, "who was reading meanwhile reads to its end"
    assert store.trajectories(RUN, 0) == some(first=7)[:1] + some(first=7)[2:]
    assert [(file.shard, file.role) for file in store.tensors(RUN)] == [(0, "manager"), (1, "manager"), (1, "trader")]
    assert problems(store, tmp_path) == []


def test_who_lost_its_shard_leaves_no_record(store: Store) -> None:
    for process in ("old", "new"):
        store.report_service(ServiceRecord(RUN, "rollout-1", "rollout", None, "v", process, "working", 0, 1))
        assert store.claim_shard(ClaimRecord(RUN, 0, 0, "rollout-1", process), 60.0)
    add_step(store, some())
    before = store.tensors(RUN), store.trajectories(RUN, 0)
    with pytest.raises(StoreFenced):
        store.fenced(Fence("claim", (RUN, 0, 0), "old")).add_trajectories(some(first=7)[:2], 0)
    assert (store.tensors(RUN), store.trajectories(RUN, 0)) == before


def test_dropped_steps_and_deleted_runs_leave_no_file(store: Store, tmp_path: Path) -> None:
    objects = ObjectFolder(tmp_path / "s" / "objects")
    for step in range(3):
        add_step(store, some(step), step)
    assert store.drop_trajectories(RUN, [0, 1]) == 8
    assert set(objects.names()) == places(store) and len(places(store)) == 4
    assert store.trajectories(RUN, 2) == some(2) and store.trajectories(RUN, 0) == []
    store.delete_run(RUN)
    assert objects.names() == [] and store.count(TensorRecord, RUN) == 0
