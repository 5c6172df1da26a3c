"""Another team on the bars of a session: compared with the first, and in its place only with a passed gate."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import backend.paper.shadow
import backend.paper.stored
from backend.builders.loaded_team import LoadedTeam, scripted_team
from backend.config.schema import Config
from backend.evaluation.gate import GATE_RECORD, GateRule, GateVerdict
from backend.models.manifest import sample_team
from backend.models.team_digest import team_digest
from backend.paper.journal import EntryKind, Journal, entries_of
from backend.paper.sessions import PaperRequest, paper_parity, resume_paper, run_paper
from backend.paper.shadow import compare_shadow, promote
from backend.paper.switch import set_stop
from backend.runs.backtest import Subject
from backend.store.records import EvaluationRecord, RunRecord
from backend.store.store import Store
from simulator.errors import UserError
from tests.backend.paper import paper_scenes as scene
from tests.backend.paper.live_scenes import AfterBars

ROOT = Path(__file__).resolve().parents[3]
SESSION, STOPPED = "paper-promoted", 22  # bars before the promotion
SETTINGS = ("paper.history_bars=130", "costs.thinking_time=20")
GATED = 1_000  # ms: when the verdict was given


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped team under another name."""
    return Path(shutil.copytree(sample_team(), tmp_path_factory.mktemp("teams") / "better"))


@pytest.fixture(autouse=True, scope="module")
def quick_teams() -> Iterator[None]:
    """The files are those of a trained team; its answers are made by rules, other ones than the trading team's."""

    subject_of = backend.paper.stored.subject_of

    def team(name: str, config: Config) -> Subject:
        if name in ("scripted", "hold"):
            return subject_of(name, config)
        made: LoadedTeam = scripted_team(config.team, "random_all").renamed(name)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend.paper.stored, "subject_of", team)
        patch.setattr(backend.paper.shadow, "LEAST_DECISIONS", 20)
        yield


def judge(
    store: Store, folder: Path, *, passed: bool = True, run: str = "evaluate-1", digest: str = "", at: int = GATED
) -> None:
    """Record a verdict of the gate."""
    config = {"config": Config().to_dict()}
    store.add_run(RunRecord(run, "evaluate", 1, "hash", at, config, "finished", at))
    rules = (GateRule("windows", True, "enough"), GateRule("better than flat", passed, "by far"))
    verdict = GateVerdict(str(folder), digest or team_digest(folder), "hash", rules)
    store.add_evaluation(EvaluationRecord(run, GATE_RECORD, 0, verdict.to_json()))


def begin(store: Store, runs: Path, bars: int = STOPPED, team: str = "scripted") -> None:
    """A session that is stopped after so many bars."""
    request = PaperRequest(
        session=SESSION, team=team, data=ROOT / "data" / "synthetic", timeframe="4h", start="2021-06-10",
        end="2021-06-16", decide_every=1, symbols=("AAAUSDT",), overrides=SETTINGS,
    )  # fmt: skip
    assert run_paper(request, store, runs, AfterBars(bars, set_stop)).why == "stopped"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, Path]]:
    runs = tmp_path_factory.mktemp("runs")
    with Store.open("mem://") as store:
        begin(store, runs)
        yield store, runs


def test_a_shadow_is_compared_on_the_same_bars(stopped: tuple[Store, Path], folder: Path) -> None:
    store, _ = stopped
    same = compare_shadow(SESSION, "scripted", store)
    # It does the same, but for the moment of a second in which a session gets to know a bar.
    assert same.decisions >= STOPPED and abs(same.gain) < 1e-6
    other = compare_shadow(SESSION, str(folder), store)
    assert other.low <= other.gain <= other.high and other.high - other.low > 0.0
    holding = compare_shadow(SESSION, "hold", store)
    assert holding.gain not in (0.0, other.gain)


@pytest.mark.parametrize("before", [True, False])
def test_the_new_team_decides_from_the_resume_on_whatever_is_killed_beside_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    write = Journal.write

    def struck(self: Journal, kind: EntryKind, time: int, document: dict[str, object]) -> None:
        if kind == "promotion" and before:
            raise scene.StruckError
        write(self, kind, time, document)
        if kind == "promotion":
            raise scene.StruckError

    with Store.open("mem://") as store:
        begin(store, tmp_path)
        judge(store, folder)
        promote(SESSION, str(folder), store)
        monkeypatch.setattr(Journal, "write", struck)
        with pytest.raises(scene.StruckError):
            resume_paper(SESSION, store, tmp_path)
        monkeypatch.undo()
        assert resume_paper(SESSION, store, tmp_path).why == "finished"
        entries = entries_of(store, SESSION)
        [place] = [number for number, entry in enumerate(entries) if entry.kind == "promotion"]
        assert entries[place].document["digest"] == team_digest(folder)
        later = [entry for entry in entries[place:] if entry.kind == "decision"]
        assert len(later) > 5 and paper_parity(SESSION, store).differences == ()


def test_a_team_that_has_not_shown_enough_is_refused_with_what_to_do(stopped: tuple[Store, Path], folder: Path) -> None:
    store, _ = stopped
    team = str(folder)
    record = store.run(SESSION)

    def refused(words: str) -> None:
        with pytest.raises(UserError, match=words):
            promote(SESSION, team, store)
        assert store.run(SESSION).config == record.config, "nothing changed"

    refused(r"no verdict of the gate .* run `cryptosentinel evaluate .* --gate`")
    judge(store, folder, run="evaluate-2", digest="another team's", at=GATED + 1)
    refused("no verdict of the gate")
    judge(store, folder, run="evaluate-3", passed=False, at=GATED + 2)
    refused(r"did not pass the gate in evaluate-3 \(better than flat\)")
    judge(store, folder, run="evaluate-4", at=2**42)  # long after the session's bars
    refused(r"has taken 0 decisions since .* passed the gate, and 20 are needed")
    with pytest.raises(UserError, match="is not the folder of a training"):
        promote(SESSION, "scripted", store)
    store.resume_run(replace(store.run(SESSION), status="running"))
    with pytest.raises(UserError, match="stop it first"):
        promote(SESSION, team, store)
    store.finish_run(SESSION, "interrupted", "stopped")


def test_a_promotion_that_only_the_journal_has_lets_no_team_trade(folder: Path, tmp_path: Path) -> None:
    with Store.open("mem://") as store:
        begin(store, tmp_path)
        last = entries_of(store, SESSION)[-1]
        forged = {"team": str(folder), "digest": team_digest(folder), "bar_index": 3}
        Journal(store, SESSION, last.ordinal + 1).write("promotion", last.time, forged)
        resume_paper(SESSION, store, tmp_path)
        decisions = [one.document for one in entries_of(store, SESSION) if one.kind == "decision"]
        names = {one["team"] for each in decisions for one in each["decisions"] if "team" in one}
        assert str(folder) not in names and paper_parity(SESSION, store).differences


def test_a_team_whose_files_changed_does_not_trade_on(folder: Path, tmp_path: Path) -> None:
    mine = Path(shutil.copytree(folder, tmp_path / "mine"))
    with Store.open("mem://") as store:
        begin(store, tmp_path, 3, str(mine))
        manifest = mine / "team.json"
        manifest.write_text(manifest.read_text() + "\n")
        with pytest.raises(UserError, match=r"the files of .* are not those that the session traded with"):
            resume_paper(SESSION, store, tmp_path)
