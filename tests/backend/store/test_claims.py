"""Shards are given to one process each, and who was replaced writes nothing more."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.store.errors import StoreError
from backend.store.records import (
    ClaimRecord,
    FileRecord,
    RunRecord,
    ServiceRecord,
    ServiceState,
    ShardRecord,
    TrajectoryRecord,
)
from backend.store.sharing.fences import Fence, StoreFenced
from backend.store.sharing.objects import ObjectFolder, file_sha256, object_part, unreferenced
from backend.store.store import Store
from tests.backend.store.servers import CREDENTIALS, server_thread

RUN = "r"
LIVING = 60.0  # seconds; nobody is silent for so long here
SILENT = -1.0  # who reported just now counts as silent


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.open("mem://") as opened:
        opened.add_run(RunRecord(RUN, "train", 1, "hash", 1, {}))
        yield opened


def report(store: Store, number: int, process: str, state: ServiceState = "working") -> None:
    store.report_service(ServiceRecord(RUN, f"rollout-{number}", "rollout", None, "v", process, state, 0, 1))


def claim(number: int, process: str, shard: int = 0) -> ClaimRecord:
    return ClaimRecord(RUN, 0, shard, f"rollout-{number}", process)


def test_a_shard_goes_to_one_and_to_another_once_that_one_is_gone(store: Store) -> None:
    report(store, 1, "a")
    report(store, 2, "b")
    assert store.claim_shard(claim(1, "a"), LIVING) and store.claim_shard(claim(1, "a"), LIVING)
    assert not store.claim_shard(claim(2, "b"), LIVING), "two have it"
    report(store, 1, "a2")  # started again: the former one is dead
    assert store.claim_shard(claim(2, "b"), LIVING)
    report(store, 2, "b", "stopped")
    assert store.claim_shard(claim(1, "a2"), LIVING)
    report(store, 2, "b")
    assert store.claim_shard(claim(2, "b"), SILENT)
    assert store.claims(RUN, 0) == {0: "b"}


def test_what_is_complete_is_given_to_nobody(store: Store) -> None:
    report(store, 1, "a")
    store.add_shard(ShardRecord(RUN, 0, 0, 1, 1, 1))
    assert not store.claim_shard(claim(1, "a"), LIVING)


def test_of_many_that_ask_at_once_each_shard_goes_to_one() -> None:
    """Through a gateway, each with a connection of its own."""
    shards, names = 40, 6
    got: dict[int, list[int]] = {number: [] for number in range(names)}
    with server_thread() as gateway, pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        with Store.open(gateway.url) as store:
            store.add_run(RunRecord(RUN, "train", 1, "hash", 1, {}))
            for number in got:
                report(store, number, str(number))

        def ask(number: int) -> None:
            with Store.open(gateway.url) as own:
                got[number] = [
                    shard for shard in range(shards) if own.claim_shard(claim(number, str(number), shard), LIVING)
                ]

        threads = [threading.Thread(target=ask, args=(number,)) for number in got]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(shard for mine in got.values() for shard in mine) == list(range(shards))


def trajectory(ordinal: int) -> TrajectoryRecord:
    caller = ("manager", 0) if ordinal else None
    role = "trader" if ordinal else "manager"
    return TrajectoryRecord(RUN, 0, 0, 0, role, ordinal, "v", (1,), (True,), (0.0,), caller=caller)


def test_who_was_replaced_changes_nothing(store: Store) -> None:
    """Every kind of write, as the processes of a training make them."""
    report(store, 1, "old")
    fenced = store.fenced(Fence("service", (RUN, "rollout-1"), "old"))
    fenced.add_trajectories([trajectory(0), trajectory(1)])
    report(store, 1, "new")
    before = store.trajectories(RUN, 0), store.delegations(RUN, 0), store.run(RUN)
    for write in (
        lambda: fenced.add_trajectories([replace(trajectory(0), policy_version="stale")]),
        lambda: fenced.clear_shard(RUN, 0, 0, [0]),
        lambda: fenced.add_shard(ShardRecord(RUN, 0, 0, 1, 1, 1)),
        lambda: fenced.finish_run(RUN, "failed", "stale"),
        lambda: fenced.add_metrics(RUN, 0, {"a": 1.0}),
        lambda: fenced.add_file(FileRecord(RUN, "a", "0" * 64, 1)),
        lambda: fenced.remove_files(RUN, ["a"]),
        lambda: fenced.claim_shard(claim(1, "old"), LIVING),
    ):
        with pytest.raises(StoreError, match="belongs to another process now"):
            write()
    assert (store.trajectories(RUN, 0), store.delegations(RUN, 0), store.run(RUN)) == before
    assert not store.shards(RUN) and not store.metrics(RUN) and not store.files(RUN) and not store.claims(RUN, 0)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["claim", "steal", "write", "restart"])), max_size=25))
def test_only_who_has_a_shard_writes_it(moves: list[tuple[int, str]]) -> None:
    """Whatever the order of claims, losses and writes: a write succeeds exactly for who has the shard and the name."""
    with Store.open("mem://") as store:
        store.add_run(RunRecord(RUN, "train", 1, "hash", 1, {}))
        lives = [0, 0, 0]
        known = [f"{number}.0" for number in range(3)]
        for number in range(3):
            report(store, number, known[number])
        holder: str | None = None
        for number, move in moves:
            me = known[number]
            match move:
                case "restart":
                    lives[number] += 1
                    known[number] = f"{number}.{lives[number]}"
                    report(store, number, known[number])
                case "claim" | "steal":
                    free = holder is None or holder not in known or holder == me or move == "steal"
                    assert store.claim_shard(claim(number, me), SILENT if move == "steal" else LIVING) == free
                    holder = me if free else holder
                case "write":
                    fenced = store.fenced(
                        Fence("service", (RUN, f"rollout-{number}"), me), Fence("claim", (RUN, 0, 0), me)
                    )
                    written = False
                    with suppress(StoreFenced):
                        fenced.add_metrics(RUN, 0, {"by": float(number)})
                        written = True
                    assert written == (holder == me)


def test_a_name_is_taken_by_one(store: Store) -> None:
    former = ServiceRecord(RUN, "rollout-0", "rollout", None, "v", "former", "working", 0, 4)
    assert store.take_service(former, None)
    seen = store.services(RUN)[0]
    first, second = (replace(former, process=name, beat=5) for name in ("first", "second"))
    assert store.take_service(first, seen) and store.take_service(first, seen), "a lost answer is no loss"
    assert not store.take_service(second, seen) and not store.take_service(second, None)
    assert store.services(RUN)[0].process == "first"


# -- files -------------------------------------------------------------------------------------------------------------


def test_half_a_file_is_no_file(tmp_path: Path) -> None:
    objects = ObjectFolder(tmp_path)
    objects.write(RUN, "a" * 32, 0, b"half")
    assert not objects.finish(RUN, "a" * 32, "nano", hashlib.sha256(b"half and half").hexdigest())
    assert not objects.contents(RUN)
    whole = tmp_path / "whole"
    whole.write_bytes(b"half")
    objects.write(RUN, "a" * 32, 0, b"half")
    assert objects.finish(RUN, "a" * 32, "nano", file_sha256(whole))
    assert objects.contents(RUN) == {("nano", file_sha256(whole))}


def test_a_content_that_another_file_of_its_part_has_stays() -> None:
    kept = [("services/manager/b.json", "x"), ("services/trader/c.json", "y")]
    gone = [("services/manager/a.json", "x"), ("services/manager/d.json", "y")]
    assert unreferenced(gone, kept) == {"services-manager": ["y"]}
    assert object_part("nano/model.safetensors") == "nano-model.safetensors"
