"""Who is alive, who may take a name, and when a run is over: also while the database's clock jumps."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from backend.config.schema import Config
from backend.distributed import heartbeat
from backend.distributed.entrypoints import run_role, worker_heartbeat
from backend.distributed.heartbeat import Heartbeat, RunOver
from backend.store import lease
from backend.store.errors import StoreError
from backend.store.records import RunRecord
from backend.store.run_record import PROGRAM, versions
from backend.store.store import Store
from simulator.errors import RunFailed, UserError
from tests.backend.store.servers import server_thread
from tests.small_world import RUN, smaller_config

HOUR = 3_600_000  # milliseconds
ME = str(os.getpid())


@pytest.fixture(autouse=True)
def _quick_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.25)


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.open("mem://") as opened:
        opened.add_run(RunRecord(RUN, "train", 1, "hash", 1, {}))
        yield opened


def jump(store: Store, milliseconds: int) -> None:
    """As if the database's clock had gone on by so much: all that it wrote before seems so much older."""
    store._connection.query("UPDATE service SET updated_at -= $by", {"by": milliseconds})
    store._connection.query("UPDATE lease SET expires_at -= $by", {"by": milliseconds})


def heartbeat_of(store: Store, replaces: str = "") -> Heartbeat:
    return Heartbeat(store, RUN, "trainer-trader", "trainer", "trader", replaces)


@pytest.mark.parametrize("hours", [0, 1, -1])
def test_a_living_process_keeps_its_name_whatever_the_clock_does(hours: int, store: Store) -> None:
    with heartbeat_of(store):
        jump(store, hours * HOUR)
        with pytest.raises(UserError, match=r"trainer-trader of run .* is at work already .*try again in \d+ s"):
            heartbeat_of(store)


@pytest.mark.parametrize("hours", [1, -1])
def test_a_dead_one_is_replaced_once_it_has_been_watched(hours: int, store: Store) -> None:
    dead = heartbeat_of(store)
    dead._store.report_service(replace(dead._record, process="dead", beat=7))
    jump(store, hours * HOUR)
    began = time.monotonic()
    with heartbeat_of(store):
        assert time.monotonic() - began >= 2 * heartbeat.BEAT_SECONDS, "nobody looked whether it is alive"
        (found,) = store.services(RUN)
        assert (found.process.partition("@")[0], found.beat) == (ME, 8)


def test_whoever_died_a_moment_ago_is_waited_for_unless_it_is_named(store: Store) -> None:
    heartbeat_of(store)._store.report_service(replace(heartbeat_of(store)._record, process="4711"))
    with pytest.raises(UserError, match="process 4711, last heartbeat 0 s ago"):
        heartbeat_of(store)
    with pytest.raises(UserError, match="process 4711"):
        heartbeat_of(store, replaces="471,47110")
    with heartbeat_of(store, replaces="12,4711,13"):  # 13 died before it could say that it was there
        pass


def test_who_was_thought_dead_writes_no_more(store: Store) -> None:
    """As a machine that wakes up: its process meets the one that took its place."""
    with (
        pytest.raises(UserError, match="another process goes by the name trainer-trader"),
        heartbeat_of(store) as sleeper,
    ):
        newer = replace(sleeper._record, process="newer", beat=100, state="working")
        store.report_service(newer)
        sleeper.report("working", 3)
    (found,) = store.services(RUN)
    assert replace(found, updated_at=0) == newer, "it overwrote the one that lives"


def test_beats_tell_it_too_without_a_word(store: Store) -> None:
    with pytest.raises(UserError, match="was thought dead"), heartbeat_of(store) as sleeper:
        store.report_service(replace(sleeper._record, process="newer", beat=100))
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            time.sleep(0.01)
            sleeper.check()


def test_of_several_that_stand_by_one_takes_the_place_and_the_others_go_on_standing_by(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where all of them saw the name free at the same moment."""
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.05)
    ready, order = threading.Barrier(4), list[str]()

    def live() -> None:
        standing_by = Heartbeat(store, RUN, "rollout-0", "rollout", standby=True)
        ready.wait()
        with standing_by as own:
            order.append(own.process)
            time.sleep(0.2)
            own.check()
            assert store.services(RUN)[0].process == own.process, "two had the name at the same time"
            order.append(own.process)

    threads = [threading.Thread(target=live) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert order[::2] == order[1::2], "two had the name at the same time"
    assert len(set(order)) == 4, "one of them gave up"


def test_of_several_workers_that_begin_at_once_each_has_a_name_of_its_own(store: Store) -> None:
    ready, over = threading.Barrier(4), threading.Barrier(4)

    def live() -> None:
        ready.wait()
        with worker_heartbeat(store, RUN, None):
            over.wait()

    threads = [threading.Thread(target=live) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.name for one in store.services(RUN)] == [f"rollout-{number}" for number in range(1, 5)]


def test_an_answer_that_was_lost_is_no_other_process(store: Store) -> None:
    with heartbeat_of(store) as one:
        told = replace(one._record, state="working", beat=one._record.beat + 1)
        assert all(store.beat_service(told, one._record.beat) for _ in range(3))


# -- the run -----------------------------------------------------------------------------------------------------------


def waiting(store: Store) -> None:
    """Wait for what never comes."""
    with heartbeat_of(store) as one:
        one.wait(0, "for nothing", lambda: None)


def test_a_failure_of_a_former_life_does_not_end_the_run_that_goes_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "_LONGEST", 0.01)
    with pytest.raises(ValueError, match="no luck"), Heartbeat(store, RUN, "rollout-0", "rollout"):
        raise ValueError("no luck")
    looks = iter(range(40))
    with heartbeat_of(store) as one:
        assert one.wait(0, "for the coordinator", lambda: next(looks, None) == 39 or None)
        with pytest.raises(ValueError, match="again"), Heartbeat(store, RUN, "rollout-0", "rollout"):
            raise ValueError("again")
        with pytest.raises(RunFailed, match="rollout-0 has failed: again"):
            one.wait(1, "for the coordinator", lambda: None)


@pytest.mark.parametrize("status", ["finished", "failed", "interrupted"])
def test_a_run_that_has_ended_is_over(status: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "_LONGEST", 0.01)
    store._connection.query("UPDATE run SET status = $status, message = 'by its owner'", {"status": status})
    with pytest.raises(RunOver):
        waiting(store)
    assert store.services(RUN)[0].message == "the run is over"


def test_a_run_whose_lease_a_jump_of_the_clock_ends_is_over_only_if_nobody_takes_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lease, "INTERVAL", 0.4)
    monkeypatch.setattr(heartbeat, "_LONGEST", 0.01)
    with server_thread() as running, Store.open(running.url) as owner, Store.open(running.url) as mine:
        owner.add_run(RunRecord(RUN, "train", 1, "hash", 1, {}))
        jump(owner, HOUR)
        with Store.open(running.url):  # whoever comes next finds the lease run out
            pass
        with heartbeat_of(mine) as one:
            assert one.wait(0, "for its owner", lambda: mine.run(RUN).status == "running" or None)
        owner._leases.close()
        time.sleep(lease.INTERVAL)
        jump(owner, HOUR)
        with Store.open(running.url) as other:
            assert other.run(RUN).status == "interrupted"
        with pytest.raises(RunOver):
            waiting(mine)


def test_a_run_that_somebody_is_at_is_not_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "INTERVAL", 0.4)
    with server_thread() as running, Store.open(running.url) as owner, Store.open(running.url) as other:
        owner.add_run(RunRecord(RUN, "train", 1, "hash", 1, {}))
        owner.claim(RUN)  # its own is nobody else's
        for hours in (0, 1, -1):
            jump(owner, hours * HOUR)
            with pytest.raises(StoreError, match="is being worked on by another program"):
                other.claim(RUN)
        owner._leases.close()
        time.sleep(lease.INTERVAL)
        other.claim(RUN)


# -- the code ----------------------------------------------------------------------------------------------------------


def begun_with(store: Store, config: Config, **changed: str) -> None:
    document = {"config": config.to_dict(), "versions": versions() | changed}
    store.add_run(RunRecord(RUN, "train", 1, "hash", 1, document))


@pytest.mark.parametrize("other", ["0.0.9", "99.0.0"])
def test_another_version_of_the_program_is_refused_with_both(
    other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server_thread() as running:
        with Store.open(running.url) as store:
            begun_with(store, smaller_config(), **{PROGRAM: other})
        with pytest.raises(UserError, match=rf"begun by version {other} .*has version {versions()[PROGRAM]}: use"):
            run_role(running.url, RUN, tmp_path, "trader")


def test_other_packages_and_edited_sources_are_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with server_thread() as running:
        with Store.open(running.url) as store:
            begun_with(store, smaller_config(), torch="1.0", source="other")
        with pytest.raises(UserError, match="give --runs the folder"):  # which is looked at after the versions
            run_role(running.url, RUN, tmp_path, "trader")
    told = [record.getMessage() for record in caplog.records if record.name.startswith("backend.distributed")]
    assert len(told) == 2 and "begun with torch 1.0" in told[0] and "begun with source other" in told[1]


def test_a_long_wait_is_told_with_those_who_are_silent(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(heartbeat, "_LOG_AFTER", 0.05)
    with Heartbeat(store, RUN, "rollout-0", "rollout"):
        pass
    over = threading.Event()
    threading.Timer(0.5, over.set).start()
    with heartbeat_of(store) as one:
        one.wait(0, "for rollouts", lambda: over.is_set() or None)
    assert any("for rollouts; rollout-0 has stopped" in record.getMessage() for record in caplog.records)
