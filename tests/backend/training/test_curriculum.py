"""The two stages and the gate between them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from backend.builders.market import split
from backend.config.market import MarketConfig
from backend.config.training import TrainingConfig
from backend.training.algorithm.rewards import ALPHA
from backend.training.curriculum.curriculum import Curriculum
from backend.training.curriculum.queries import HELD, WARM_UP_BARS, PortfolioQuery, QueryPool, account_holding, pools_of
from backend.training.learning.training_metrics import ordered_exposure
from backend.training.rollout.collect import RolloutSettings, collect, practise
from backend.training.rollout.scoring import RolloutScorer
from cryptosentinel.agents.manager import Decision
from cryptosentinel.agents.registry import ROLES
from cryptosentinel.conversation.masking import Mask
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.protocol.tool_calls import NoArguments
from cryptosentinel.scripted_team import novice_policies
from cryptosentinel.tools import market as tools
from cryptosentinel.tools.context import ToolContext, book_volatility, horizon_volatility
from simulator.backtest.run import orders_for_target
from simulator.errors import DataError
from simulator.exchange.costs import Costs
from simulator.exchange.exchange import Exchange
from simulator.exchange.orders import Order
from simulator.market.market import Market
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from simulator.synthetic.oracle import regime_beliefs
from simulator.synthetic.truth import truth_of
from tests.standard_limits import guard_limits
from tests.standard_settings import standard_curriculum
from tests.team_scenes import COINS as THREE
from tests.team_scenes import codec, make_team

PLAN = standard_curriculum(stage1_steps=2, stage1_max_steps=6, stage2_steps=4, gate_format=0.9, beta=(0.1, 0.4, 0.5))


def changed(plan: Curriculum, **changes: object) -> Curriculum:
    return Curriculum(plan.config.model_copy(update=changes))


def test_stage_1_pays_for_format_and_expertise_on_easy_states_and_stage_2_as_configured_on_all() -> None:
    first, second = PLAN.stage(1), PLAN.stage(2)
    assert (first.easy, first.alpha, first.beta) == (True, (1.0, 0.0), (0.1, 0.0, 0.9))
    assert (second.easy, second.alpha, second.beta) == (False, ALPHA, PLAN.config.beta)


@given(st.dictionaries(st.sampled_from(["manager", "trader", "risk_analyst"]), st.floats(0, 1)))
def test_the_gate_opens_when_every_role_that_spoke_keeps_the_format(valid: dict[str, float]) -> None:
    opened = PLAN.gate_passed(valid)
    assert opened == (min(valid.values(), default=1.0) >= 0.9)
    named = PLAN.failed_roles(valid)
    assert opened == (named == "")
    for role, share in valid.items():
        assert (role in named) == (share < 0.9)


@given(end=st.floats(0.0, 1.0), steps=st.integers(1, 50))
def test_rates_fall_from_one_towards_their_end(end: float, steps: int) -> None:
    plan = changed(PLAN, lr_end=end, stage2_steps=steps)
    rates = [plan.rate(done) for done in range(steps + 3)]
    assert rates[0] == 1.0
    assert all(after <= before + 1e-12 for before, after in pairwise(rates))
    assert rates[steps:] == pytest.approx([end] * 3), "at its end after the last step, and not beyond it"
    assert changed(plan, stage2_steps=2 * steps).rate(steps) == pytest.approx((1.0 + end) / 2.0)
    for spent in (0.25, 0.75, 1.5):  # of the tokens, where they end stage 2 before its steps
        by_tokens = [plan.rate(done, spent) for done in range(steps + 1)]
        assert by_tokens == pytest.approx([min(rate, changed(plan, stage2_steps=4).rate(round(4 * spent)))
                                           for rate in rates[: steps + 1]])  # fmt: skip


def test_rates_are_constant_where_no_end_is_set() -> None:
    assert {PLAN.rate(done, spent) for done in range(6) for spent in (0.0, 0.5, 1.0)} == {1.0}


COINS = ("AAAUSDT", "BBBUSDT")
WITH_TRUTH = generate(SyntheticConfig(bars=500, seed=3, symbols=COINS))
RECORDED = replace(WITH_TRUTH, truth=None)


@settings(max_examples=60, deadline=None)
@example(0, 500, 20, False, False, 1)
@example(470, 30, 20, False, True, 1)
@given(st.integers(0, 300), st.integers(20, 200), st.integers(1, 30), st.booleans(), st.booleans(), st.integers(0, 9))
def test_no_query_reaches_outside_its_part(
    start: int, length: int, horizon: int, easy: bool, recorded: bool, seed: int
) -> None:
    market = RECORDED if recorded else WITH_TRUTH
    stop = start + length
    try:
        pool = QueryPool(market, start, stop, horizon)
    except DataError:
        assert min(stop, len(market) - horizon) <= max(start, WARM_UP_BARS)
        return
    for query in pool.draw(seed, 0, 20, easy):
        assert max(start, WARM_UP_BARS) <= query.bar < stop
        assert query.bar + horizon < len(market), "its whole horizon is there"
        assert query.scenarios(2, horizon).shape == (1 if recorded else 2, horizon, 1)
        assert query.volatility > 0
        assert query.exposure in HELD


@settings(max_examples=40, deadline=None)
@given(st.floats(0.35, 0.8), st.floats(0.05, 0.15), st.integers(1, 40))
def test_the_parts_are_in_order_and_a_horizon_apart(train: float, validation: float, horizon: int) -> None:
    config = MarketConfig(shares=(train, validation))
    parts = split(WITH_TRUTH, config, horizon) if 500 * validation > horizon + 1 else None
    if parts is None:
        return
    assert parts.train[0] == 0
    assert parts.train[1] + horizon == parts.validation[0]
    assert parts.validation[1] + horizon == parts.held_out[0]
    assert parts.held_out[1] == len(WITH_TRUTH)
    last = max(query.bar for query in QueryPool(WITH_TRUTH, *parts.train, horizon).draw(1, 0, 200, easy=False))
    assert last + horizon < parts.validation[0], "not even the horizon of a training state reaches the next part"


def test_a_history_too_short_to_divide_is_refused() -> None:
    with pytest.raises(DataError, match="too few to divide"):
        split(WITH_TRUTH, MarketConfig(), 80)


def test_seed_and_step_decide_and_nothing_else() -> None:
    pool, again = (QueryPool(WITH_TRUTH, 0, 400, 6) for _ in range(2))

    def drawn(pool: QueryPool, seed: int, step: int) -> list[tuple[str, int, float, int]]:
        return [(one.symbol, one.bar, one.exposure, one.seed) for one in pool.draw(seed, step, 12, easy=False)]

    pool.draw(5, 5, 5, easy=True)
    assert drawn(pool, 1, 2) == drawn(again, 1, 2)
    assert drawn(pool, 1, 2) != drawn(pool, 1, 3)
    assert drawn(pool, 1, 2) != drawn(pool, 2, 2)
    queries = pool.draw(1, 2, 12, easy=False)
    assert len({one.key for one in queries}) == len({one.seed for one in queries}) == 12
    assert {one.symbol for one in pool.draw(1, 2, 60, easy=False)} == set(COINS)


def test_the_scenarios_of_a_query_are_its_own() -> None:
    first, second = QueryPool(WITH_TRUTH, 0, 400, 6).draw(1, 0, 2, easy=False)
    assert np.array_equal(first.scenarios(4, 6).close, first.scenarios(4, 6).close)
    assert not np.array_equal(first.scenarios(4, 6).close, replace(first, seed=second.seed).scenarios(4, 6).close)


def test_scenarios_can_begin_with_what_could_be_believed_in() -> None:
    """Of the bar and the coin that the query is about; a recorded market has one future and no law to believe in."""
    training = TrainingConfig(scenario_source="beliefs")
    plain, pool = (pools_of(one, WITH_TRUTH, [(130, 400)], 6)[0] for one in (TrainingConfig(), training))
    believed = regime_beliefs(WITH_TRUTH)
    for one, other in zip(plain.draw(1, 0, 20, easy=False), pool.draw(1, 0, 20, easy=False), strict=True):
        assert (one.bar, one.symbol, one.seed, one.belief) == (other.bar, other.symbol, other.seed, None)
        assert other.belief == tuple(believed[other.bar, COINS.index(other.symbol)])
        sure = replace(
            other, belief=tuple(np.eye(3)[truth_of(WITH_TRUTH).regime[one.bar, COINS.index(one.symbol)] + 1])
        )
        assert np.array_equal(sure.scenarios(4, 6).close, one.scenarios(4, 6).close)
    assert {one.belief for one in pools_of(training, RECORDED, [(130, 400)], 6)[0].draw(1, 0, 9, easy=False)} == {None}


def _recorded_move(market: Market, bar: int, symbol: str, horizon: int) -> float:
    close = market.close[:, market.symbols.index(symbol)]
    return abs(float(np.log(close[bar + horizon] / close[bar])))


def test_easy_states_move_more() -> None:
    pool = QueryPool(RECORDED, 0, 480, 6)

    def mean_move(easy: bool) -> float:
        queries = pool.draw(1, 0, 200, easy=easy)
        return float(np.mean([_recorded_move(RECORDED, one.bar, one.symbol, 6) / one.volatility for one in queries]))

    assert mean_move(easy=True) > 1.4 * mean_move(easy=False)


def test_states_without_a_bar_or_a_horizon_are_not_drawn() -> None:
    close = RECORDED.close.copy()
    close[200:260, 0] = np.nan
    arrays: dict[str, Any] = {
        name: np.where(np.isnan(close), np.nan, getattr(RECORDED, name)) for name in ("open", "high", "low")
    }
    market = replace(RECORDED, close=close, **arrays)
    bars = {one.bar for one in QueryPool(market, 0, 480, 6).draw(1, 0, 400, easy=False) if one.symbol == COINS[0]}
    assert bars
    assert not bars & set(range(194, 260)), "neither the bar nor the one a horizon later may be absent"


def test_a_market_without_a_usable_state_is_refused() -> None:
    arrays: dict[str, Any] = {name: np.full_like(RECORDED.close, 7.0) for name in ("open", "high", "low", "close")}
    with pytest.raises(DataError, match="no state to train on"):
        QueryPool(replace(RECORDED, **arrays), 0, 480, 6).draw(1, 0, 4, easy=False)


def test_a_team_sees_in_a_query_what_it_sees_in_a_backtest() -> None:
    """Also of the coins that it does not decide on."""
    for query in QueryPool(WITH_TRUTH, 200, 480, 10).draw(4, 0, 8, easy=False):
        whole = WITH_TRUTH.view(query.bar)
        accounts = (query.account(), account_holding(whole, query.exposures()))
        others = tuple(coin for coin in COINS if coin != query.symbol)
        mask = Mask((query.symbol, *others), True)
        mine, theirs = (
            ToolContext(view, account, mask, query.symbols, 10, 1.0, query.symbol, "long", 0.5)
            for view, account in zip((query.view(), whole), accounts, strict=True)
        )
        for role in ROLES.values():
            for tool in role.tools:
                if tool.run is not None and not any(one.is_required() for one in tool.arguments.model_fields.values()):
                    asked = tool.arguments()
                    assert tool.run(mine, asked) == tool.run(theirs, asked), tool.name
        shown = tools.other_coins(mine, NoArguments())
        assert list(shown["others"]) == ["C2"] and -1.0 <= shown["others"]["C2"]["correlation"] <= 1.0


BARS = 6
THREE_COINS = generate(SyntheticConfig(bars=420, seed=2, symbols=THREE))
THREE_RECORDED = replace(THREE_COINS, truth=None)


def portfolio_pool(market: Market = THREE_COINS, gross: float = 1.0) -> QueryPool:
    return QueryPool(market, 0, 400, BARS, gross_limit=gross)


def unlisted(market: Market, column: int, bars: int) -> Market:
    """A coin that has no bar before `bars`."""
    arrays: dict[str, Any] = {}
    for name in ("open", "high", "low", "close", "volume", "half_spread"):
        arrays[name] = getattr(market, name).copy()
        arrays[name][:bars, column] = np.nan
    return replace(market, **arrays)


def settings_of(paths: int = 4) -> RolloutSettings:
    return RolloutSettings(2, paths, BARS, Costs(), 1.0, guard_limits())


@given(st.integers(0, 40), st.sampled_from([0.3, 1.0, 2.0]), st.booleans())
@settings(max_examples=25, deadline=None)
def test_what_is_held_is_within_the_gross_limit_and_all_coins_are_there(step: int, gross: float, easy: bool) -> None:
    for query in portfolio_pool(gross=gross).draw(3, step, 8, easy=easy):
        assert isinstance(query, PortfolioQuery) and query.symbols == THREE and query.symbol in THREE
        assert sum(map(abs, query.held)) <= gross + 1e-12
        account = query.account()
        worth = account.cash + sum(account.positions[s] * query.view().last_close(s) for s in THREE)
        assert worth == pytest.approx(account.equity) and account.exposure == query.exposures()
        assert query.exposure == query.exposures()[query.symbol]


def test_the_same_seed_and_step_draw_the_same_and_books_differ() -> None:
    drawn = portfolio_pool().draw(3, 1, 40, easy=False)
    assert drawn == portfolio_pool().draw(3, 1, 40, easy=False) != portfolio_pool().draw(4, 1, 40, easy=False)
    assert {query.symbol for query in drawn} == set(THREE) and len({str(query.exposures()) for query in drawn}) > 15
    assert 3 <= sum(not any(query.exposures().values()) for query in drawn) < 30, "some start from cash alone"


def test_the_outcome_s_unit_is_the_volatility_of_equal_parts_known_at_the_bar() -> None:
    [query] = portfolio_pool().draw(3, 0, 1, easy=False)
    closes = THREE_COINS.close[query.bar - 60 : query.bar + 1]
    equal = np.diff(np.log(closes), axis=0).mean(axis=1)
    assert query.volatility == pytest.approx(float(equal.std()) * np.sqrt(BARS), rel=1e-12)
    view = query.view()
    assert book_volatility(view, THREE[:1], 9) == pytest.approx(horizon_volatility(view, THREE[0], 9), rel=1e-12)


def exchange_earns(query: PortfolioQuery, orders: list[Order]) -> float:
    """What a real account that holds the query's book earns over the recorded path with these orders."""
    held = query.account()
    exchange = Exchange(query.market, query.bar, held.equity, Costs())
    assert not any(query.held), "the exchange begins with cash"
    for order in orders:
        exchange.submit(order)
    exchange.step(BARS)
    return exchange.account().equity / held.equity - 1.0


@given(st.lists(st.floats(-0.5, 0.5), min_size=3, max_size=3), st.integers(0, 30))
@settings(max_examples=30, deadline=None)
def test_a_decision_is_worth_what_the_exchange_earns_over_the_recorded_path(targets: list[float], step: int) -> None:
    [query] = portfolio_pool(THREE_RECORDED).draw(3, step, 1, easy=False)
    assert isinstance(query, PortfolioQuery)
    query = replace(query, held=(0.0, 0.0, 0.0), exposure=0.0)
    view, account = query.view(), query.account()
    orders = [
        order
        for symbol, target in zip(THREE, targets, strict=True)
        for order in orders_for_target(view, account, symbol, target)
    ]
    outcome = RolloutScorer(query, 1, BARS, Costs(), 1.0).outcome(orders)
    assert outcome.net_return == pytest.approx(exchange_earns(query, orders), abs=1e-9)
    assert outcome.score == pytest.approx(0.5 * (1.0 + np.tanh(outcome.net_return / query.volatility)), abs=1e-9)


def test_what_is_held_earns_its_parts_of_the_moves() -> None:
    query = next(
        one
        for one in portfolio_pool(THREE_RECORDED).draw(3, 0, 40, easy=False)
        if sum(map(bool, one.exposures().values())) > 1
    )
    outcome = RolloutScorer(query, 1, BARS, Costs(), 1.0).outcome([])
    moves = THREE_RECORDED.close[query.bar + BARS] / THREE_RECORDED.close[query.bar] - 1.0
    assert outcome.net_return + outcome.funding == pytest.approx(
        float(moves @ np.array(list(query.exposures().values()))), abs=1e-9
    )


def test_scenarios_are_joint_and_begin_with_what_could_be_believed_of_every_coin() -> None:
    training = TrainingConfig(scenario_source="beliefs")
    [pool] = pools_of(training, THREE_COINS, [(130, 400)], BARS, 1.0)
    believed = regime_beliefs(THREE_COINS)
    for query in pool.draw(1, 0, 4, easy=False):
        assert isinstance(query, PortfolioQuery) and query.beliefs is not None
        np.testing.assert_array_equal(np.array(query.beliefs), believed[query.bar])
        paths = query.scenarios(200, BARS)
        assert paths.shape == (200, BARS, 3)
        ends = paths.close[:, -1] / THREE_COINS.close[query.bar]
        assert np.corrcoef(ends.T)[0, 1] > 0.2, "the coins move together in a scenario"


def test_a_coin_that_is_not_listed_yet_is_named_and_never_held_or_scored() -> None:
    market = unlisted(THREE_RECORDED, 1, 300)
    drawn = [one for one in portfolio_pool(market).draw(3, 0, 60, easy=False) if one.bar < 300]
    assert drawn and all(one.symbols == THREE and one.symbol != THREE[1] for one in drawn)
    assert not any(one.exposures()[THREE[1]] for one in drawn)
    engine = ScriptedEngine(codec(), novice_policies(portfolio=True))
    for group in collect(make_team(portfolio=True, horizon_bars=BARS), engine, drawn[:6], settings_of(1), 1):
        for rollout in group:
            assert np.isfinite([rollout.outcome.score, ordered_exposure(rollout)]).all()
            assert not any(order.symbol == THREE[1] for order in rollout.decision.orders)
            for call, transcript in zip(rollout.subs, rollout.decision.transcripts[1:], strict=True):
                assert call.expert is None or transcript.brief["symbol"] != THREE[1]


def test_rollouts_decide_on_all_coins_and_what_the_guard_holds_back_counts() -> None:
    """A rotation: the purchase of one coin waits until the sale of the other has filled, and is worth its part."""
    query = portfolio_pool().draw(3, 0, 1, easy=False)[0]
    assert isinstance(query, PortfolioQuery)
    query = replace(query, held=(1.0, 0.0, 0.0), exposure=0.0, symbol=THREE[1])

    def rotate(messages: Any, seed: int) -> str:
        return (
            '<tool_call>\n{"name": "submit_decision", "arguments": {"positions": [{"symbol": "C1", "side": "flat", '
            '"exposure": 0.0}, {"symbol": "C2", "side": "long", "exposure": 0.8}]}}\n</tool_call>'
        )

    engine = ScriptedEngine(codec(), {"manager": rotate})
    [[rollout, _]] = collect(make_team(portfolio=True, horizon_bars=BARS), engine, [query], settings_of(), 1)
    assert rollout.decision.symbols == THREE and Decision.model_validate(rollout.decision.manager.answer)
    assert {order.symbol for order in rollout.decision.orders} == {THREE[0]}
    [later] = rollout.later
    assert later.symbol == THREE[1] and later.delay == 1
    assert later.quantity * query.view().last_close(THREE[1]) == pytest.approx(8000.0, rel=1e-6)
    assert ordered_exposure(rollout) == pytest.approx(0.8, abs=1e-6)
    scorer = settings_of().scorer(query)
    assert (
        rollout.outcome == scorer.outcome([*rollout.decision.orders, later]) != scorer.outcome(rollout.decision.orders)
    )


def test_practice_asks_about_the_drawn_coin_in_sizes_of_a_portfolio() -> None:
    queries = portfolio_pool().draw(3, 0, 6, easy=False)
    engine = ScriptedEngine(codec(), novice_policies(portfolio=True))
    for query, group in zip(
        queries, practise(make_team(portfolio=True, horizon_bars=BARS), engine, queries, settings_of(), 1), strict=True
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
