"""A stored decision replayed: the same without a change, another with one, and every mistake in a sentence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from backend.decisions.document import StoredDecision
from backend.reporting.decision_narrative import paired_rows
from backend.runs.backtest import backtest_teams
from backend.runs.replay import DecisionReplay, GivenAnswer, parse_answers, replay_decision
from backend.runs.requests import BacktestRequest
from backend.store.store import Store
from simulator.data.archive import write_market
from simulator.errors import UserError
from tests.backend.runs.conftest import END, START
from tests.stored_runs import small_market

AS_IT_WAS: dict[str, GivenAnswer] = {}
DOWN = {"up": 0.02, "flat": 0.03, "down": 0.95}


def replayed(played: Path, number: int, instead: Mapping[str, GivenAnswer], team: str = "scripted") -> DecisionReplay:
    with Store.open(played / "store") as store:
        run = store.runs()[-1].run
        return replay_decision(store, run, number, instead, team=team)


def comparable(decision: StoredDecision) -> dict[str, object]:
    """What was said and done, without how it was sampled and what the guard did later."""
    document = json.loads(json.dumps(decision.document.to_json()))
    for conversation in document["conversations"]:
        conversation.pop("usage")
    return {name: value for name, value in document.items() if name != "later"}


@pytest.mark.parametrize("number", [0, 7, 15])
@pytest.mark.parametrize("backtest", ["scripted", "scripted, no Trader", "scripted, days shuffled"])
def test_without_a_change_the_decision_is_what_it_was(played: Path, number: int, backtest: str) -> None:
    replay = replayed(played, number, AS_IT_WAS, backtest.replace("no Trader", "without Trader"))
    assert replay.same and replay.asked == 0
    assert comparable(replay.now) == comparable(replay.then)
    assert not any(row.differs for row in paired_rows(replay.then_tree, replay.now_tree))


def test_another_forecast_is_answered_by_the_others(played: Path) -> None:
    number = next(n for n in range(16) if not said_down(replayed(played, n, AS_IT_WAS)))
    replay = replayed(played, number, {"market_analyst": DOWN})
    assert replay.asked > 0
    rows = {row.label: row for row in paired_rows(replay.then_tree, replay.now_tree)}
    assert rows["MarketAnalyst 1"].differs and "down 95 %" in rows["MarketAnalyst 1"].now
    assert not rows["Situation"].differs
    assert replay.now.document.equity_before == replay.then.document.equity_before


def said_down(replay: DecisionReplay) -> bool:
    return any(one.role == "market_analyst" and one.answer is not None and float(str(one.answer["down"])) >= 0.5
               for one in replay.then.document.conversations)  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("nobody={}", "no role 'nobody'"),
        ("market_analyst=up", "not JSON"),
        ("market_analyst=[1]", "not a JSON object"),
        ("market_analyst", "names nothing to change"),
        ('market_analyst={"up": 7}', "cannot answer that"),
    ],
)
def test_a_mistake_is_a_sentence(played: Path, answer: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        replayed(played, 0, parse_answers([answer]))


def test_data_that_changed_and_a_team_that_is_gone_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_market(small_market(), tmp_path / "bars")
    request = BacktestRequest(
        data="bars", start=START, end=END, baselines=(), teams=("scripted",), record=Path("runs/tape.jsonl")
    )
    run = backtest_teams(request, "store", Path("runs")).run
    again = BacktestRequest(data="bars", start=START, end=END, baselines=(), teams=("runs/tape.jsonl",))
    taped = backtest_teams(again, "store", Path("runs")).run
    new = {"market_analyst": DOWN}
    with Store.open("store") as store:
        assert replay_decision(store, taped, 1, AS_IT_WAS).same
        with pytest.raises(UserError, match="recording"):
            replay_decision(store, taped, 5, new)
        assert replay_decision(store, taped, 5, new, by="rules").asked > 0
        Path("runs/tape.jsonl").unlink()
        with pytest.raises(UserError, match=r"no team 'runs/tape\.jsonl'"):
            replay_decision(store, taped, 1, AS_IT_WAS)
        close = small_market().close.copy()
        close[-1] *= 1.001
        write_market(replace(small_market(), close=close, high=small_market().high * 1.01), tmp_path / "bars")
        with pytest.raises(UserError, match="has changed since"):
            replay_decision(store, run, 1, AS_IT_WAS)
