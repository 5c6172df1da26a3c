"""Neither side runs ahead: rollouts wait for weights, trainers for rollouts, both no longer than the staleness says."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

import pytest

from backend.store.sharing.fences import Fence
from backend.store.store import Store
from cryptosentinel.agents.registry import ROLES
from tests.backend.distributed.process_threads import begin_run, processes, run_in_threads
from tests.small_world import RUN, smaller_config

STEPS, SHARDS = 4, 2


class Slow:
    """A store that notes in which order work begins and ends. Trader's trainer is as slow as it may be: it publishes
    only when the rollouts have gone as far as they may without that."""

    def __init__(self, store: Store, events: list[tuple[str, int, object]], staleness: int) -> None:
        self._store, self._events, self._staleness = store, events, staleness

    def fenced(self, *fences: Fence) -> Slow:
        return Slow(self._store.fenced(*fences), self._events, self._staleness)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def clear_shard(self, run: str, step: int, shard: int, queries: list[int]) -> None:
        self._events.append(("begins", step, shard))
        self._store.clear_shard(run, step, shard, queries)

    def add_shard(self, record: Any) -> None:
        self._store.add_shard(record)
        self._events.append(("rolled out", record.step, record.shard))

    def add_published(self, record: Any) -> None:
        last = min(STEPS - 1, record.step - 1 + self._staleness)
        deadline = time.monotonic() + 60
        while record.role == "trader" and record.step and time.monotonic() < deadline:
            if any(what == "begins" and step >= last for what, step, _ in tuple(self._events)):
                break
            time.sleep(0.01)
        self._events.append(("published", record.step, record.role))
        self._store.add_published(record)


@pytest.mark.parametrize(("staleness", "newest_weights"), [(0, False), (2, True)])
def test_nobody_runs_ahead(staleness: int, newest_weights: bool, nano: Path, tmp_path: Path) -> None:
    config = smaller_config(
        base_model=str(nano), stage1_max_steps=1, stage2_steps=STEPS - 1, shards=SHARDS, staleness=staleness,
        newest_weights=newest_weights, queries_per_step=2, rollouts_per_query=2,
    )  # fmt: skip
    events: list[tuple[str, int, object]] = []
    with Store.open("mem://") as store:
        begin_run(store, config)
        run_in_threads(
            store, processes(config, nano, tmp_path, 2), lambda one, name: cast("Store", Slow(one, events, staleness))
        )
        assert {one.step for one in store.shards(RUN)} == set(range(STEPS))
    published = dict.fromkeys(ROLES, -1)
    rolled: dict[int, set[object]] = {step: set() for step in range(STEPS)}
    ahead = 0
    for what, step, who in events:
        if what == "begins":
            oldest = min(published.values())
            assert step - oldest <= staleness, f"step {step} began with weights of step {oldest}"
            ahead = max(ahead, step - oldest)
        elif what == "rolled out":
            rolled[step].add(who)
        else:
            assert step == 0 or len(rolled[step - 1]) == SHARDS, (
                f"{who} learnt from step {step - 1} before it was whole"
            )
            assert step == published[str(who)] + 1
            published[str(who)] = step
    assert ahead == staleness, "rollouts waited for a slow trainer longer than they had to"


class Busy:
    """The leader's store: metrics of a step are written only when somebody has begun with the next one, or after a
    long time; `late` are the steps of which nobody had."""

    def __init__(self, store: Store, late: list[int]) -> None:
        self._store, self._late = store, late

    def fenced(self, *fences: Fence) -> Busy:
        return Busy(self._store.fenced(*fences), self._late)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def add_metrics(self, run: str, step: int, values: dict[str, float]) -> None:
        deadline = time.monotonic() + 60
        while 0 < step < STEPS and not self._store.claims(run, step):
            if time.monotonic() > deadline:
                self._late.append(step)
                break
            time.sleep(0.01)
        self._store.add_metrics(run, step, values)


@pytest.mark.slow
def test_others_begin_while_the_leader_ends_its_step(nano: Path, tmp_path: Path) -> None:
    config = smaller_config(
        base_model=str(nano), stage1_steps=0, stage1_max_steps=0, stage2_steps=STEPS, validation_every=1000,
        shards=SHARDS, queries_per_step=2, rollouts_per_query=2,
    )  # fmt: skip
    late: list[int] = []
    with Store.open("mem://") as store:
        begin_run(store, config)
        run_in_threads(
            store,
            processes(config, nano, tmp_path, 2),
            lambda one, name: cast("Store", Busy(one, late)) if name == "rollout-0" else one,
        )
        assert {one.step for one in store.metrics(RUN)} == set(range(STEPS + 1))
    assert not late, "the others waited for the leader"
