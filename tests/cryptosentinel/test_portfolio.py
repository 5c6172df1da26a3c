"""Decisions on the whole portfolio: what the manager reads and may ask, and what the scripted team makes of it."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import pytest

from cryptosentinel.agents.manager import AskAnalyst, Decision
from cryptosentinel.agents.registry import ROLES, team_of
from cryptosentinel.episode import play
from cryptosentinel.guard.guard import Guard
from cryptosentinel.guard.limits import GuardLimits
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.protocol.tool_calls import render_call
from cryptosentinel.scheduler import run_all
from cryptosentinel.scripted_team import expert_policies
from cryptosentinel.team import TeamDecision
from simulator.backtest.run import BacktestRun, Window
from simulator.market.market import Market
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.standard_limits import guard_limits
from tests.team_scenes import COINS, SayingEngine, ask, codec, hand_made_account, hold, make_team, submit, synthetic

BARS = (2, 61, *range(130, 310, 10))


def decide(
    engine: Any, bar: int = 180, held: dict[str, float] | None = None, limits: GuardLimits | None = None, **team: Any
) -> TeamDecision:
    """One decision of a portfolio team on all coins of the small market."""
    view = synthetic().view(bar)
    account = hand_made_account(view, held or {})
    task = make_team(portfolio=True, **team).decide(view, account, view.symbols, Guard(limits or guard_limits()), bar)
    return run_all([task], engine)[0]


def read(decision: TeamDecision) -> str:
    return codec().decode(decision.manager.ids)


def result_of(said: str, **kwargs: Any) -> dict[str, Any]:
    """What the manager reads after it said something."""
    text = read(decide(SayingEngine({"manager": [said, submit()]}), **kwargs))
    found: dict[str, Any] = json.loads(text.split("<tool_response>\n")[1].split("\n</tool_response>")[0])
    return found


def test_the_brief_tells_of_the_whole_book_and_names_the_coins_in_its_order() -> None:
    held = {"AAAUSDT": 0.25, "CCCUSDT": -0.4}
    limits = guard_limits(max_gross_exposure=1.5, max_exposure=0.5)
    text = read(decide(SayingEngine({"manager": [submit()]}), held=held, limits=limits))
    assert "gross 0.65, net -0.15, cash 0.35; at most gross 1.5, a coin 0.5" in text
    assert re.findall(r"^(C\d): held (\S+),", text, re.MULTILINE) == [("C1", "0.25"), ("C2", "0.00"), ("C3", "-0.40")]


def test_the_same_coin_has_the_same_name_in_practice_and_in_a_decision() -> None:
    view = synthetic().view(180)
    account = hand_made_account(view, {})
    question = AskAnalyst(symbol="CCCUSDT")
    task = make_team(portfolio=True).consult("consult_market_analyst", question, view, account, 1)
    [practised] = run_all([task], ScriptedEngine(codec(), expert_policies(portfolio=True)))
    engine = SayingEngine({"manager": [ask("market_analyst", "C3"), submit()], "market_analyst": ["no call"]})
    [decided] = decide(engine).transcripts[1:]
    first = [codec().decode(one.ids).split("<|im_start|>assistant")[0] for one in (practised, decided)]
    assert first[0] == first[1] and "C3" in first[0] and practised.brief["symbol"] == "CCCUSDT"


def test_correlations_are_those_of_the_returns_and_equal_risk_fills_the_gross_limit() -> None:
    found = result_of(render_call("get_correlations", {}), bar=300, limits=guard_limits(max_gross_exposure=0.8))
    returns = np.diff(np.log(synthetic().close[300 - 240 : 301]), axis=0)
    wanted = np.corrcoef(returns.T)
    assert found["correlation"] == {
        "C1": {"C2": pytest.approx(wanted[0, 1], abs=0.006), "C3": pytest.approx(wanted[0, 2], abs=0.006)},
        "C2": {"C3": pytest.approx(wanted[1, 2], abs=0.006)},
    }
    shares = 1.0 / returns.std(axis=0)
    np.testing.assert_allclose(list(found["equal_risk"].values()), 0.8 * shares / shares.sum(), atol=0.006)


def test_a_book_that_is_tried_has_its_own_volatility_and_shares_of_risk_that_sum_to_one() -> None:
    book = [{"symbol": "C1", "exposure": 0.5}, {"symbol": "C3", "exposure": -0.3}]
    found = result_of(render_call("what_if_book", {"positions": book}), bar=300, held={"BBBUSDT": 0.4, "AAAUSDT": 0.1})
    moves = np.diff(synthetic().close[300 - 240 : 301], axis=0) / synthetic().close[300 - 240 : 300]
    sigma = float(np.std(moves @ [0.5, 0.4, -0.3], ddof=1)) * math.sqrt(12)
    assert found["volatility"] == pytest.approx(100 * sigma, abs=0.06)
    assert (found["gross"], found["net"], found["cash"]) == pytest.approx((1.2, 0.6, -0.2), abs=1e-9)
    assert sum(found["share_of_risk"].values()) == pytest.approx(1.0, abs=0.02)


def test_an_answer_has_room_for_every_coin_and_the_manager_turns_for_each() -> None:
    engine = SayingEngine({"manager": [ask("market_analyst", "C1"), submit()], "market_analyst": ["no call"]})
    decide(engine)
    assert [(one.role, one.sampling.max_tokens) for one in engine.requests] == [
        ("manager", 96 + 128), ("market_analyst", 96), ("manager", 96 + 128),
    ]  # fmt: skip
    calls = [
        call
        for n in (1, 2, 3)
        for call in [ask("market_analyst", f"C{n}")]
        + [ask(role, f"C{n}", side="long", exposure=0.2) for role in ("risk_analyst", "trader")]
    ]
    decision = decide(
        SayingEngine({"manager": [*calls, submit()], **{role: ["no"] * 3 for role in ROLES if role != "manager"}})
    )
    assert decision.manager.valid and len(decision.transcripts) == 10


def test_the_expert_spends_no_more_than_the_limits_and_asks_about_all_that_it_changes() -> None:
    engine = ScriptedEngine(codec(), expert_policies(portfolio=True))
    limits = guard_limits(max_gross_exposure=0.6, max_exposure=0.3)
    for bar in BARS:
        decision = decide(engine, bar, limits=limits)
        assert decision.manager.answer is not None and decision.clamps == []
        positions = Decision.model_validate(decision.manager.answer).positions
        assert sum(one.exposure for one in positions) <= 0.6 + 1e-9
        asked = {(t.role, t.brief["symbol"]) for t in decision.transcripts[1:]}
        for one in positions:
            symbol = COINS[int(one.symbol[1:]) - 1]
            assert {(role, symbol) for role in ("market_analyst", "risk_analyst", "trader")} <= asked


def episode(market: Market, portfolio: bool) -> tuple[float, float]:
    """Total return and largest gross exposure of the expert team over the market."""
    engine = ScriptedEngine(codec(), expert_policies(portfolio=portfolio))
    run = BacktestRun(market, Window(130, 430, 6))
    found = run_all([play(make_team(portfolio=portfolio, horizon_bars=18), run, guard_limits(), 1)], engine)[0]
    assert not any(decision.events for _, decision in found.decisions)
    return found.result.metrics["total_return"], float(np.abs(found.result.exposure).sum(axis=1).max())


def test_where_there_is_an_edge_the_portfolio_earns_and_stays_near_the_gross_limit() -> None:
    market = generate(SyntheticConfig(bars=440, seed=5, symbols=COINS, drift_ratio=0.6))
    earned, gross = episode(market, portfolio=True)
    assert earned > 0.0 and 0.5 < gross < 1.2


def test_coin_by_coin_reads_nothing_of_the_portfolio() -> None:
    view = synthetic().view(180)
    task = make_team().decide(view, hand_made_account(view, {}), ("BBBUSDT",), Guard(guard_limits()), 1)
    [decision] = run_all([task], SayingEngine({"manager": [submit(hold("C1", "long", 0.3))]}))
    text = codec().decode(decision.manager.ids)
    assert "portfolio" not in text and "gross" not in text and "C1: held 0.0, day" in text
    assert {tool.name for tool in team_of(("market_analyst", "risk_analyst", "trader"))[0].tools}.isdisjoint(
        {"get_correlations", "what_if_book"}
    )
    assert make_team().settings.model_copy(update={"portfolio": True}) == make_team(portfolio=True).settings
