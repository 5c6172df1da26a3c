"""Commands that are killed, interrupted or left without disk space at any change of a file: the same command then comes
to what it comes to undisturbed, what was stored is kept, and who can speak says what is wrong."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from backend.store.records import RewardRecord, RolloutRecord, TrajectoryRecord
from backend.store.store import Store
from simulator.data.archive import write_market
from simulator.data.catalog import Catalog
from simulator.errors import DataError
from simulator.files import write_whole
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests import local_hub
from tests.backend.store.servers import environment
from tests.killable import Ended, Fault, Killable
from tests.mock_exchange import history, serving
from tests.small_world import small_nano, tree
from tests.stored_runs import add_backtest_run

ROOT = Path(__file__).parents[3]
SAMPLE = ROOT / "data" / "synthetic"
SMALL_SFT = ("sft.states=8", "sft.steps=2", "sft.score_states=2")
SMALL_TRAINING = (
    "team.horizon_bars=6", "team.max_tokens=24", "market.coins=1", "market.bars=400", "training.stage1_steps=1",
    "training.stage1_max_steps=1", "training.stage2_steps=1", "training.queries_per_step=1",
    "training.rollouts_per_query=2", "training.scenario_paths=2", "training.lora_rank=2", "training.validation_every=2",
    "training.validation_queries=1", "training.gate_format=0", "training.rollback_format=0", "training.shards=1",
)  # fmt: skip


@dataclass(frozen=True)
class Scene:
    """A command: what it starts from, its arguments, and what it comes to, as far as that does not hang on the time.

    `again` are the arguments that go on with it, by what it left behind; None for the same ones.
    """

    arrange: Callable[[Path], None]
    arguments: tuple[object, ...]
    outcome: Callable[[Path], Any]
    again: Callable[[Path], tuple[object, ...] | None] = lambda folder: None


class Stage:
    """The scenes, and the servers they ask."""

    def __init__(self, work: Path, servers: ExitStack, run: Killable) -> None:
        self.work = work
        self.run = run
        self.exchange = servers.enter_context(serving(history(bars=35)))
        self._servers = servers
        self._calm: dict[str, tuple[int, Any]] = {}
        self._nano: Path | None = None

    @property
    def nano(self) -> Path:
        if self._nano is None:
            self._nano = small_nano(self.work / "nano", steps=20)
        return self._nano

    def scene(self, name: str) -> Scene:
        if name == "backtest":
            window = ("--symbols", "AAAUSDT", "--start", "2021-05-01", "--end", "2021-05-04")
            return Scene(nothing, ("backtest", "--data", SAMPLE, *window), stored_results)
        if name == "sample":
            return Scene(nothing, ("data", "sample", "--out", "made"), lambda folder: tree(folder / "made"))
        if name == "download":
            asked = ("--symbols", "BTC/USDT", "--start", "2023-11-15", "--url", self.exchange.url, "--out", "d")
            return Scene(nothing, ("data", "download", *asked), lambda folder: tree(folder / "d"))
        if name == "export":
            arguments = ("runs", "export", "backtest-1", "out/run.gz")
            return Scene(self.with_a_run, arguments, lambda folder: tree(folder / "out"))
        if name == "delete":
            return Scene(self.with_a_run, ("runs", "delete", "backtest-1", "--yes"), left_runs, deleted)
        if name == "backup":
            return Scene(self.with_a_run, ("store", "backup", "copy"), lambda folder: stored_results(folder, "copy"))
        if name == "pull":
            hub = self._servers.enter_context(local_hub.serving(local_hub.LocalHub({"some/nano": self.nano})))
            return Scene(
                lambda folder: write_whole(folder / "hub", hub.url),
                ("models", "pull", "some/nano", "--to", "m"),
                lambda folder: tree(folder / "m"),
            )
        if name == "train":
            tiny = [*SMALL_TRAINING, f"training.base_model={self.nano}"]
            return Scene(nothing, ("train", *overrides(tiny)), trained, resumed)
        if name == "sft":
            return Scene(nothing, self.sft, lambda folder: tree(folder / "team"))
        if name == "evaluate":
            small = [f"evaluation.{one}" for one in ("windows=2", "decisions_per_window=2")]
            return Scene(self.with_a_team, ("evaluate", "team", *overrides(small)), stored_results)
        raise KeyError(name)

    @property
    def sft(self) -> tuple[object, ...]:
        small = [*SMALL_SFT, f"training.base_model={self.nano}", "market.bars=900", "market.coins=1"]
        return ("sft", "--config", "quick", *overrides(small), "--out", "team")

    def with_a_run(self, folder: Path) -> None:
        made = self.work / "runs"
        if not made.exists():
            with Store.open(made / "store") as store:
                for run in ("backtest-1", "backtest-12"):
                    add_backtest_run(store, run)
        shutil.copytree(made, folder / "runs")

    def with_a_team(self, folder: Path) -> None:
        made = self.work / "team"
        if not made.exists():
            self.work.joinpath("sft").mkdir()
            ended = self.run(self.work / "sft", *self.sft)
            assert ended.code == 0, ended.said
            (self.work / "sft" / "team").rename(made)
        shutil.copytree(made, folder / "team")

    def calm(self, name: str) -> tuple[int, Any]:
        """How many changes the undisturbed command makes, and what it comes to."""
        if name not in self._calm:
            folder, scene = self.fresh(name, "calm")
            ended = self.command(folder, scene)
            assert ended.code == 0 and ended.changes is not None, ended.said
            self._calm[name] = ended.changes, scene.outcome(folder)
        return self._calm[name]

    def fresh(self, name: str, what: str) -> tuple[Path, Scene]:
        """An empty folder, arranged for the scene."""
        folder, scene = self.work / f"{name}-{what}", self.scene(name)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        scene.arrange(folder)
        return folder, scene

    def command(self, folder: Path, scene: Scene, **fault: Any) -> Ended:
        return self.run(folder, *scene.arguments, environment=self._environment(folder), **fault)

    def repeated(self, folder: Path, scene: Scene, **fault: Any) -> Ended:
        """The command that goes on."""
        arguments = scene.again(folder) or scene.arguments
        return self.run(folder, *arguments, environment=self._environment(folder), **fault)

    @staticmethod
    def _environment(folder: Path) -> dict[str, str]:
        hub = folder / "hub"
        return {"HF_ENDPOINT": hub.read_text()} if hub.exists() else {}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, killable: Killable) -> Iterator[Stage]:
    with ExitStack() as servers:
        yield Stage(tmp_path_factory.mktemp("interruption"), servers, killable)


def overrides(settings: list[str]) -> list[str]:
    return [word for one in settings for word in ("--set", one)]


def nothing(folder: Path) -> None:
    pass


def stored_results(folder: Path, store: str = "runs/store") -> Any:
    """The curves and rows of the newest finished run; its report is whole where there is one."""
    with Store.open(folder / store) as opened:
        assert {one.status for one in opened.runs()} <= {"finished", "interrupted", "failed"}
        run = next(one.run for one in opened.runs() if one.status == "finished")
        curves = {one.name: one.result["equity"] for one in opened.backtests(run)}
        rows = {one.name: one.result.get("rows") for one in opened.evaluations(run)}
        decisions = len(opened.decisions(run))
    for report in folder.glob("runs/*/report.html"):
        assert report.read_text().rstrip().endswith("</html>")
    for report in folder.glob("runs/*/report.json"):
        json.loads(report.read_text())
    return curves, rows, decisions


def left_runs(folder: Path) -> Any:
    """How many decisions each run has."""
    with Store.open(folder / "runs" / "store") as store:
        return {one.run: len(store.decisions(one.run)) for one in store.runs()}, store.decisions("backtest-1")


def deleted(folder: Path) -> tuple[object, ...] | None:
    """The list, where there is nothing left to delete."""
    with Store.open(folder / "runs" / "store") as store:
        return None if "backtest-1" in [one.run for one in store.runs()] else ("runs",)


def resumed(folder: Path) -> tuple[object, ...] | None:
    """The arguments that go on with the training that was begun there; None where it was not, or is finished."""
    if not (folder / "runs" / "store").exists():
        return None
    with Store.open(folder / "runs" / "store") as store:
        begun = [one.run for one in store.runs() if one.status != "finished"]
    return ("train", "--resume", begun[0]) if begun else None


def trained(folder: Path) -> Any:
    """What the last training that finished has stored, and its folder without its name."""
    with Store.open(folder / "runs" / "store") as store:
        run = next(one.run for one in store.runs() if one.status == "finished")
        counts = {kind.table: store.count(kind, run) for kind in (RolloutRecord, TrajectoryRecord, RewardRecord)}
        outcomes = [(one.step, one.query, one.rollout, one.outcome) for one in store.rollouts(run)]
        steps = [one.step for one in store.metrics(run)]
    files = tree(folder / "runs" / run)
    return counts, outcomes, steps, {name: text.replace(run.encode(), b"the run") for name, text in files.items()}


def left_over(folder: Path) -> list[str]:
    """Unfinished files and locks outside the folders of runs, each of which is new for every command."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if re.search(r"\.(tmp|partial)$", path.name))
    return sorted(str(path) for path in found if path.parts[0] != "runs")


# By the fault: the exit codes, and what the command says where it does not end well.
ENDS: dict[Fault, tuple[tuple[int, ...], str]] = {
    "kill": ((0, -signal.SIGKILL), ""),
    "full": ((0, 1), "space|disk"),
    "interrupt": ((128 + signal.SIGINT,), "error: .*(stopped|interrupted)"),
    "twice": ((128 + signal.SIGINT,), "ended at once; what was stored|stopped|interrupted|go on|continue"),
}


def strike(stage: Stage, name: str, fault: Fault, **moment: Any) -> Ended:
    """Strike the command; repeated, it must come to what it comes to undisturbed. How it ended."""
    _, outcome = stage.calm(name)
    folder, scene = stage.fresh(name, fault)
    ended = stage.command(folder, scene, fault=fault, **moment)
    codes, words = ENDS[fault]
    assert ended.code in codes and "Traceback" not in ended.said, (moment, ended)
    assert not ended.code or re.search(words, ended.said), (moment, ended)
    if ended.code or name not in ("export", "backup"):  # these refuse to write over what is finished
        again = stage.repeated(folder, scene)
        assert again.code == 0 or "exists already" in again.said, (moment, again.said)
    assert scene.outcome(folder) == outcome, moment
    assert left_over(folder) == [], moment
    return ended


QUICK = ("backtest", "sample", "download", "export", "delete")
LONG = ("backup", "pull", "sft", "evaluate", "train")
FAST: list[tuple[str, Fault]] = [
    *((name, "kill") for name in QUICK[1:]),
    *((name, "full") for name in QUICK[:4]),
    ("sample", "twice"),
    ("download", "twice"),
]


@pytest.mark.parametrize(("name", "fault"), FAST)
def test_struck_half_way_it_comes_to_the_same_when_it_is_repeated(name: str, fault: Fault, stage: Stage) -> None:
    ended = strike(stage, name, fault, at=max(1, stage.calm(name)[0] // 2))
    assert fault != "twice" or "ended at once" in ended.said


@pytest.mark.parametrize("of", ["report.html", pytest.param("report.json", marks=pytest.mark.slow)])
def test_a_disk_that_is_full_for_a_report_loses_no_run(of: str, stage: Stage) -> None:
    """The run was stored before; the message names the report, and the repeated command writes it."""
    strike(stage, "backtest", "full", at=1, of=of)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*QUICK, *LONG])
@pytest.mark.parametrize("fault", ENDS)
def test_struck_at_any_moment_it_comes_to_the_same_when_it_is_repeated(fault: Fault, name: str, stage: Stage) -> None:
    """At changes of files and, for a kill, at times that are drawn: in the middle of the engine, of a library."""
    rng = random.Random(name)
    changes, _ = stage.calm(name)
    for at in sorted(rng.sample(range(1, changes + 1), min(8, changes))):
        strike(stage, name, fault, at=at)
    for _ in range(8 if fault == "kill" else 0):
        strike(stage, name, fault, after=rng.uniform(0.02, 3.0))


# Reads all runs over and over; what was once there stays.
READ = """
import sys, time
from backend.store import Store
seen = {}
with Store.open(sys.argv[1]) as store:
    while True:
        for run in store.runs():
            found = [one.step for one in store.metrics(run.run)], {one.step for one in store.rollouts(run.run)}
            before = seen.get(run.run, ([], set()))
            assert found[0][: len(before[0])] == before[0] and found[1] >= before[1], (run.run, found, before)
            assert run.status in ("running", "interrupted", "finished"), run
            seen[run.run] = found
        print(len(seen), flush=True)
        time.sleep(0.2)
"""


@pytest.mark.slow
def test_a_training_is_killed_again_and_again_while_two_others_read(stage: Stage) -> None:
    """Nothing that a reader saw is ever missing, and the readers go on, whoever holds the store."""
    kills, rng = int(os.environ.get("KILLS", "25")), random.Random(5)
    _, outcome = stage.calm("train")
    folder, scene = stage.fresh("train", "read")
    (folder / "runs").mkdir()
    command = [sys.executable, "-c", READ, str(folder / "runs" / "store")]
    readers = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
        for _ in range(2)
    ]
    try:
        for _ in range(kills):
            ended = stage.repeated(folder, scene, after=rng.uniform(0.1, 6.0))
            assert ended.code in (0, -signal.SIGKILL), ended.said
            assert all(one.poll() is None for one in readers), [one.communicate() for one in readers]
        while resumed(folder):
            assert stage.repeated(folder, scene).code == 0
    finally:
        for one in readers:
            one.kill()
    assert min(len(one.communicate()[0].splitlines()) for one in readers) > kills / 4
    assert trained(folder) == outcome


def test_a_market_that_was_not_written_to_its_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    market = generate(SyntheticConfig(bars=200, seed=1))
    write_market(market, tmp_path / "m")
    before = tree(tmp_path / "m")

    def stop(path: Path, columns: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("simulator.data.archive.write_table", stop)
        with pytest.raises(KeyboardInterrupt):
            write_market(market, tmp_path / "m")
    with pytest.raises(DataError, match="not written to its end"):
        Catalog(tmp_path / "m")
    write_market(market, tmp_path / "m")
    assert tree(tmp_path / "m") == before
