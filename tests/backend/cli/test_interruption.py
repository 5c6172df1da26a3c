"""Commands that are killed, interrupted or left without disk space at any change of a file: the same command then comes
to what it comes to undisturbed, what was stored is kept, and who can speak says what is wrong."""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
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
from tests.killable import Ended, Fault, Killable
from tests.mock_endpoint import MODEL, serve
from tests.mock_exchange import history, serving
from tests.provider_servers import SERVERS
from tests.small_world import small_nano, tree
from tests.stored_runs import add_backtest_run

ROOT = Path(__file__).parents[3]
SAMPLE = ROOT / "data" / "synthetic"
SMALL_SFT = (
    "sft.states=8", "sft.steps=2", "sft.score_states=2",
)  # fmt: skip


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
                add_backtest_run(store, "backtest-1")
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

    def repeated(self, folder: Path, scene: Scene) -> Ended:
        """The command that goes on."""
        return self.run(folder, *(scene.again(folder) or scene.arguments), environment=self._environment(folder))

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


def kill(stage: Stage, name: str, **moment: Any) -> None:
    _, outcome = stage.calm(name)
    folder, scene = stage.fresh(name, "killed")
    killed = stage.command(folder, scene, fault="kill", **moment)
    assert killed.code in (-signal.SIGKILL, 0), killed.said
    if killed.code or name not in ("export", "backup"):  # these refuse to write over what is finished
        again = stage.repeated(folder, scene)
        finished = again.code == 2 and "exists already" in again.said  # it was killed after its last change
        assert again.code == 0 or finished, (moment, again.said)
    assert scene.outcome(folder) == outcome, moment
    assert left_over(folder) == [], moment


def fill(stage: Stage, name: str, at: int, of: str = "") -> None:
    _, outcome = stage.calm(name)
    folder, scene = stage.fresh(name, "full")
    full = stage.command(folder, scene, fault="full", at=at, of=of)
    assert "Traceback" not in full.said, (at, full.said)
    if full.code:  # 0: nothing was left to be written
        assert full.code == 1 and re.search("space|disk", full.said), (at, full.code, full.said)
        again = stage.repeated(folder, scene)
        assert again.code == 0, (at, again.said)
    assert scene.outcome(folder) == outcome, at
    assert left_over(folder) == [], at


def end_twice(stage: Stage, name: str, at: int, *, apart: bool) -> None:
    """Two interrupts, the second at whatever the command does on its way out. Only where they are `apart` is the second
    sure to be noticed: the main thread may be waiting when a thread beside it makes the change."""
    _, outcome = stage.calm(name)
    folder, scene = stage.fresh(name, "twice")
    ended = stage.command(folder, scene, fault="twice", at=at)
    assert ended.code == 128 + signal.SIGINT and "Traceback" not in ended.said, (at, ended)
    noticed = "ended at once; what was stored until now is kept" in ended.said
    assert noticed or (not apart and re.search("stopped|interrupted|continue", ended.said)), (at, ended.said)
    again = stage.repeated(folder, scene)
    assert again.code == 0 or "exists already" in again.said, (at, again.said)
    assert scene.outcome(folder) == outcome, at
    assert left_over(folder) == [], at


QUICK = ("backtest", "sample", "download", "export")
LONG = ("backup", "pull", "sft", "evaluate", "train")


@pytest.mark.parametrize("name", QUICK[1:])
def test_killed_it_comes_to_the_same_when_it_is_repeated(name: str, stage: Stage) -> None:
    changes, _ = stage.calm(name)
    kill(stage, name, at=max(1, 2 * changes // 3))


@pytest.mark.parametrize("name", QUICK)
def test_a_full_disk_is_one_message_and_the_repeated_command_comes_to_the_same(name: str, stage: Stage) -> None:
    fill(stage, name, at=max(1, stage.calm(name)[0] // 2))


@pytest.mark.parametrize("of", ["report.html", pytest.param("report.json", marks=pytest.mark.slow)])
def test_a_disk_that_is_full_for_a_report_loses_no_run(of: str, stage: Stage) -> None:
    """The run was stored before; the message names the report, and the repeated command writes it."""
    fill(stage, "backtest", at=1, of=of)


@pytest.mark.parametrize("name", ["sample", "download"])
def test_a_second_interrupt_ends_it_at_once_and_loses_nothing(name: str, stage: Stage) -> None:
    end_twice(stage, name, at=stage.calm(name)[0] // 2, apart=True)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["interrupt", "twice"])
def test_interrupts_while_a_model_is_tried_are_one_message(fault: Fault, killable: Killable, tmp_path: Path) -> None:
    """At a connection to the endpoint, the second one at whatever follows. Nothing is stored by it."""
    with serve(SERVERS["openai"]()) as endpoint:
        arguments = ("models", "try", MODEL, "--provider", "openai", "--url", endpoint.url, "--data", SAMPLE)
        given: dict[str, Any] = {"of": "socket.__new__", "environment": {"OPENAI_API_KEY": "sk-test"}}
        calm = killable(tmp_path, *arguments, **given)
        assert calm.code == 0 and calm.changes, calm.said
        for at in range(1, calm.changes + 1):
            ended = killable(tmp_path, *arguments, fault=fault, at=at, **given)
            assert ended.code == 128 + signal.SIGINT and "Traceback" not in ended.said, (at, ended)
            assert re.search("interrupted|stopped|ended at once", ended.said), (at, ended)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [*QUICK, *LONG])
def test_a_second_interrupt_at_any_moment_loses_nothing(name: str, stage: Stage) -> None:
    rng = random.Random(name)
    changes, _ = stage.calm(name)
    for at in sorted(rng.sample(range(1, changes + 1), min(5, changes))):
        end_twice(stage, name, at=at, apart=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*QUICK, *LONG])
def test_killed_at_any_moment_it_comes_to_the_same_when_it_is_repeated(name: str, stage: Stage) -> None:
    """At changes of files, and at times that are drawn: in the middle of the engine, of a library, of a tensor."""
    rng = random.Random(name)
    changes, _ = stage.calm(name)
    for at in sorted(rng.sample(range(1, changes + 1), min(8, changes))):
        kill(stage, name, at=at)
    for _ in range(8):
        kill(stage, name, after=rng.uniform(0.02, 3.0))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*QUICK, *LONG])
def test_a_disk_that_is_full_from_any_moment_on_loses_nothing(name: str, stage: Stage) -> None:
    rng = random.Random(name)
    changes, _ = stage.calm(name)
    for at in sorted(rng.sample(range(1, changes + 1), min(10, changes))):
        fill(stage, name, at=at)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*QUICK, *LONG])
def test_an_interrupt_ends_it_with_one_message_and_it_goes_on(name: str, stage: Stage) -> None:
    rng = random.Random(name)
    changes, outcome = stage.calm(name)
    for at in sorted(rng.sample(range(1, changes + 1), min(6, changes))):
        folder, scene = stage.fresh(name, "interrupted")
        ended = stage.command(folder, scene, fault="interrupt", at=at)
        assert ended.code == 128 + signal.SIGINT and "Traceback" not in ended.said, (at, ended)
        assert re.search("error: .*(stopped|interrupted)", ended.said), (at, ended.said)
        again = stage.repeated(folder, scene)
        assert again.code == 0 or "exists already" in again.said, (at, again.said)
        assert scene.outcome(folder) == outcome, at
        assert left_over(folder) == [], at


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
