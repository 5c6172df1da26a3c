"""Runs have ids that never collide, and nothing writes into another's run."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.store import MetricRecord, RunRecord, Store, StoreError, run_record
from backend.store.records import valid_run_id
from backend.store.run_record import new_run_id
from tests.backend.store.servers import environment, server_thread

NOW = datetime(2026, 11, 27, 12, 0, 0, tzinfo=UTC)

# A program whose clock stands still: makes ids, and adds a run of each to the store.
RUNS = """
import json, sys
from datetime import UTC, datetime
from backend.store import run_record
from backend.store import RunRecord, Store
class Frozen(datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 11, 27, 12, 0, 0, tzinfo=UTC)
run_record.datetime = Frozen
who, made = sys.argv[2], []
with Store.open(sys.argv[1]) as store:
    for number in range(8):
        run = run_record.new_run_id("backtest")
        store.add_run(RunRecord(run, "backtest", number, who, 1, {"of": who}))
        store.add_metrics(run, 0, {"of": float(who)})
        store.finish_run(run, "finished")
        made.append(run)
    try:  # all of them choose the same id
        store.add_run(RunRecord("backtest-20261127-120000", "backtest", 1, who, 1, {"of": who}))
        store.add_metrics("backtest-20261127-120000", int(who), {"of": float(who)})
        won = True
    except Exception as error:
        won = str(error)
print(json.dumps([made, won]))
"""


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Frozen(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Frozen:
            return cls(2026, 11, 27, 12, 0, 0, tzinfo=UTC)

    monkeypatch.setattr(run_record, "datetime", Frozen)


@given(kind=st.sampled_from(("train", "backtest", "evaluate", "paper", "sft", "demo", "search", "experiment")))
def test_an_id_has_its_kind_and_a_time_that_people_can_read(kind: str) -> None:
    run = new_run_id(kind)
    made, day, time, chance = run.split("-")
    assert made == kind and len(chance) == 10 and valid_run_id(run) == run
    assert abs((datetime.now(UTC) - datetime.strptime(day + time + "+0000", "%Y%m%d%H%M%S%z")).total_seconds()) < 60


def test_a_clock_that_stands_still_makes_no_id_twice(frozen: None) -> None:
    assert len({new_run_id("train") for _ in range(20_000)}) == 20_000


def test_ten_programs_at_one_moment_make_runs_of_their_own(tmp_path: Path) -> None:
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", RUNS, str(tmp_path / "store"), str(number)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
        )
        for number in range(10)
    ]  # fmt: skip
    made, won = dict[str, str](), list[str]()
    for number, program in enumerate(programs):
        said, errors = program.communicate(timeout=300)
        assert program.returncode == 0, errors
        runs, outcome = json.loads(said)
        made.update(dict.fromkeys(runs, str(number)))
        if outcome is True:
            won.append(str(number))
        else:
            assert "backtest-20261127-120000 is in store" in outcome and "already: nothing was written" in outcome
    assert len(made) == 80 and len(won) == 1
    with Store.open(tmp_path / "store") as store:
        assert {one.run: one.data_hash for one in store.runs()} == {**made, "backtest-20261127-120000": won[0]}
        assert all(store.run(run).config == {"of": who} for run, who in made.items())
        assert all(store.metrics(run) == [MetricRecord(run, 0, {"of": float(who)})] for run, who in made.items())
        assert [one.step for one in store.metrics("backtest-20261127-120000")] == [int(won[0])]


@pytest.mark.parametrize("status", ["running", "finished"])
def test_a_run_is_added_once(status: Any, tmp_path: Path) -> None:
    first = RunRecord("r", "backtest", 1, "h", 1, {"of": "first"}, status)
    other = RunRecord("r", "train", 2, "x", 2, {"of": "other"}, status)
    with server_thread() as server:
        for where in ("mem://", str(tmp_path / "store"), server.url):
            with Store.open(where) as store:
                store.add_run(first)
                for again in (first, other):
                    with pytest.raises(StoreError, match=r"run r is in store .* already: nothing was written"):
                        store.add_run(again)
                assert store.runs() == [first]


def test_an_answer_that_was_lost_is_no_second_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is sent again, and is then known by its token."""
    with Store.open(tmp_path / "store") as store:
        channel = store.connection._channel
        assert channel is not None
        query, lost = channel.query_raw, [True]

        def losing(text: str, parameters: dict[str, Any]) -> Any:
            answer = query(text, parameters)
            return query(text, parameters) if "THROW" in text and lost.pop() else answer

        monkeypatch.setattr(channel, "query_raw", losing)
        store.add_run(RunRecord("r", "backtest", 1, "h", 1, {}))
        assert not lost and store.run("r").status == "running"
