"""What `serve status` says of each process: alive or not, how far behind, what waits for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace

import pytest
from typer.testing import CliRunner

from backend.cli import serve
from backend.cli.console import console
from backend.cli.serve import serve_app
from backend.distributed.status import processes_of
from backend.store.records import PublishedRecord, RunRecord, ServiceRecord, ShardRecord
from backend.store.store import Store
from tests.backend.store.servers import server_thread
from tests.small_world import RUN, smaller_config

ROLES = ("manager", "trader")
WORKER = ServiceRecord(RUN, "rollout-0", "rollout", None, "1.0+ab", "11", "working", 3, 1, "stage 2")


def publish(store: Store, role: str, newest: int) -> None:
    for step in range(newest + 1):
        store.add_published(PublishedRecord(RUN, role, step, f"{role}@{step}", "path", "ab" * 32, {}))


@pytest.fixture
def store() -> Iterator[Store]:
    """At step 3, of whose two shards one is complete; the manager has learnt three steps, Trader two."""
    with Store.open("mem://") as opened:
        fill(opened)
        yield opened


def fill(store: Store) -> None:
    store.add_run(RunRecord(RUN, "train", 1, "hash", 1, {"config": smaller_config(shards=2).to_dict()}))
    store.report_service(WORKER)
    store.report_service(replace(WORKER, name="rollout-1", process="12", step=2, state="waiting"))
    for role, newest in zip(ROLES, (3, 2), strict=True):
        service = replace(WORKER, name=f"trainer-{role}", kind="trainer", role=role, process="13", step=newest)
        store.report_service(replace(service, message=f"[red]{role}[/red]"))
        publish(store, role, newest)
    for step in range(4):
        for shard in range(2 if step < 3 else 1):
            store.add_shard(ShardRecord(RUN, step, shard, 0, 0, 0))


def test_lag_and_queue_of_each_process(store: Store) -> None:
    found = processes_of(store, RUN)
    assert (found.status, found.step, found.complete, found.published) == ("running", 3, 3, 2)
    told = {one.name: (one.state, one.step, one.lag, one.queue) for one in found.processes}
    assert told == {
        "rollout-0": ("working", 3, 0, 1),  # one shard of step 3 is to do
        "rollout-1": ("waiting", 2, 0, 0),
        "trainer-manager": ("working", 3, 1, 0),  # step 3 has begun and is not complete
        "trainer-trader": ("working", 2, 2, 1),  # step 2 is complete and waits for it
    }
    assert {one.role: one.weights for one in found.processes if one.role} == {
        "manager": "manager@3", "trader": "trader@2"
    }  # fmt: skip
    store.add_shard(ShardRecord(RUN, 3, 1, 0, 0, 0))
    queues = {one.name: one.queue for one in processes_of(store, RUN).processes}
    assert queues == {"rollout-0": 0, "rollout-1": 0, "trainer-manager": 1, "trainer-trader": 2}


def test_a_worker_on_old_weights_shows_its_lag(store: Store) -> None:
    publish(store, "trader", 3)
    store.report_service(replace(WORKER, name="rollout-1", step=1))
    assert next(one for one in processes_of(store, RUN).processes if one.name == "rollout-1").lag == 2


def test_who_was_not_heard_of_is_silent_unless_it_said_that_it_ends(store: Store) -> None:
    store.report_service(replace(WORKER, name="rollout-1", state="stopped"))
    store._connection.query("UPDATE service SET updated_at -= 60000 WHERE kind = 'rollout'")
    found = {one.name: one for one in processes_of(store, RUN).processes}
    assert (found["rollout-0"].state, found["rollout-1"].state) == ("silent", "stopped")
    assert 59 < found["rollout-0"].heartbeat_age < 120 and found["trainer-trader"].state == "working"


def test_a_run_without_processes_is_no_trouble() -> None:
    with Store.open("mem://") as store:
        store.add_run(RunRecord(RUN, "train", 1, "hash", 1, {"config": smaller_config().to_dict()}))
        found = processes_of(store, RUN)
        assert (found.step, found.complete, found.published, found.processes) == (None, 0, None, ())


def test_the_command_shows_it_to_people_and_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_width", 250)
    assert serve.serve_app is serve_app
    with server_thread() as running, Store.open(running.url) as store:
        fill(store)
        store.add_run(RunRecord("demo", "demo", 1, "hash", 1, {}))  # which has no processes
        people = CliRunner().invoke(serve_app, ["status", "--store", running.url]).output
        assert "at step 3, 3 steps rolled out, weights of step 2" in people
        assert "[red]trader[/red]" in people, "what a process says of itself was taken for markup"
        (told,) = json.loads(CliRunner().invoke(serve_app, ["status", "--json", "--store", running.url]).output)
        expected = json.loads(json.dumps(asdict(processes_of(store, RUN))))
        for one in (*told["processes"], *expected["processes"]):
            assert one.pop("heartbeat_age") >= 0
        assert told == expected
        only = CliRunner().invoke(serve_app, ["status", "--run", RUN, "--store", running.url]).output
        assert only.count("trainer-") == 2
