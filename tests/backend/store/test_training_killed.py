"""A training that is killed again and again while two other processes read what it stores; `KILLS=100` for more."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from backend.store.records import RewardRecord, RolloutRecord, TrajectoryRecord
from backend.store.store import Store
from backend.training.checkpoints import checkpoints
from tests.backend.store.servers import environment
from tests.killable import Killable
from tests.small_world import small_nano, tree

SETTINGS = (
    "team.horizon_bars=6", "team.max_tokens=24", "market.coins=1", "market.bars=400", "training.stage1_steps=1",
    "training.stage1_max_steps=1", "training.stage2_steps=4", "training.queries_per_step=1",
    "training.rollouts_per_query=2", "training.scenario_paths=2", "training.lora_rank=2", "training.validation_every=4",
    "training.validation_queries=1", "training.gate_format=0", "training.rollback_format=0",
)  # fmt: skip

# Reads all runs over and over; what was once there stays. A run that goes on does its last steps again.
READ = """
import sys, time
from backend.store.errors import StoreError
from backend.store.store import Store
seen = {}
with Store.open(sys.argv[1]) as store:
    print("open", flush=True)
    while True:
        for run in store.runs():
            found = [one.step for one in store.metrics(run.run)]
            rollouts = {one.step for one in store.rollouts(run.run)}
            before = seen.get(run.run, ([], set()))
            assert found[: len(before[0])] == before[0], (run.run, found, before[0])
            assert rollouts >= before[1], (run.run, rollouts, before[1])
            assert run.status in ("running", "interrupted", "finished"), run
            seen[run.run] = found, rollouts
        print(sum(len(found) for found, _ in seen.values()), flush=True)
        time.sleep(0.2)
"""


class Reader:
    """A process that reads, and how much it has seen."""

    def __init__(self, store: Path) -> None:
        command = [sys.executable, "-c", READ, str(store)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
        )
        self.rounds, self.seen, self.errors = 0, 0, ""
        self._threads = [threading.Thread(target=one) for one in (self._listen, self._complaints)]
        for thread in self._threads:
            thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip().isdigit():
                self.rounds, self.seen = self.rounds + 1, int(line)

    def _complaints(self) -> None:
        assert self.process.stderr is not None
        self.errors = self.process.stderr.read()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join()


def contents(store: Store, run: str) -> dict[str, object]:
    """What a run has stored, as far as it does not hang on the time."""
    kinds = {kind.table: store.count(kind, run) for kind in (RolloutRecord, TrajectoryRecord, RewardRecord)}
    outcomes = [(one.step, one.query, one.rollout, one.outcome) for one in store.rollouts(run)]
    return {**kinds, "outcomes": outcomes, "metrics": [one.step for one in store.metrics(run)]}


@pytest.mark.slow
@pytest.mark.parametrize("kills", [int(os.environ.get("KILLS", "25"))])
def test_a_training_is_killed_while_two_others_read(tmp_path: Path, kills: int) -> None:
    """`train`, killed at drawn moments and resumed, comes to the very files and records of an undisturbed one; nothing
    that a reader saw or a checkpoint stands for is ever missing, and the readers go on, whoever holds the store."""
    rng = random.Random(5)
    nano = small_nano(tmp_path / "nano", steps=60)
    options = [word for one in (*SETTINGS, f"training.base_model={nano}") for word in ("--set", one)]
    where = tmp_path / "disturbed"
    (where / "runs").mkdir(parents=True)
    (tmp_path / "calm").mkdir()
    with Killable({"XDG_STATE_HOME": str(tmp_path / "state")}) as run:
        assert run(tmp_path / "calm", "train", *options).code == 0
        began = time.monotonic()
        shutil.rmtree(tmp_path / "calm" / "runs")
        calm = run(tmp_path / "calm", "train", *options)
        length = time.monotonic() - began
        assert calm.code == 0, calm.said
        [undisturbed] = (tmp_path / "calm" / "runs").glob("train-*")
        with Store.open(tmp_path / "calm" / "runs" / "store") as store:
            wanted = contents(store, undisturbed.name)
        readers = [Reader(where / "runs" / "store") for _ in range(2)]
        try:
            done, killed, resumed = list[str](), 0, ""
            while killed < kills or resumed:
                again = ("--resume", resumed) if resumed else options
                moment = rng.uniform(0.1, 0.7 * length) if killed < kills else 0.0
                ended = run(where, "train", *again, after=moment)
                killed += ended.code == -signal.SIGKILL
                assert ended.code in (0, -signal.SIGKILL), ended.said
                assert all(reader.process.poll() is None for reader in readers), [one.errors for one in readers]
                with Store.open(where / "runs" / "store") as store:
                    present = [one.run for one in store.runs() if one.run not in done]
                    assert len(present) <= 1, present  # it is resumed until it is finished
                    for name in present:
                        for stood in checkpoints(where / "runs" / name / "checkpoints"):
                            steps = int(stood.name.removeprefix("step-"))
                            stored = [one.step for one in store.metrics(name)]
                            assert stored[: steps + 1] == list(range(steps + 1))[: len(stored)], (name, steps, stored)
                            assert len(stored) >= steps, (name, steps, stored)
                resumed = present[0] if present and ended.code else ""
                done += present if not ended.code else []
            rounds = [reader.rounds for reader in readers]
        finally:
            for reader in readers:
                reader.end()
    assert min(rounds) > kills / 4, rounds
    with Store.open(where / "runs" / "store") as store:
        for name in done:
            assert store.run(name).status == "finished"
            assert contents(store, name) == wanted, name
            trained = tree(where / "runs" / name, hidden=name)
            assert trained == tree(undisturbed, hidden=undisturbed.name), name
    print(f"{killed} kills, {len(done)} runs finished, readers' rounds {rounds}, undisturbed {length:.1f} s")
