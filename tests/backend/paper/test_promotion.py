"""Another team takes the place of the one that trades: only with a passed gate and as a shadow, once, for good."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import backend.paper.records.stored
from backend.builders.loaded_team import LoadedTeam, scripted_team
from backend.cli.main import app
from backend.config.schema import Config
from backend.evaluation.gate import GATE_RECORD, GateRule, GateVerdict
from backend.models.team_digest import team_digest
from backend.paper.journal import EntryKind, Journal, entries_of
from backend.paper.promotion import check
from backend.paper.promotion.check import promotable
from backend.paper.promotion.request import PROMOTE_FILE, read_request, request_promotion
from backend.paper.records.stored import shadow_name
from backend.paper.review.drift import paper_drift
from backend.paper.sessions import PaperOutcome, PaperRequest, paper_parity, paper_status, resume_paper, run_paper
from backend.paper.switch import set_stop
from backend.store.records import EvaluationRecord, RunRecord
from backend.store.run_record import own_config
from backend.store.store import Store
from simulator.errors import UserError
from tests.backend.paper import paper_scenes as scene
from tests.backend.paper.live_scenes import AfterBars
from tests.small_world import team_in

ROOT = Path(__file__).resolve().parents[3]
SESSION = "paper-promoted"
SETTINGS = ("paper.history_bars=130", "paper.snapshot_bars=50", "costs.thinking_time=20")
SHADOWED, BARS = 22, 36  # bars before the promotion, and in all


@pytest.fixture(scope="module", autouse=True)
def _few_decisions() -> Iterator[None]:
    """A shadow of 20 decisions is enough here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "SHADOW_DECISIONS", 20)
        yield


@pytest.fixture(scope="module")
def folder(nano: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return team_in(tmp_path_factory.mktemp("teams") / "better", nano)


@pytest.fixture(autouse=True, scope="module")
def quick_teams() -> Iterator[None]:
    """The files are those of a trained team; what they answer is said by rules, other ones than the trading team's."""

    def team(name: str, config: Config) -> LoadedTeam:
        return scripted_team(config.team, "expert" if name == "scripted" else "random_all").renamed(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend.paper.records.stored, "subject_of", team)
        yield


def judge(
    store: Store, folder: Path, passed: bool = True, run: str = "evaluate-1", digest: str = "", at: int = 0
) -> None:
    """Record a verdict of the gate; the time is `at` (ms), or that in the id."""
    config = {"config": Config().to_dict()}
    store.add_run(RunRecord(run, "evaluate", 1, "hash", at or int(run[-1]), config))
    rules = (GateRule("windows", True, "enough"), GateRule("better than flat", passed, "by far"))
    verdict = GateVerdict(str(folder), digest or team_digest(folder), "hash", rules)
    store.add_evaluation(EvaluationRecord(run, GATE_RECORD, 0, verdict.to_json()))
    store.finish_run(run, "finished")


def shadowed(store: Store, runs: Path, folder: Path, shadow: str = "") -> PaperOutcome:
    """A session with the team as its shadow, stopped after it has decided often enough."""
    request = PaperRequest(
        session=SESSION, shadow=shadow or str(folder), data=ROOT / "data" / "synthetic", timeframe="4h",
        start="2021-06-10", end="2021-06-16", decide_every=1, symbols=("AAAUSDT",), overrides=SETTINGS,
    )  # fmt: skip
    return run_paper(request, store, runs, AfterBars(SHADOWED, set_stop))


def books(store: Store, run: str = SESSION) -> list[Any]:
    return scene.books(entries_of(store, run))


def promote(store: Store, runs: Path) -> None:
    record = store.run(SESSION)
    proof = promotable(store, record, own_config(record))
    request_promotion(runs / SESSION, proof.team, proof.digest)


@pytest.fixture(scope="module")
def promoted(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, Path]]:
    """A session in which the shadow has taken the place, to its end."""
    runs = tmp_path_factory.mktemp("runs")
    with Store.open("mem://") as store:
        assert shadowed(store, runs, folder).why == "stopped"
        judge(store, folder)
        promote(store, runs)
        assert resume_paper(SESSION, store, runs).why == "finished"
        yield store, runs


def test_the_new_team_decides_from_then_on_and_a_backtest_does_the_same(
    promoted: tuple[Store, Path], folder: Path
) -> None:
    store, runs = promoted
    entries = entries_of(store, SESSION)
    [place] = [number for number, entry in enumerate(entries) if entry.kind == "promotion"]
    said = entries[place].document
    assert (said["team"], said["digest"], said["gate"]) == (str(folder), team_digest(folder), "evaluate-1")
    assert said["decisions"] >= 20 and "shadow" in said["comparison"]
    assert entries[place + 1].kind == "decision", "at the boundary of a decision"
    assert said["bar_index"] == entries[place + 1].document["bar"]
    assert paper_parity(SESSION, store).differences == ()
    shadow = shadow_name(store.run(SESSION))
    assert store.run(shadow).status == "finished" and paper_parity(shadow, store).differences == ()
    assert len(books(store, shadow)) < len(books(store, SESSION)), "it is the shadow no longer"
    assert not (runs / SESSION / PROMOTE_FILE).exists()
    assert paper_drift(SESSION, store).missing, "a team in place for two weeks at least has a drift of its own"
    # What it decides is its own: as the shadow it decided otherwise than the team that traded.
    mine, other = (
        {one.document["bar"]: [made["orders"] for made in one.document["decisions"]]
         for one in entries_of(store, run) if one.kind == "decision"}
        for run in (SESSION, shadow)
    )  # fmt: skip
    assert any(mine[bar] != orders for bar, orders in other.items() if bar in mine and bar < said["bar_index"])


@pytest.mark.parametrize("before", [True, False])
def test_a_kill_beside_the_promotion_neither_loses_nor_repeats_it(
    promoted: tuple[Store, Path], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    write = Journal.write

    def struck(self: Journal, kind: EntryKind, time: int, document: dict[str, Any]) -> None:
        if kind == "promotion" and before:
            raise scene.StruckError
        write(self, kind, time, document)
        if kind == "promotion":
            raise scene.StruckError

    with Store.open("mem://") as store:
        shadowed(store, tmp_path, folder)
        judge(store, folder)
        promote(store, tmp_path)
        monkeypatch.setattr(Journal, "write", struck)
        with pytest.raises(scene.StruckError):
            resume_paper(SESSION, store, tmp_path)
        monkeypatch.undo()
        assert read_request(tmp_path / SESSION) is not None
        assert resume_paper(SESSION, store, tmp_path).why == "finished"
        assert books(store) == books(promoted[0])
        assert [entry.kind for entry in entries_of(store, SESSION)].count("promotion") == 1
        assert read_request(tmp_path / SESSION) is None
        assert paper_parity(SESSION, store).differences == ()


@pytest.fixture(scope="module")
def waiting(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, Path]]:
    """A session that was stopped, whose shadow has decided often enough."""
    runs = tmp_path_factory.mktemp("waiting")
    with Store.open("mem://") as store:
        shadowed(store, runs, folder)
        yield store, runs


def test_what_was_not_shown_is_refused_with_what_to_do(
    waiting: tuple[Store, Path], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = waiting
    record = store.run(SESSION)
    config = own_config(record)
    with pytest.raises(UserError, match=r"no verdict of the gate .* run `cryptosentinel evaluate .* --gate`"):
        promotable(store, record, config)
    judge(store, folder, run="evaluate-2", digest="another team's")
    with pytest.raises(UserError, match="no verdict of the gate"):
        promotable(store, record, config)
    judge(store, folder, run="evaluate-3")
    assert promotable(store, record, config, str(folder)).gate == "evaluate-3"
    judge(store, folder, passed=False, run="evaluate-4")
    with pytest.raises(UserError, match=r"did not pass the gate in evaluate-4 \(better than flat\)"):
        promotable(store, record, config)  # the newest verdict counts
    judge(store, folder, run="evaluate-5")
    [verdict] = store.evaluations("evaluate-5")
    theirs = replace(store.run("evaluate-5"), run="evaluate-6", started_at=6, status="finished", imported=True)
    store.add_run(theirs)
    store.add_evaluation(replace(verdict, run="evaluate-6"))
    assert promotable(store, record, config).gate == "evaluate-5", "an imported verdict admits no team"
    with (
        monkeypatch.context() as patch,
        pytest.raises(UserError, match=r"has decided \d+ times .* 500 are asked for .* wait for 4\d\d more"),
    ):
        patch.setattr(check, "SHADOW_DECISIONS", 500)
        promotable(store, record, config)
    with pytest.raises(UserError, match=r"elsewhere is not the shadow of session .* paper resume"):
        promotable(store, record, config, "elsewhere")
    with pytest.raises(UserError, match="promote that one's"):
        promotable(store, store.run(shadow_name(record)), config)
    alone = RunRecord(
        SESSION, "paper", 1, "h", 0, {name: one for name, one in record.config.items() if name != "shadow"}
    )
    with pytest.raises(UserError, match=r"has no shadow, .* go on with `cryptosentinel paper resume"):
        promotable(store, alone, config)
    shutil.copytree(folder, tmp_path / "kept")
    weights = next(folder.joinpath("adapters").rglob("*.safetensors"))
    content = weights.read_bytes()
    try:
        weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(UserError, match="are not those that have been the shadow"):
            promotable(store, record, config)
    finally:
        weights.write_bytes(content)


def test_a_request_that_nobody_checked_changes_nothing(folder: Path, tmp_path: Path) -> None:
    """The file can be made by anybody; the session looks at the proofs itself, and says why not."""
    with Store.open("mem://") as store:
        shadowed(store, tmp_path, folder)
        request_promotion(tmp_path / SESSION, str(folder), team_digest(folder))
        assert resume_paper(SESSION, store, tmp_path).why == "finished"
        entries = entries_of(store, SESSION)
        assert not [entry for entry in entries if entry.kind == "promotion"]
        [refused] = [one.document for one in entries if one.kind == "notice" and one.document["kind"] == "promotion"]
        assert "no verdict of the gate" in refused["detail"] and not (tmp_path / SESSION / PROMOTE_FILE).exists()
        assert paper_parity(SESSION, store).differences == ()


def test_a_session_gets_another_shadow_when_it_goes_on(folder: Path, tmp_path: Path) -> None:
    with Store.open("mem://") as store:
        shadowed(store, tmp_path, folder, shadow="scripted")
        resume_paper(SESSION, store, tmp_path, shadow=str(folder))
        record = store.run(SESSION)
        assert (record.config["shadow"], shadow_name(record)) == (str(folder), f"{SESSION}-shadow-2")
        assert store.run(f"{SESSION}-shadow").status == "finished"
        _, outcome = paper_status(shadow_name(record), store, tmp_path)
        assert outcome.missed >= SHADOWED - 2 and outcome.decisions > 5, "what was over when it came, it has missed"
        assert paper_parity(shadow_name(record), store).differences == ()


def test_a_team_whose_files_changed_does_not_trade_on(folder: Path, nano: Path, tmp_path: Path) -> None:
    mine = team_in(tmp_path / "mine", nano)
    with Store.open("mem://") as store:
        request = PaperRequest(
            session=SESSION, team=str(mine), data=ROOT / "data" / "synthetic", timeframe="4h", start="2021-06-10",
            end="2021-06-12", decide_every=3, symbols=("AAAUSDT",), overrides=SETTINGS,
        )  # fmt: skip
        run_paper(request, store, tmp_path, AfterBars(3, set_stop))
        manifest = mine / "team.json"
        manifest.write_text(manifest.read_text() + "\n")
        with pytest.raises(UserError, match=r"the files of .* are not those that the session traded with"):
            resume_paper(SESSION, store, tmp_path)


def test_the_command_says_what_comes_next(
    waiting: tuple[Store, Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, runs = waiting
    monkeypatch.setattr("backend.store.run_record.Store.open", lambda *_: store)
    monkeypatch.setattr(Store, "close", lambda _: None)
    judge(store, folder, run="evaluate-9")
    result = CliRunner().invoke(app, ["paper", "promote", SESSION, "--runs", str(runs), "--team", str(folder)])
    assert result.exit_code == 0, result.output
    words = " ".join(result.output.split())
    assert "passed the gate in evaluate-9" in words and f"paper resume {SESSION}" in words
    asked = read_request(runs / SESSION)
    assert asked is not None and (asked.team, asked.digest) == (str(folder), team_digest(folder))
