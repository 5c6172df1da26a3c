"""Memory and remarks in runs: a backtest remembers where it is asked to, training never does, the report says what a
reader must know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backend.builders.loaded_team import LoadedTeam, scripted_team
from backend.builders.market import account_of
from backend.builders.teams import load_team
from backend.config.load import config_from_dict
from backend.config.schema import TeamConfig
from backend.models.manifest import TeamManifest, write_manifest
from backend.runs.backtest import BacktestPlan, play_backtest
from backend.store.store import Store
from backend.training.curriculum.queries import QueryPool
from backend.training.rollout.collect import collect
from cryptosentinel.llm.chat_codec import make_byte_codec
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.scripted_team import expert_policies
from cryptosentinel.team import Team
from simulator.backtest.run import Window
from tests.small_world import HORIZON, TRAIN, rollout_settings, small_config, small_market


def backtested(folder: Path, subject: LoadedTeam, *notes: str) -> tuple[list[Any], list[str], str]:
    """The documents, the notes and the report of a backtest of `subject` on a small market."""
    config = config_from_dict({"evaluation": {"baselines": ["hold"]}}, "test")
    market = small_market()
    with Store.open(folder / "store") as store:
        account = account_of(config, market)
        plan = BacktestPlan(config, market, account, Window(300, 360, 6), [subject], notes=notes)
        path = play_backtest(plan, store, "b", folder / "b")
        record = store.run("b")
        assert record.status == "finished" and record.config["teams"] == [subject.name]
        return [one.document for one in store.decisions("b")], record.config["notes"], path.read_text()


def briefs(documents: list[Any]) -> list[str]:
    return [document["conversations"][0]["messages"][1]["content"] for document in documents]


@pytest.mark.parametrize("lessons", [0, 2])
def test_a_backtest_shows_as_many_lessons_as_are_set(tmp_path: Path, lessons: int) -> None:
    subject = scripted_team(TeamConfig(memory=lessons, horizon_bars=6))
    documents, notes, _ = backtested(tmp_path, subject)
    assert [brief.count("lesson, ") for brief in briefs(documents)] == [min(lessons, n) for n in range(10)]
    assert notes == []


def test_off_is_the_default() -> None:
    assert TeamConfig().memory == 0 and scripted_team(TeamConfig()).team.settings.memory == 0


def test_training_shows_no_lesson_whatever_is_set() -> None:
    config = small_config()
    loaded = scripted_team(config.team.model_copy(update={"memory": 50}))
    queries = QueryPool(small_market(), *TRAIN, HORIZON).draw(1, 0, 4, easy=False)
    rollouts = collect(loaded.team, loaded.engine, queries, rollout_settings(config), 1)
    plain = scripted_team(config.team)
    same = collect(plain.team, plain.engine, queries, rollout_settings(config), 1)
    ids = [[[one.decision.manager.ids for one in row] for row in found] for found in (rollouts, same)]
    assert ids[0] == ids[1] and ids[0]
    told = make_byte_codec().messages(ids[0][0][0])[1]["content"]
    assert "held" in told and "lesson" not in told


def test_a_trained_team_takes_its_memory_from_the_run_and_the_rest_from_its_training(
    tmp_path: Path, nano: Path
) -> None:
    write_manifest(tmp_path, TeamManifest.of(small_config(), base=str(nano), adapters=None))
    settings = load_team(str(tmp_path), TeamConfig(memory=3, horizon_bars=99), base=str(nano)).team.settings
    assert (settings.memory, settings.horizon_bars) == (3, HORIZON)


def test_the_report_names_a_role_that_never_answered(tmp_path: Path) -> None:
    scripted = scripted_team(TeamConfig())
    engine = ScriptedEngine(make_byte_codec(), {**expert_policies(), "manager": lambda messages, seed: "<b>Well."})
    team = Team(scripted.team.codec, engine.policy_version, scripted.team.settings)
    documents, notes, report = backtested(tmp_path, LoadedTeam("mute", team, engine), "as it was asked")
    assert len(documents) == 10 and all(document["events"] for document in documents)
    assert notes[0] == "as it was asked"
    assert "DeepTraderManager gave no valid answer in any of 10 conversations" in notes[1]
    assert all(f'<p class="warning">{note}.</p>' in report for note in notes)
    assert not any(document["orders"] for document in documents)
