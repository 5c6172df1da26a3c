"""The way of a trained team, by its commands: gate, promotion, parity, and a training on what the session
recorded, with the model that ships. Only a passed verdict is stood in for: to be ahead for certain takes some
hundred decisions, and so minutes."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from backend.cli.main import app
from backend.evaluation import gate as gate_rules
from backend.models.manifest import SAMPLE_TEAM, sample_team
from backend.models.team_digest import team_digest
from backend.paper import shadow
from backend.paper.journal import entries_of
from backend.paper.sessions import PaperRequest, run_paper
from backend.paper.switch import set_stop
from backend.store.store import Store
from simulator.errors import UserError
from tests.backend.paper.live_scenes import AfterBars
from tests.backend.paper.test_shadow import judge

ROOT = Path(__file__).resolve().parents[3]
SESSION, STOPPED = "paper-trained", 22
SMALL_GATE = (
    "market.coins=1", "market.bars=1200", "evaluation.windows=2", "evaluation.decisions_per_window=2",
    "evaluation.states=8",
)  # fmt: skip
SMALL_TRAINING = (
    "training.stage1_steps=1", "training.stage1_max_steps=1", "training.stage2_steps=1", "training.queries_per_step=2",
    "training.rollouts_per_query=2", "training.validation_queries=2", "training.validation_every=1",
    "training.gate_format=0", "training.rollback_format=0", "team.horizon_bars=3", "market.shares=[0.5, 0.2]",
)  # fmt: skip


def settings(*texts: str) -> list[str]:
    return [word for text in texts for word in ("--set", text)]


@pytest.mark.slow
def test_a_trained_team_takes_the_place_and_learns_from_what_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shadow, "LEAST_DECISIONS", 20)
    monkeypatch.setattr(gate_rules, "RIVALS", ("flat",))
    kept = ["--store", "store", "--runs", "runs"]

    def said(*words: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, [*words, *kept])
        assert result.exit_code == code, result.output
        return result.output

    digest = team_digest(sample_team())
    request = PaperRequest(
        session=SESSION, team="scripted", data=ROOT / "data" / "synthetic", timeframe="4h",
        start="2021-06-10", end="2021-06-18", decide_every=1, symbols=("AAAUSDT",),
        overrides=("paper.history_bars=130", "costs.thinking_time=20"),
    )  # fmt: skip
    assert run_paper(request, "store", Path("runs"), AfterBars(STOPPED, set_stop)).why == "stopped"
    gate = ("--gate", "--baselines", "flat", *settings(*SMALL_GATE))
    assert "FAIL  windows: 2 held-out windows, at least 12" in said("evaluate", SAMPLE_TEAM, *gate, code=1)
    promotes = ["paper", "promote", SESSION, "--team", SAMPLE_TEAM, "--store", "store"]
    refused = CliRunner().invoke(app, promotes).exception
    assert isinstance(refused, UserError) and "did not pass the gate in evaluate-" in str(refused)
    with Store.open("store") as store:
        [failed] = [record.run for record in store.runs() if record.kind == "evaluate"]
        store.delete_run(failed)
        judge(store, sample_team())
    promoted = CliRunner().invoke(app, promotes)
    assert promoted.exit_code == 0, promoted.output
    said("paper", "resume", SESSION)
    said("paper", "report", SESSION)  # exit code 1 where anything differs from the backtest

    said("train", "--from-paper", SESSION, *settings(f"training.start_from={SAMPLE_TEAM}", *SMALL_TRAINING))
    with Store.open("store") as store:
        entries = entries_of(store, SESSION)
        [place] = [number for number, entry in enumerate(entries) if entry.kind == "promotion"]
        assert entries[place].document["digest"] == digest
        later = [entry for entry in entries[place:] if entry.kind == "decision"]
        assert len(later) > 10 and entries[-1].kind == "end"
        for entry in later:  # a model spoke, and its turns are there
            assert all(decision["conversations"] for decision in entry.document["decisions"])
        [trained] = [record for record in store.runs() if record.kind == "train"]
        assert trained.status == "finished" and trained.config["origin"]["session"] == SESSION
    folder = Path("runs") / trained.run
    assert team_digest(folder) != digest
    few = ("windows=2", "decisions_per_window=1")
    said("evaluate", str(folder), *settings(*(f"evaluation.{one}" for one in few)))
    with Store.open("store") as store:
        [judged] = [one for one in store.runs() if one.kind == "evaluate" and one.data_hash == trained.data_hash]
        assert judged.status == "finished" and store.evaluations(judged.run)
