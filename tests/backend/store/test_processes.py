"""Several processes on one store behind a gateway, and a gateway that dies under them."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backend.store import RunRecord, Store, StoreError, TrajectoryRecord, lease
from backend.store.connection import ServerChannel
from tests.backend.store.gateways import (
    CREDENTIALS,
    GatewayProcess,
    GatewayThread,
    environment,
    free_port,
    gateway_thread,
)  # fmt: skip

RUN = RunRecord("r", "train", 1, "hash", 1_000, {})

# Writes what one kind of process writes, a step at a time, and says when a step is stored.
WRITE = """
import sys
from backend.store import *
url, kind, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Store.open(url, patience=60) as store:
    print("open", flush=True)
    for step in range(steps):
        if kind == "metrics":
            store.add_metrics("r", step, {"loss": float(step)})
        elif kind == "rewards":
            store.add_rewards([RewardRecord("r", step, 0, k, "manager", 0, 0.5, {"format": 1.0}) for k in range(4)])
        else:
            talks = []
            for k in range(4):
                for role, caller in (("manager", None), (kind, ("manager", 0))):
                    tokens = ((1, 2), (False, True), (0.0, -0.5))
                    talks.append(TrajectoryRecord("r", step, int(kind[-1]), k, role, 0, "v", *tokens, caller=caller))
            store.add_trajectories(talks)
        print(step, flush=True)
"""


def writer(url: str, kind: str, steps: int) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", WRITE, url, kind, str(steps)]
    return subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(**CREDENTIALS)
    )


def said(process: subprocess.Popen[str], line: str) -> None:
    """Wait until a process has said a line."""
    assert process.stdout is not None
    for found in process.stdout:
        if found.strip() == line:
            return
    _, errors = process.communicate()
    raise AssertionError(f"it ended before it said {line!r}: {errors}")


def check(store: Store, steps: int) -> None:
    """Everything that the four writers wrote is there, once."""
    assert [record.values for record in store.metrics("r")] == [{"loss": float(step)} for step in range(steps)]
    assert store.count(type(store.rewards("r", 0)[0]), "r") == 4 * steps
    for step in range(steps):
        talks = store.trajectories("r", step)
        assert [(talk.query, talk.rollout, talk.role) for talk in talks] == [
            (query, k, role) for query in (1, 2) for k in range(4) for role in ("manager", f"rollout{query}")
        ]
        edges = store.delegations("r", step)
        assert [(edge.query, edge.rollout, edge.role, edge.caller, edge.position) for edge in edges] == [
            (query, k, f"rollout{query}", ("manager", 0), 0) for query in (1, 2) for k in range(4)
        ]


KINDS = ("metrics", "rewards", "rollout1", "rollout2")


@pytest.mark.parametrize("deaths", [0, pytest.param(3, marks=pytest.mark.slow)])
def test_processes_write_at_once_and_nothing_is_lost_or_doubled(tmp_path: Path, deaths: int) -> None:
    port, steps = free_port(), 60 if deaths else 10
    gateway = GatewayProcess(tmp_path, port)
    writers = [writer(gateway.url, kind, steps) for kind in KINDS]
    try:
        for process in writers:
            said(process, "0")  # a store that was never reached is not waited for
        for death in range(deaths):
            said(writers[2], str((death + 1) * steps // (deaths + 2)))
            gateway.kill()  # in the middle of whatever it does
            time.sleep(0.5)
            gateway = GatewayProcess(tmp_path, port)
        for process in writers:
            said(process, str(steps - 1))
            _, errors = process.communicate(timeout=60)
            assert process.returncode == 0, errors
        with Store.open(gateway.url) as store:
            check(store, steps)
        assert gateway.stop()[0] == 0
    finally:
        gateway.kill()
        for process in writers:
            process.kill()
            process.wait()
    with Store.open(tmp_path) as store:
        check(store, steps)


def conversations(step: int) -> list[TrajectoryRecord]:
    tokens = ((1, 2), (False, True), (0.0, -0.5))
    return [
        TrajectoryRecord("r", step, 0, 0, role, 0, "v", *tokens, caller=caller)
        for role, caller in (("manager", None), ("trader", ("manager", 0)))
    ]


def test_a_store_that_comes_back_is_used_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is signed in to anew."""
    port = free_port()
    with GatewayProcess(tmp_path, port) as first, Store.open(first.url, patience=30) as store:
        store.add_trajectories(conversations(0))
        first.kill()
        started: list[GatewayProcess] = []

        def start_again() -> None:
            time.sleep(0.5)
            started.append(GatewayProcess(tmp_path, port))

        thread = threading.Thread(target=start_again)
        thread.start()
        with caplog.at_level(logging.WARNING):
            store.add_trajectories(conversations(1))
        thread.join()
        with started[0]:
            assert len(store.trajectories("r", 0)) == len(store.trajectories("r", 1)) == 2
    assert sum("trying again for up to 30 seconds" in record.getMessage() for record in caplog.records) == 1


def test_patience_ends_with_a_clear_error_and_is_not_spent_twice(caplog: pytest.LogCaptureFixture) -> None:
    with gateway_thread() as running:
        store = Store.open(running.url, patience=1.0)
        store.add_run(RUN)
        running.stop()
        began = time.monotonic()
        with pytest.raises(StoreError, match=r"has not answered for 1 seconds \(.*\): start its server again"):
            store.runs()
        assert time.monotonic() - began > 0.9
        with pytest.raises(StoreError, match="has not answered for"):
            store.runs()
        store.close()
        with pytest.raises(StoreError, match="is closed"):
            store.runs()


def test_closing_does_not_wait_for_a_store_that_is_gone() -> None:
    with gateway_thread() as running:
        store = Store.open(running.url, patience=3600)
        store.runs()
        running.stop()
        complaints: list[str] = []

        def ask() -> None:
            with pytest.raises(StoreError) as told:
                store.runs()
            complaints.append(str(told.value))

        asking = threading.Thread(target=ask)
        asking.start()
        time.sleep(0.3)
        began = time.monotonic()
        store.close()
        asking.join()
        assert time.monotonic() - began < 1800  # not the hour of its patience
        assert "is closed" in complaints[0]


def test_a_transaction_that_met_another_is_sent_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a server answers to several clients; the gateway never does."""
    with Store.open("mem://") as store:
        raw = store._connection._channel
        assert raw is not None
        query, met = raw.query_raw, iter(range(3))

        def conflicting(text: str, parameters: Any = None) -> Any:
            if next(met, None) is not None:
                reason = "The query was not executed due to a failed transaction. This transaction can be retried"
                return {"result": [{"status": "ERR", "result": reason}]}
            return query(text, parameters)

        monkeypatch.setattr(raw, "query_raw", conflicting)
        store.add_run(replace(RUN, status="finished"))
        assert [record.run for record in store.runs()] == ["r"]
    assert not caplog.records


def test_the_first_contact_is_not_waited_for() -> None:
    began = time.monotonic()
    with pytest.raises(StoreError, match="is the server running, and are CRYPTOSENTINEL_STORE_USER"):
        Store.open(f"ws://127.0.0.1:{free_port()}", patience=3600)
    assert time.monotonic() - began < 1800  # not the hour of its patience


def test_another_store_at_the_same_address_gets_nothing() -> None:
    first = GatewayThread()
    store = Store.open(first.url, patience=20)
    store.add_run(RUN)
    first.stop()
    second = GatewayThread(port=first.port)
    try:
        with pytest.raises(StoreError, match="another store answers at this address"):
            store.add_metrics("r", 0, {"loss": 1.0})
        with Store.open(second.url) as other:
            assert other.metrics("r") == []
            with pytest.raises(StoreError, match="another store answers at this address"):
                store.runs()
    finally:
        store.close()
        second.stop()


def test_an_interrupted_request_does_not_give_its_answer_to_the_next(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with gateway_thread() as running, Store.open(running.url) as store:
        store.add_run(RUN)
        raw = store._connection._channel
        assert isinstance(raw, ServerChannel)
        socket = raw.socket
        assert socket is not None

        def interrupted(timeout: float | None = None) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(socket, "recv", interrupted)
            with pytest.raises(KeyboardInterrupt):
                store.add_metrics("r", 0, {"loss": 1.0})
        store.finish_run("r", "interrupted", "from the keyboard")
        assert store.run("r").status == "interrupted"
        assert not caplog.records  # and nobody is told of a trouble that there was not


# -- who a run belongs to ----------------------------------------------------------------------------------------------


def expire(store: Store, run: str) -> None:
    store._connection.query("UPDATE lease SET expires_at = 1 WHERE run = $run", {"run": run})


def test_opening_a_served_store_leaves_the_runs_of_others_alone() -> None:
    with gateway_thread() as running, Store.open(running.url) as one:
        one.add_run(RUN)
        with Store.open(running.url) as other:
            assert other.run("r").status == "running"
        one.put([replace(RUN, run="without_a_lease")])  # as a program of an older version leaves it
        with Store.open(running.url) as other:
            assert other.run("without_a_lease").status == "running"
        expire(one, "r")
        with Store.open(running.url) as other:
            assert (other.run("r").status, other.run("r").message) == (
                "interrupted", "its process ended without saying so"
            )  # fmt: skip


def test_a_lease_is_renewed_and_brings_back_who_was_thought_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "INTERVAL", 0.05)
    with gateway_thread() as running, Store.open(running.url, patience=30) as one:
        one.add_run(RUN)
        one._leases.close()
        expire(one, "r")
        with Store.open(running.url) as other:
            assert other.run("r").status == "interrupted"
            one._leases._over.clear()
            one._leases._thread = None
            one._leases.take("r")
            deadline = time.monotonic() + 120
            while other.run("r").status != "running" and time.monotonic() < deadline:
                time.sleep(0.02)
            assert other.run("r") == RUN
            (expires,) = other._connection.query("SELECT VALUE expires_at FROM lease")
            assert 0 < expires - other.now() < 31_000


def test_a_run_that_another_took_over_is_not_renewed() -> None:
    with gateway_thread() as running, Store.open(running.url) as one, Store.open(running.url) as other:
        one.add_run(RUN)
        other.add_run(RUN)
        expire(one, "r")
        one._leases._renew("r")
        assert one._connection.query("SELECT VALUE expires_at FROM lease") == [1]
        other._leases._renew("r")
        assert one._connection.query("SELECT VALUE expires_at FROM lease") != [1]


def test_a_run_that_ended_keeps_no_lease() -> None:
    with gateway_thread() as running, Store.open(running.url) as store:
        store.add_run(RUN)
        store.finish_run("r", "finished")
        store._leases._renew("r")
        assert store._connection.query("SELECT * FROM lease") == []
        assert store.run("r").status == "finished"


def test_a_folder_and_its_gateway_mark_only_what_nobody_can_be_at(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.add_run(replace(RUN, run="in_the_folder"))
    with GatewayProcess(tmp_path, free_port()) as running, Store.open(running.url) as store:
        assert store.run("in_the_folder").status == "interrupted"
        store.add_run(replace(RUN, run="served"))
        store.add_run(replace(RUN, run="dead"))
        expire(store, "dead")
    with Store.open(tmp_path) as store:  # whoever has it waits for the gateway to come back
        assert {record.run: record.status for record in store.runs()} == {
            "in_the_folder": "interrupted", "served": "running", "dead": "interrupted"
        }  # fmt: skip
        store.add_run(replace(RUN, run="served"))  # taken over
    with Store.open(tmp_path) as store:
        assert store.run("served").status == "interrupted"
