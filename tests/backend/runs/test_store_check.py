"""`store check` finds what is damaged or not there, and no more than that."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from backend.runs.store_check import StoreCheck, check_store
from backend.store.records import AdapterRecord, DecisionRecord, RunRecord, TrajectoryRecord
from backend.store.store import Store
from tests.backend.store.synthetic import add_step, add_training
from tests.command_line import program
from tests.stored_runs import add_backtest_run


def sound(store: Store, run: str) -> None:
    """A training, whose documents are those of the program."""
    add_training(store, run)
    run_ = store.run(run)
    store.mark_deleting(run)
    store.delete_run(run)
    store.add_run(run_)
    for step in range(3):
        add_step(store, run, step)


def checked(store: Store, runs: Path) -> StoreCheck:
    return check_store(store, runs, lambda what, done, total: None)


def problems(store: Store, runs: Path) -> str:
    return "; ".join(problem for of_run in checked(store, runs).problems.values() for problem in of_run)


def test_a_sound_store_has_no_problem(store: Store, tmp_path: Path) -> None:
    sound(store, "a")
    add_backtest_run(store, "backtest")
    found = checked(store, tmp_path)
    assert found.problems == {} and found.notes == []
    assert found.records["trajectory"] == 18 and found.records["run"] == 2
    assert sum(found.records.values()) > 50


def test_what_an_interrupt_or_retention_left_is_no_damage(store: Store, tmp_path: Path) -> None:
    sound(store, "a")
    record = RunRecord("a", "train", 1, "h", 1, {"config": {"store": {"keep": 1}}}, "finished", 2)
    store.resume_run(record)
    store.drop_trajectories("a", 0, 2)
    assert problems(store, tmp_path) == ""
    sound(store, "b")
    store._connection.query("DELETE reward WHERE run = 'b' AND step = 2; DELETE shard WHERE run = 'b'")
    store.finish_run("b", "interrupted")
    assert problems(store, tmp_path) == ""


DAMAGE: dict[str, tuple[str, str]] = {
    "an answer that lost its caller": (
        "DELETE trajectory WHERE step = 1 AND role = 'manager' AND rollout = 0",
        "was delegated by a conversation that is not there",
    ),
    "a query": ("DELETE query WHERE step = 2", "is of a query that is not there"),
    "a conversation": (
        "DELETE trajectory WHERE step = 0 AND role = 'trader' AND rollout = 1",
        "reward .* is of a conversation that is not there",
    ),
    "all conversations of a step": ("DELETE trajectory WHERE step = 0", "is of a conversation that is not there"),
    "a rollout": ("DELETE rollout WHERE step = 1 AND rollout = 2", "step 1 holds 2 rollouts, and 3 were written"),
    "a call": ("UPDATE rollout SET calls = {trader: 0.5} WHERE step = 1 AND rollout = 2", "rollout .* cannot be read"),
    "tokens": (
        "UPDATE trajectory SET mask = <bytes>'' WHERE step = 1 AND role = 'trader'",
        "the lengths must be equal",
    ),
    "half a token": ("UPDATE trajectory SET ids = <bytes>'abc' WHERE step = 1", "cannot be read"),
    "a result": ("UPDATE backtest SET result = '{' WHERE run = 'backtest'", "backtest .* cannot be read"),
    "a document": ("UPDATE decision SET document = '[]' WHERE run = 'backtest'", "decision .* cannot be read"),
    "a backtest": ("DELETE backtest WHERE run = 'backtest'", "is of a backtest that is not there"),
    "a configuration": ("UPDATE run SET config = 'x' WHERE run = 'a'", "run .* cannot be read"),
    "a step of another": ("UPDATE metric SET step = 7 WHERE step = 1", "has the key of another record"),
    "a run": ("DELETE run WHERE run = 'a'", "records of it and no run"),
    "half a deletion": ("UPDATE run SET status = 'deleting' WHERE run = 'a'", "its deletion was cut short"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found(damage: str, store: Store, tmp_path: Path) -> None:
    sound(store, "a")
    add_backtest_run(store, "backtest")
    sound(store, "other")
    statement, expected = DAMAGE[damage]
    for one in statement.split(";"):
        store._connection.query(one.replace("WHERE step", "WHERE run = 'a' AND step"))
    found = checked(store, tmp_path)
    told = "; ".join(problem for of_run in found.problems.values() for problem in of_run)
    assert re.search(expected, told), told
    assert "other" not in found.problems


def test_kept_weights_are_compared_with_their_checksum(store: Store, tmp_path: Path) -> None:
    sound(store, "a")
    kept = tmp_path / "a" / "adapters" / "step-000001" / "trader.safetensors"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"weights")
    checksum = hashlib.sha256(b"weights").hexdigest()
    store.add_adapter(AdapterRecord("a", "trader", "v1", 1, str(kept.relative_to(tmp_path / "a")), checksum))
    assert checked(store, tmp_path).problems == {}
    kept.write_bytes(b"wEights")
    assert "its checksum differs" in problems(store, tmp_path)
    kept.unlink()
    assert problems(store, tmp_path) == "" and len(checked(store, tmp_path).notes) == 1


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run = program(tmp_path, monkeypatch, capsys)
    for command in (("check",), ("backup", "b"), ("compact",)):
        refused = run("store", *command)
        assert refused.code == 2 and "there is no store in runs/store" in refused.err
    with Store.open(tmp_path / "runs" / "store") as store:
        sound(store, "a")
        store.add_decisions([DecisionRecord("half", "team", 0, 1, {})])
    damaged = run("store", "check")
    assert damaged.code == 1 and "run half: there are records of it and no run" in damaged.out
    assert "`cryptosentinel runs delete RUN`: half" in damaged.err
    assert run("runs", "delete", "half", "--yes").code == 0
    whole = run("store", "check")
    assert whole.code == 0 and "18 trajectory" in whole.out and "no problem" in whole.out
    made = run("store", "backup", "backup")
    assert made.code == 0 and "backup has " in made.out
    assert run("store", "backup", "backup").code == 2
    assert run("store", "check", "--store", "backup").code == 0
    assert "before" in run("store", "compact").out
    assert run("store", "compact", "--store", "ws://127.0.0.1:1").code == 2
    with Store.open(tmp_path / "runs" / "store") as store:
        assert len(store.trajectories("a", 0)) == 6 and isinstance(store.trajectories("a", 0)[0], TrajectoryRecord)
