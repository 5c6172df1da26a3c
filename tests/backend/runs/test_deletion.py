"""Deleting runs: with everything that is theirs, nothing that another needs, and whole whatever interrupts it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backend.runs.deletion import delete_run, plan_deletions
from backend.store.records import ALL_KINDS, DecisionRecord, RunRecord
from backend.store.store import Store, StoreError
from simulator.errors import UserError
from tests.backend.store.synthetic import add_training
from tests.command_line import program


def make_folder(runs: Path, run: str, **manifest: Any) -> Path:
    """The folder of a run with a team, as a training leaves it."""
    folder = runs / run
    for path in ("checkpoints/step-000001/state.json", "adapters/step-000001/manager.safetensors", "report.html.tmp"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("x" * 1000)
    (folder / "team.json").write_text(json.dumps({"base": "nano", "adapters": None, **manifest}))
    return folder


def ended(store: Store, run: str, kind: str = "train", at: int = 1_000, **config: Any) -> RunRecord:
    record = RunRecord(run, kind, 1, "hash", at, config, "finished", at)
    store.add_run(record)
    return record


def counts(store: Store, run: str) -> dict[str, int]:
    return {kind.table: store.count(kind, run) for kind in ALL_KINDS}


def test_a_run_goes_with_all_that_is_its_own(store: Store, tmp_path: Path) -> None:
    for run in ("a", "a-1", "b"):
        add_training(store, run)
        make_folder(tmp_path, run)
    before = {run: counts(store, run) for run in ("a-1", "b")}
    (tmp_path / "b" / "notes.txt").write_text("mine")
    plans = plan_deletions(store, tmp_path, ["a", "b"])
    assert {plan.run: plan.total for plan in plans} == {run: sum(counts(store, run).values()) for run in ("a", "b")}
    assert all(plan.size > 3000 for plan in plans)
    heard: list[int] = []
    for plan in plans:
        delete_run(store, plan, heard.append)
    assert sum(heard) == sum(plan.total - 1 for plan in plans), "all but the two runs themselves"
    assert [record.run for record in store.runs()] == ["a-1"]
    assert {count for run in ("a", "b") for count in counts(store, run).values()} == {0}
    assert counts(store, "a-1") == before["a-1"], "a run whose name begins alike"
    assert not (tmp_path / "a").exists()
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["notes.txt"], "the user's own file"
    assert (tmp_path / "a-1" / "team.json").is_file()


def test_a_run_that_is_written_is_refused(store: Store, tmp_path: Path) -> None:
    store.add_run(RunRecord("busy", "train", 1, "hash", 1, {}))
    ended(store, "old")
    with pytest.raises(UserError, match="run busy is being written: delete it when it has ended"):
        plan_deletions(store, tmp_path, ["busy"])
    [plan] = plan_deletions(store, tmp_path, ["old"])
    store.resume_run(RunRecord("old", "train", 1, "hash", 1, {}))  # it is resumed while the user is asked
    with pytest.raises(StoreError, match="is being written"):
        delete_run(store, plan)
    assert store.run("old").status == "running"


USES: dict[str, Callable[[Path], tuple[str, dict[str, Any]]]] = {
    "an evaluation of its team": lambda folder: ("evaluate", {"team": str(folder)}),
    "a backtest of its team": lambda folder: ("backtest", {"teams": ["scripted", str(folder)]}),
    "its base": lambda folder: ("train", {"config": {"training": {"base_model": str(folder / "nano")}}}),
    "a training that begins with it": lambda folder: ("train", {"config": {"training": {"start_from": str(folder)}}}),
}


@pytest.mark.parametrize("use", USES)
def test_what_another_run_needs_stays(use: str, store: Store, tmp_path: Path) -> None:
    ended(store, "team")
    folder = make_folder(tmp_path, "team")
    kind, config = USES[use](folder)
    ended(store, "user", kind, 2_000, **config)
    [plan] = plan_deletions(store, tmp_path, ["team"])
    assert plan.needed_by == ("run user names its files",)
    with pytest.raises(UserError, match="run team stays: run user names its files"):
        delete_run(store, plan)
    assert store.run("team").status == "finished" and (folder / "team.json").is_file()
    both = plan_deletions(store, tmp_path, ["team", "user"])
    assert [(one.run, one.needed_by) for one in both] == [("user", ()), ("team", ())], "together, who needs it first"


def test_a_training_with_its_own_copy_needs_nothing(store: Store, tmp_path: Path) -> None:
    ended(store, "team")
    folder = make_folder(tmp_path, "team")
    make_folder(tmp_path, "later")
    (tmp_path / "later" / "adapters" / "start").mkdir()
    ended(store, "later", at=2_000, config={"training": {"start_from": str(folder)}})
    [plan] = plan_deletions(store, tmp_path, ["team"])
    assert plan.needed_by == ()


def test_a_team_without_a_run_needs_its_base(store: Store, tmp_path: Path) -> None:
    """As `sft` leaves it: a folder with a manifest, and no record."""
    ended(store, "team")
    folder = make_folder(tmp_path, "team")
    make_folder(tmp_path, "sft", base=str(folder / "nano"))
    [plan] = plan_deletions(store, tmp_path, ["team"])
    assert plan.needed_by == (f"the team in {tmp_path / 'sft'} has its base there",)


def test_records_without_a_run_can_be_deleted(store: Store, tmp_path: Path) -> None:
    """As an import leaves them that was cut short."""
    store.put(*[DecisionRecord("half", "team", number, 1, {}) for number in range(3)])
    [plan] = plan_deletions(store, tmp_path, ["half"])
    assert (plan.record, plan.total) == (None, 3)
    delete_run(store, plan)
    assert store.decisions("half") == []


def test_a_half_deleted_run_can_only_be_deleted(store: Store, tmp_path: Path) -> None:
    add_training(store, "a")
    store.mark_deleting("a")
    for use in (lambda: store.run("a"), lambda: store.resume_run(RunRecord("a", "train", 1, "hash", 1, {}))):
        with pytest.raises(StoreError, match="half deleted: finish that with `cryptosentinel runs delete a`"):
            use()
    [plan] = plan_deletions(store, tmp_path, ["a"])
    delete_run(store, plan)
    assert not store.runs() and set(counts(store, "a").values()) == {0}


def test_the_command_shows_asks_and_deletes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = program(tmp_path, monkeypatch, capsys)
    with Store.open(tmp_path / "runs" / "store") as store:
        for name in ("a", "b"):
            add_training(store, name)
            make_folder(tmp_path / "runs", name)
        ended(store, "look", "evaluate", 9_000, team="runs/b")
    refused = run("runs", "delete", "a")
    assert refused.code == 2 and "give --yes" in refused.err
    assert "train finished" in refused.out and "kB" in refused.out, "it shows what would go"
    needed = run("runs", "delete", "b", "a", "--yes")
    assert needed.code == 2 and "run b stays: run look names its files" in needed.err
    done = run("runs", "delete", "a", "--yes")
    assert done.code == 0 and "deleted 1 runs" in done.out
    listed = run("runs").out
    assert "look" in listed and not (tmp_path / "runs" / "a").exists() and (tmp_path / "runs" / "b").exists()
    nobody = run("runs", "delete", "nobody", "--yes")
    assert nobody.code == 2 and "there is no run 'nobody'" in nobody.err
