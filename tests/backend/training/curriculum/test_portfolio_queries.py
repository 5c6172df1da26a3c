"""Queries on a whole portfolio: what they hold, and that a decision on one is worth what the exchange earns with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.config.training import TrainingConfig
from backend.training.curriculum.queries import PortfolioQuery, QueryPool, pools_of
from backend.training.learning.training_metrics import market_move, ordered_exposure
from backend.training.rollout.collect import RolloutSettings, collect, practise
from backend.training.rollout.scoring import RolloutScorer
from cryptosentinel.agents.manager import Decision
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.scripted_team import novice_policies
from cryptosentinel.tools.context import book_volatility, horizon_volatility
from simulator.backtest.run import orders_for_target
from simulator.exchange.costs import Costs
from simulator.exchange.exchange import Exchange
from simulator.exchange.orders import Order
from simulator.market.market import Market
from simulator.synthetic.beliefs import regime_beliefs
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.standard_limits import guard_limits
from tests.team_scenes import COINS, codec, make_team

HORIZON = 6
WITH_TRUTH = generate(SyntheticConfig(bars=420, seed=2, symbols=COINS))
RECORDED = replace(WITH_TRUTH, truth=None)


def portfolio_pool(market: Market = WITH_TRUTH, gross: float = 1.0) -> QueryPool:
    return QueryPool(market, 0, 400, HORIZON, gross_limit=gross)


def unlisted(market: Market, column: int, bars: int) -> Market:
    """A coin that has no bar before `bars`."""
    arrays: dict[str, Any] = {}
    for name in ("open", "high", "low", "close", "volume", "half_spread"):
        arrays[name] = getattr(market, name).copy()
        arrays[name][:bars, column] = np.nan
    return replace(market, **arrays)


def settings_of(paths: int = 4) -> RolloutSettings:
    return RolloutSettings(2, paths, HORIZON, Costs(), 1.0, guard_limits())


@given(st.integers(0, 40), st.sampled_from([0.3, 1.0, 2.0]), st.booleans())
@settings(max_examples=25, deadline=None)
def test_what_is_held_is_within_the_gross_limit_and_all_coins_are_there(step: int, gross: float, easy: bool) -> None:
    for query in portfolio_pool(gross=gross).draw(3, step, 8, easy=easy):
        assert isinstance(query, PortfolioQuery) and query.symbols == COINS and query.symbol in COINS
        assert sum(map(abs, query.held)) <= gross + 1e-12
        account = query.account()
        worth = account.cash + sum(account.positions[s] * query.view().last_close(s) for s in COINS)
        assert worth == pytest.approx(account.equity) and account.exposure == query.exposures()
        assert query.exposure == query.exposures()[query.symbol]


def test_the_same_seed_and_step_draw_the_same_and_books_differ() -> None:
    drawn = portfolio_pool().draw(3, 1, 40, easy=False)
    assert drawn == portfolio_pool().draw(3, 1, 40, easy=False) != portfolio_pool().draw(4, 1, 40, easy=False)
    assert {query.symbol for query in drawn} == set(COINS) and len({str(query.exposures()) for query in drawn}) > 15
    assert 3 <= sum(not any(query.exposures().values()) for query in drawn) < 30, "some start from cash alone"


def test_the_outcome_s_unit_is_the_volatility_of_equal_parts_known_at_the_bar() -> None:
    [query] = portfolio_pool().draw(3, 0, 1, easy=False)
    closes = WITH_TRUTH.close[query.bar - 60 : query.bar + 1]
    equal = np.diff(np.log(closes), axis=0).mean(axis=1)
    assert query.volatility == pytest.approx(float(equal.std()) * np.sqrt(HORIZON), rel=1e-12)
    view = query.view()
    assert book_volatility(view, COINS[:1], 9) == pytest.approx(horizon_volatility(view, COINS[0], 9), rel=1e-12)


def exchange_earns(query: PortfolioQuery, orders: list[Order]) -> float:
    """What a real account that holds the query's book earns over the recorded path with these orders."""
    held = query.account()
    exchange = Exchange(query.market, query.bar, held.equity, Costs())
    assert not any(query.held), "the exchange begins with cash"
    for order in orders:
        exchange.submit(order)
    exchange.step(HORIZON)
    return exchange.account().equity / held.equity - 1.0


@given(st.lists(st.floats(-0.5, 0.5), min_size=3, max_size=3), st.integers(0, 30))
@settings(max_examples=30, deadline=None)
def test_a_decision_is_worth_what_the_exchange_earns_over_the_recorded_path(targets: list[float], step: int) -> None:
    [query] = portfolio_pool(RECORDED).draw(3, step, 1, easy=False)
    assert isinstance(query, PortfolioQuery)
    query = replace(query, held=(0.0, 0.0, 0.0), exposure=0.0)
    view, account = query.view(), query.account()
    orders = [
        order
        for symbol, target in zip(COINS, targets, strict=True)
        for order in orders_for_target(view, account, symbol, target)
    ]
    outcome = RolloutScorer(query, 1, HORIZON, Costs(), 1.0).outcome(orders)
    assert outcome.net_return == pytest.approx(exchange_earns(query, orders), abs=1e-9)
    assert outcome.score == pytest.approx(0.5 * (1.0 + np.tanh(outcome.net_return / query.volatility)), abs=1e-9)


def test_what_is_held_earns_its_parts_of_the_moves() -> None:
    query = next(
        one
        for one in portfolio_pool(RECORDED).draw(3, 0, 40, easy=False)
        if sum(map(bool, one.exposures().values())) > 1
    )
    outcome = RolloutScorer(query, 1, HORIZON, Costs(), 1.0).outcome([])
    moves = RECORDED.close[query.bar + HORIZON] / RECORDED.close[query.bar] - 1.0
    assert outcome.net_return + outcome.funding == pytest.approx(
        float(moves @ np.array(list(query.exposures().values()))), abs=1e-9
    )


def test_scenarios_are_joint_and_begin_with_what_could_be_believed_of_every_coin() -> None:
    training = TrainingConfig(scenario_source="beliefs")
    [pool] = pools_of(training, WITH_TRUTH, [(130, 400)], HORIZON, 1.0)
    believed = regime_beliefs(WITH_TRUTH)
    for query in pool.draw(1, 0, 4, easy=False):
        assert isinstance(query, PortfolioQuery) and query.beliefs is not None
        np.testing.assert_array_equal(np.array(query.beliefs), believed[query.bar])
        paths = query.scenarios(200, HORIZON)
        assert paths.shape == (200, HORIZON, 3)
        ends = paths.close[:, -1] / WITH_TRUTH.close[query.bar]
        assert np.corrcoef(ends.T)[0, 1] > 0.2, "the coins move together in a scenario"


def test_a_coin_that_is_not_listed_yet_is_named_and_never_held_or_scored() -> None:
    market = unlisted(RECORDED, 1, 300)
    drawn = [one for one in portfolio_pool(market).draw(3, 0, 60, easy=False) if one.bar < 300]
    assert drawn and all(one.symbols == COINS and one.symbol != COINS[1] for one in drawn)
    assert not any(one.exposures()[COINS[1]] for one in drawn)
    engine = ScriptedEngine(codec(), novice_policies(portfolio=True))
    for group in collect(make_team(portfolio=True, horizon_bars=HORIZON), engine, drawn[:6], settings_of(1), 1):
        for rollout in group:
            assert np.isfinite(
                [rollout.outcome.score, ordered_exposure(rollout), market_move(rollout.query, HORIZON)]
            ).all()
            assert not any(order.symbol == COINS[1] for order in rollout.decision.orders)
            for call, transcript in zip(rollout.subs, rollout.decision.transcripts[1:], strict=True):
                assert call.expert is None or transcript.brief["symbol"] != COINS[1]


def test_rollouts_decide_on_all_coins_and_what_the_guard_holds_back_counts() -> None:
    """A rotation: the purchase of one coin waits until the sale of the other has filled, and is worth its part."""
    query = portfolio_pool().draw(3, 0, 1, easy=False)[0]
    assert isinstance(query, PortfolioQuery)
    query = replace(query, held=(1.0, 0.0, 0.0), exposure=0.0, symbol=COINS[1])

    def rotate(messages: Any, seed: int) -> str:
        return (
            '<tool_call>\n{"name": "submit_decision", "arguments": {"positions": [{"symbol": "C1", "side": "flat", '
            '"exposure": 0.0}, {"symbol": "C2", "side": "long", "exposure": 0.8}]}}\n</tool_call>'
        )

    engine = ScriptedEngine(codec(), {"manager": rotate})
    [[rollout, _]] = collect(make_team(portfolio=True, horizon_bars=HORIZON), engine, [query], settings_of(), 1)
    assert rollout.decision.symbols == COINS and Decision.model_validate(rollout.decision.manager.answer)
    assert {order.symbol for order in rollout.decision.orders} == {COINS[0]}
    [later] = rollout.later
    assert later.symbol == COINS[1] and later.delay == 1
    assert later.quantity * query.view().last_close(COINS[1]) == pytest.approx(8000.0, rel=1e-6)
    assert ordered_exposure(rollout) == pytest.approx(0.8, abs=1e-6)
    scorer = settings_of().scorer(query)
    assert (
        rollout.outcome == scorer.outcome([*rollout.decision.orders, later]) != scorer.outcome(rollout.decision.orders)
    )


def test_practice_asks_about_the_drawn_coin_in_sizes_of_a_portfolio() -> None:
    queries = portfolio_pool().draw(3, 0, 6, easy=False)
    engine = ScriptedEngine(codec(), novice_policies(portfolio=True))
    for query, group in zip(
        queries,
        practise(make_team(portfolio=True, horizon_bars=HORIZON), engine, queries, settings_of(), 1),
        strict=True,
    ):
        for attempt in group:
            assert {one.brief["symbol"] for one in attempt.transcripts} == {query.symbol}
            assert {one.brief.get("exposure", 0.33) for one in attempt.transcripts} <= {0.33, 0.67}
            held = query.exposures()[query.symbol]
            for sub, one in zip(attempt.subs, attempt.transcripts, strict=True):
                sign = 1.0 if one.brief.get("side") == "long" else -1.0
                changes = sub.role != "trader" or abs(sign * one.brief["exposure"] - held) > 0.005
                # Also where other coins fill the account: how one is traded has nothing to do with them.
                assert not sub.valid or (sub.expert is not None) == changes
