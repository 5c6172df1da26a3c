"""`store check` finds what cannot be read, and no more than that."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from backend.runs.store_check import StoreCheck, check_store
from backend.store.records import DecisionRecord, TrajectoryRecord
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


def checked(store: Store) -> StoreCheck:
    return check_store(store, lambda what, done, total: None)


def test_a_sound_store_has_no_problem(store: Store) -> None:
    sound(store, "a")
    add_backtest_run(store, "backtest")
    found = checked(store)
    assert found.problems == {}
    assert found.records["trajectory"] == 18 and found.records["run"] == 2
    assert sum(found.records.values()) > 50


DAMAGE: dict[str, tuple[str, str]] = {
    "a call": ("UPDATE rollout SET calls = {trader: 0.5} WHERE step = 1 AND rollout = 2", "rollout .* cannot be read"),
    "tokens": (
        "UPDATE trajectory SET mask = <bytes>'' WHERE step = 1 AND role = 'trader'",
        "the lengths must be equal",
    ),
    "half a token": ("UPDATE trajectory SET ids = <bytes>'abc' WHERE step = 1", "cannot be read"),
    "a result": ("UPDATE backtest SET result = '{' WHERE run = 'backtest'", "backtest .* cannot be read"),
    "a document": ("UPDATE decision SET document = '[]' WHERE run = 'backtest'", "decision .* cannot be read"),
    "a configuration": ("UPDATE run SET config = 'x' WHERE run = 'a'", "run .* cannot be read"),
    "a step of another": ("UPDATE metric SET step = 7 WHERE step = 1", "has the key of another record"),
    "a run": ("DELETE run WHERE run = 'a'", "records of it and no run"),
    "half a deletion": ("UPDATE run SET status = 'deleting' WHERE run = 'a'", "its deletion was cut short"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found(damage: str, store: Store) -> None:
    sound(store, "a")
    add_backtest_run(store, "backtest")
    sound(store, "other")
    statement, expected = DAMAGE[damage]
    for one in statement.split(";"):
        store._connection.query(one.replace("WHERE step", "WHERE run = 'a' AND step"))
    found = checked(store)
    told = "; ".join(problem for of_run in found.problems.values() for problem in of_run)
    assert re.search(expected, told), told
    assert "other" not in found.problems


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run = program(tmp_path, monkeypatch, capsys)
    for command in (("check",), ("backup", "b")):
        refused = run("store", *command)
        assert refused.code == 2 and "there is no store in runs/store" in refused.err
    with Store.open(tmp_path / "runs" / "store") as store:
        sound(store, "a")
        store.put(DecisionRecord("half", "team", 0, 1, {}))
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
    with Store.open(tmp_path / "runs" / "store") as store:
        assert len(store.trajectories("a", 0)) == 6 and isinstance(store.trajectories("a", 0)[0], TrajectoryRecord)
