"""Trainers read the shards of a step as they come, and learn what they would have learnt."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from backend.distributed import step_records
from backend.distributed.step_records import EarlyTokens
from backend.store.errors import StoreError
from backend.store.records import RunRecord, ShardRecord, TrajectoryRecord
from backend.store.sharing.fences import Fence
from backend.store.sharing.objects import object_name
from backend.store.store import Store
from cryptosentinel.agents.registry import ROLES
from tests.backend.distributed.process_threads import begin_run, last_parameters, processes, run_in_threads
from tests.small_world import RUN, one_process_trainer, small_market, smaller_config

SHARDS = 2


def conversation(query: int) -> TrajectoryRecord:
    return TrajectoryRecord(RUN, 0, query, 0, "trader", 0, "v", (1, query), (False, True), (0.0, -0.5))


class Noted:
    """Files of a store; the checksums of those that are read are put into `read`."""

    def __init__(self, objects: Any, read: set[str]) -> None:
        self._objects, self._read = objects, read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)

    def read(self, run: str, part: str, checksum: str, offset: int) -> bytes:
        piece: bytes = self._objects.read(run, part, checksum, offset)
        self._read.add(checksum)
        return piece


class Patient:
    """A store in which the last shard of a step is marked only when the trainers have read the files of the others."""

    def __init__(self, store: Store, read: set[str], given: list[int]) -> None:
        self._store, self._read, self._given = store, read, given

    def fenced(self, *fences: Fence) -> Patient:
        return Patient(self._store.fenced(*fences), self._read, self._given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @property
    def objects(self) -> Any:
        return Noted(self._store.objects, self._read)

    def add_shard(self, record: ShardRecord) -> None:
        there = {mark.shard for mark in self._store.shards(RUN, record.step)}
        if len(there) == SHARDS - 1:
            files = {file.checksum for file in self._store.tensors(RUN, record.step) if file.shard in there}
            until = time.monotonic() + 60
            while not files <= self._read and time.monotonic() < until:
                time.sleep(0.01)
            assert files and files <= self._read, "nobody read what was there before the step was complete"
        self._store.add_shard(record)

    def conversation_tokens(self, run: str, step: int, role: str, early: Mapping[str, Any] | None = None) -> Any:
        self._given.append(len(early or ()))
        return self._store.conversation_tokens(run, step, role, early)


def test_what_is_read_early_changes_nothing(nano: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_records, "_LOOK_SECONDS", 0.01)
    config = smaller_config(base_model=str(nano), stage1_max_steps=1, stage2_steps=1, shards=SHARDS, queries_per_step=4)
    joint, apart = tmp_path / "joint", tmp_path / "apart"
    joint.mkdir()
    with Store.open("mem://") as store:
        begin_run(store, config)
        one_process_trainer(config, small_market(), store, joint, nano).run()
    read, given = set[str](), list[int]()
    with Store.open(tmp_path / "store") as store:  # one in memory keeps no files
        begin_run(store, config)
        run_in_threads(
            store, processes(config, nano, apart), lambda one, name: cast("Store", Patient(one, read, given))
        )
        assert {file.checksum for file in store.tensors(RUN)} >= read
    assert max(given) >= 1, "what was read early was read again"
    for role in ROLES:
        mine, theirs = last_parameters(apart, role), last_parameters(joint, role)
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs), f"{role} has become another"


def test_each_file_is_read_once_and_a_damaged_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_records, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(step_records, "_READ_SECONDS", 0.0)  # one file at a time
    with Store.open(tmp_path / "store") as store:
        store.add_run(RunRecord(RUN, "train", 1, "hash", 1, {}))
        early = EarlyTokens(store, RUN, 0, "trader")
        early.read_some()
        assert not early.contents, "there is nothing yet"
        for shard in range(3):
            store.add_trajectories([conversation(shard)], shard)
        for looks in (1, 2, 3, 3):
            early.read_some()
            assert len(early.contents) == looks
        objects = tmp_path / "store" / "objects"
        for file in store.tensors(RUN, 0, "trader"):
            (objects / object_name(file)).unlink()
        whole = store.conversation_tokens(RUN, 0, "trader", early.contents)
        assert [tokens.ids.tolist() for _, tokens in whole] == [[1, shard] for shard in range(3)]
        store.add_trajectories([conversation(3)], 3)
        [last] = [file for file in store.tensors(RUN, 0, "trader") if file.shard == 3]
        (objects / object_name(last)).write_bytes(b"damaged")
        with pytest.raises(StoreError, match="its SHA-256 is not that of its record"):
            early.read_some()
