"""A store behind a SurrealDB server: what happens when that goes away, and who a run belongs to."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from surrealdb import BlockingWsSurrealConnection, RecordID

from backend.store import connection, lease
from backend.store.errors import StoreError
from backend.store.records import JournalRecord, MetricRecord, RunRecord, TrajectoryRecord
from backend.store.store import Store
from tests.backend.store.servers import ServerThread, free_port, server_thread

RUN = RunRecord("r", "train", 1, "hash", 1_000, {})


def conversations(step: int) -> list[TrajectoryRecord]:
    tokens = ((1, 2), (False, True), (0.0, -0.5))
    return [
        TrajectoryRecord("r", step, 0, 0, role, 0, "v", *tokens, caller=caller)
        for role, caller in (("manager", None), ("trader", ("manager", 0)))
    ]


def test_a_server_that_comes_back_is_used_again(tmp_path: Any) -> None:
    """It is signed in to again."""
    url = f"surrealkv://{tmp_path / 'db'}"
    first = ServerThread(url=url)
    with Store.open(first.url) as store:
        store.put(*conversations(0))
        first.stop()
        started: list[ServerThread] = []
        starting = threading.Timer(0.5, lambda: started.append(ServerThread(first.port, url)))
        starting.start()
        store.put(*conversations(1))
        starting.join()
        assert len(store.trajectories("r", 0)) == len(store.trajectories("r", 1)) == 2
    started[0].stop()


def test_a_server_is_tried_again_three_times_and_then_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_PAUSES", (0.01, 0.02, 0.03))
    with server_thread() as running:
        store = Store.open(running.url)
        store.add_run(RUN)
        store._leases.close()
        running.stop()
        dialed: list[int] = []
        dial = store.connection._dial_server

        def counted() -> connection.StoreChannel:
            dialed.append(1)
            return dial()

        monkeypatch.setattr(store.connection, "_dial_server", counted)
        with pytest.raises(StoreError, match=r"does not answer \(.*\): start its server again if it has ended"):
            store.runs()
        assert len(dialed) == 3
        store.close()
        with pytest.raises(StoreError, match="is closed"):
            store.runs()


def test_a_transaction_that_met_another_is_sent_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a server answers to several clients; an engine of our own never does."""
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
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_server_that_is_not_there_is_told_at_once() -> None:
    began = time.monotonic()
    with pytest.raises(StoreError, match="is the server running, and are CRYPTOSENTINEL_STORE_USER"):
        Store.open(f"ws://127.0.0.1:{free_port()}")
    assert time.monotonic() - began < 60


def test_a_wrong_password_is_told_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRYPTOSENTINEL_STORE_PASSWORD", "guessed horse")
    with server_thread() as running, pytest.raises(StoreError, match="CRYPTOSENTINEL_STORE_PASSWORD right") as told:
        Store.open(running.url)
    assert "guessed" not in str(told.value)
    monkeypatch.setenv("CRYPTOSENTINEL_STORE_USER", "")
    with pytest.raises(StoreError, match="go together: set both or neither"):
        Store.open("ws://127.0.0.1:1")
    with pytest.raises(StoreError, match="holds a user or a password"):
        Store.open("ws://trader:horse@127.0.0.1:1")


def test_another_store_at_the_same_address_gets_nothing() -> None:
    first = ServerThread()
    store = Store.open(first.url)
    store.add_run(RUN)
    first.stop()
    second = ServerThread(port=first.port)
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
    with server_thread() as running, Store.open(running.url) as store:
        store.add_run(RUN)
        raw = store._connection._channel
        assert isinstance(raw, BlockingWsSurrealConnection)
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
        # And no trouble is reported that there was not; other tests may have let libraries report their steps.
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


# -- who a run belongs to ----------------------------------------------------------------------------------------------


def expire(store: Store, run: str) -> None:
    store._connection.query("UPDATE lease SET expires_at = 1 WHERE run = $run", {"run": run})


def test_opening_a_served_store_leaves_the_runs_of_others_alone() -> None:
    with server_thread() as running, Store.open(running.url) as one:
        one.add_run(RUN)
        with Store.open(running.url) as other:
            assert other.run("r").status == "running"
        expire(one, "r")
        with Store.open(running.url) as other:
            assert (other.run("r").status, other.run("r").message) == (
                "interrupted", "its process ended without saying so"
            )  # fmt: skip


def test_a_lease_is_renewed_and_brings_back_who_was_thought_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "INTERVAL", 0.05)
    with server_thread() as running, Store.open(running.url) as one:
        one.add_run(RUN)
        one._leases.close()
        expire(one, "r")
        with Store.open(running.url) as other:
            assert other.run("r").status == "interrupted"
            one._leases._over.clear()
            one._leases._thread = None
            one.resume_run(RUN)
            deadline = time.monotonic() + 120
            while other.run("r").status != "running" and time.monotonic() < deadline:
                time.sleep(0.02)
            assert other.run("r") == RUN
            (expires,) = other._connection.query("SELECT VALUE expires_at FROM lease")
            assert expires > 1


def test_a_run_that_another_took_over_is_not_renewed() -> None:
    with server_thread() as running, Store.open(running.url) as one, Store.open(running.url) as other:
        one.add_run(RUN)
        one._leases.close()
        other._leases.begin(RUN, {"id": RecordID("run", ["r"]), **RUN.row()}, former=one._leases._owner)
        expire(one, "r")
        one._leases._renew("r")
        assert one._connection.query("SELECT VALUE expires_at FROM lease") == [1]
        other._leases._renew("r")
        assert one._connection.query("SELECT VALUE expires_at FROM lease") != [1]


def test_of_two_that_take_a_run_over_one_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have seen that its owner is dead; what each has seen is compared in the transaction that writes."""
    monkeypatch.setattr(lease, "INTERVAL", 0.05)
    with server_thread() as running, Store.open(running.url) as dead:
        dead.add_run(RUN)
        dead._leases.close()
        with Store.open(running.url) as one, Store.open(running.url) as other:
            seen = [one._free_owner("r"), other._free_owner("r")]
            one.resume_run(RUN)
            monkeypatch.setattr(other, "_free_owner", lambda run: seen[1])
            with pytest.raises(StoreError, match="another program has just taken over run r: nothing was written"):
                other.resume_run(RUN)


def test_a_run_that_is_being_worked_on_is_not_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "INTERVAL", 0.05)
    with server_thread() as running, Store.open(running.url) as one, Store.open(running.url) as other:
        one.add_run(RUN)
        with pytest.raises(StoreError, match="run r is being worked on by another program"):
            other.resume_run(RUN)


def test_a_run_that_ended_keeps_no_lease() -> None:
    with server_thread() as running, Store.open(running.url) as store:
        store.add_run(RUN)
        store.finish_run("r", "finished")
        store._leases._renew("r")
        assert store._connection.query("SELECT * FROM lease") == []
        assert store.run("r").status == "finished"


def test_counts_and_ranges_of_keys_are_the_same_behind_a_server() -> None:
    """Both are answered from the keys, on every engine, without a look at the records."""
    with server_thread() as running, Store.open(running.url) as there, Store.open("mem://") as here:
        for store in (there, here):
            for run in ("r", "r-1"):
                store.put(*[JournalRecord(run, number, "bar", number, {}) for number in range(-2, 30)])
                store.put(*[MetricRecord(run, step, {"loss": 1.0}) for step in range(5)])
                for step in range(3):
                    store.put(*[replace(one, run=run) for one in conversations(step)])
        for count in (
            lambda store: [store.count(kind, "r") for kind in (JournalRecord, MetricRecord, TrajectoryRecord)],
            lambda store: [store.count(TrajectoryRecord, "r", step) for step in range(4)],
            lambda store: [one.ordinal for one in store.journal_between("r", 5, 9)],
            lambda store: store.drop_trajectories("r", 1, 2),
            lambda store: [store.steps(TrajectoryRecord, "r"), store.steps(TrajectoryRecord, "r-1")],
            lambda store: store.delete_run("r"),
            lambda store: [store.count(kind, "r-1") for kind in (JournalRecord, MetricRecord, TrajectoryRecord)],
        ):
            assert count(there) == count(here)
        assert there.count(JournalRecord, "r") == 0 and there.count(JournalRecord, "r-1") == 32
