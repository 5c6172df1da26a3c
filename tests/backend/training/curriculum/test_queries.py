"""The states that are trained on: seeded, inside their part of the history, easy ones clearer than the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from backend.builders.market import split
from backend.config.market import MarketConfig
from backend.config.training import TrainingConfig
from backend.training.curriculum.queries import HELD, WARM_UP_BARS, QueryPool, account_holding, pools_of
from cryptosentinel.agents.registry import ROLES
from cryptosentinel.conversation.masking import Mask
from cryptosentinel.protocol.tool_calls import NoArguments
from cryptosentinel.tools import cross_market
from cryptosentinel.tools.context import ToolContext
from simulator.errors import DataError
from simulator.market.market import Market
from simulator.synthetic.beliefs import regime_beliefs
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from simulator.synthetic.truth import truth_of

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
        shown = cross_market.other_coins(mine, NoArguments())
        assert list(shown["others"]) == ["C2"] and -1.0 <= shown["others"]["C2"]["correlation"] <= 1.0
