"""The commands of a store are killed or interrupted at moments drawn over the time that they take: nothing that was
acknowledged is lost, the next command works, and no half of a backup passes for a whole one. Files with tokens lie with
the records."""

from __future__ import annotations

import random
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.runs.store_check import check_store
from backend.store.maintenance.copying import all_rows
from backend.store.records import QueryRecord, RewardRecord, RolloutRecord, RunRecord, ShardRecord, TrajectoryRecord
from backend.store.sharing.objects import OBJECTS_FOLDER, ObjectFolder
from backend.store.store import Store
from tests.killable import Ended, Fault, Killable

KEPT, DELETED = "kept", "deleted"  # runs
STEPS, QUERIES, ROLLOUTS, TOKENS = 3, 8, 8, 60
COMMANDS: dict[str, tuple[str, ...]] = {
    "check": ("store", "check", "--store", "s", "--runs", "runs"),
    "backup": ("store", "backup", "copy", "--store", "s"),
    "compact": ("store", "compact", "--store", "s"),
    "delete": ("runs", "delete", DELETED, "--yes", "--store", "s", "--runs", "runs"),
}
Contents = dict[str, Counter[str]]  # by run its records, and its files by their SHA-256


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killable]:
    with Killable({"XDG_STATE_HOME": str(tmp_path_factory.mktemp("state"))}) as killable:
        yield killable


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Contents]:
    """A folder with the store `s` in it, of some thousand records, and what that holds."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "runs").mkdir()
    with Store.open(folder / "s") as store:
        for run in (KEPT, DELETED):
            store.add_run(RunRecord(run, "train", 1, "hash", 1_000, {"config": {}}, "running"))
            for step in range(STEPS):
                add_step(store, run, step)
            store.finish_run(run, "finished")
    before = contents(folder / "s")
    assert sum(before[KEPT].values()) > 1_000 and any("tensors" in name for name in before[KEPT])
    return folder, before


def add_step(store: Store, run: str, step: int) -> None:
    """As a worker writes it: the tokens of each role are in a file."""
    rng = random.Random(f"{run} {step}")
    keys = [(run, step, query, number) for query in range(QUERIES) for number in range(ROLLOUTS)]
    store.put([QueryRecord(run, step, query, 2, ("A",), 7, 1_000, 9) for query in range(QUERIES)])
    store.add_rollouts([RolloutRecord(*key, 5, True, 0.5, {"trader": 1}, {"fees": 0.1}) for key in keys])
    ids = tuple(rng.randrange(1_000) for _ in range(TOKENS))
    conversations = [
        TrajectoryRecord(
            *key, role, 0, "v1", ids, (True,) * TOKENS, (-0.5,) * TOKENS,
            caller=None if role == "manager" else ("manager", 0),
        )
        for key in keys for role in ("manager", "trader")
    ]  # fmt: skip
    store.add_trajectories(conversations, shard=0)
    store.add_rewards(
        [RewardRecord(*key, role, 0, 0.5, {"format": 1.0}) for key in keys for role in ("manager", "trader")]
    )
    store.add_shard(ShardRecord(run, step, 0, QUERIES, len(keys), len(conversations)))


def contents(folder: Path) -> Contents:
    """What a store holds. Every file in it is what its name says."""
    held: Contents = {}
    with Store.open(folder) as store:
        for _, rows in all_rows(store):
            for row in rows:
                held.setdefault(row["run"], Counter())[repr(sorted(row.items()))] += 1
        cut_short = {one.run for one in store.runs() if one.status == "deleting"}
        assert check_store(store, folder.parent / "runs", lambda *_: None).problems.keys() == cut_short
        for name in ObjectFolder(folder / OBJECTS_FOLDER).names():
            held.setdefault(name.split("/")[0], Counter())[name] += 1
    return held


class Scene:
    """One command, struck again and again, each time on a copy of the store."""

    def __init__(self, name: str, command: Killable, made: tuple[Path, Contents], work: Path) -> None:
        self._name = name
        self._run = command
        self._made, self._before = made
        self._work = work

    def seconds(self) -> float:
        """How long the command takes where nothing strikes it."""
        self._run(self._work.parent, "--version")  # the process that runs commands has come up
        began = time.monotonic()
        ended = self._fresh()
        assert ended.code == 0, ended.said
        return time.monotonic() - began

    def _fresh(self, **moment: Any) -> Ended:
        """The command on a new copy of the store."""
        shutil.rmtree(self._work, ignore_errors=True)
        shutil.copytree(self._made, self._work)
        return self._run(self._work, *COMMANDS[self._name], **moment)

    def strike(self, fault: Fault, after: float) -> bool:
        """Strike once, and whether it came before the end."""
        ended = self._fresh(fault=fault, after=after)
        expected = -signal.SIGKILL if fault == "kill" else 128 + signal.SIGINT
        assert ended.code in (expected, 0), ended.said
        assert "Traceback" not in ended.said, ended.said
        if fault == "interrupt" and ended.code:
            assert re.search("stopped|interrupted", ended.said), ended.said
        self._look(f"{fault} after {after:.3f} s")
        return ended.code != 0

    def _look(self, moment: str) -> None:
        """What is there now, and after the same command once more."""
        store, copy = self._work / "s", self._work / "copy"
        if copy.exists():
            assert contents(copy) == self._before, moment
            shutil.rmtree(copy)
        if self._name == "delete":
            self._look_at_the_deleted(moment)
        else:
            assert contents(store) == self._before, moment
        again = self._run(self._work, *COMMANDS[self._name])
        gone = self._name == "delete" and again.code == 2 and "there is no run" in again.said
        assert again.code == 0 or gone, (moment, again.said)
        left = {KEPT: self._before[KEPT]} if self._name == "delete" else self._before
        assert contents(store) == left, moment
        folders = {"s", "runs"}
        if self._name == "backup":
            assert contents(copy) == self._before, moment
            folders.add("copy")
        assert {path.name for path in self._work.iterdir()} == folders, f"{moment}: something unfinished is left"
        assert not (store / ".compact").exists(), moment

    def _look_at_the_deleted(self, moment: str) -> None:
        with Store.open(self._work / "s") as store:
            status = {one.run: one.status for one in store.runs()}
        now = contents(self._work / "s")
        assert now[KEPT] == self._before[KEPT] and status[KEPT] == "finished", moment
        if status.get(DELETED) == "finished":
            assert now == self._before, moment
        else:
            assert status.get(DELETED) in ("deleting", None), moment


@pytest.mark.parametrize("strikes", [2, pytest.param(30, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", COMMANDS)
def test_struck_at_any_moment_it_loses_nothing(
    name: str, strikes: int, command: Killable, made: tuple[Path, Contents], tmp_path: Path
) -> None:
    scene, rng = Scene(name, command, made, tmp_path / "work"), random.Random(f"{name} {strikes}")
    seconds, came = scene.seconds(), 0
    faults: list[Fault] = ["kill", "interrupt"]
    for _ in range(10 * strikes):
        if came == strikes:
            return
        if scene.strike(faults[came % 2], rng.uniform(0.02, 0.95) * seconds):
            came += 1
        else:
            seconds *= 0.7  # the machine has become faster
    raise AssertionError(f"{came} of {strikes} strikes came before the end of the command")
