"""The environments: masked actions, and how the episodes of one and of many accounts end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from simulator.env.step import _WORST_RATIO
from simulator.env.trading_env import EnvConfig, TradingEnv, TradingVectorEnv
from simulator.exchange.costs import Costs
from simulator.exchange.rules import MarginTier, SymbolRules
from simulator.exchange.venue import Venue
from simulator.market.market import Market
from simulator.market.timeframes import BAR_COLUMNS
from tests.env_scenes import crash, field, play, starting, walk


def test_levels_without_a_price_are_masked_and_do_nothing() -> None:
    market = crash()
    for name in BAR_COLUMNS:
        getattr(market, name)[:15] = np.nan
    env = TradingEnv(market, starting(10, 8))
    _, info = env.reset()
    for number in range(8):
        assert info["action_mask"].tolist() == ([0, 1, 0] if number < 5 else [1, 1, 1])
        assert info["action_mask"].dtype == np.int8
        assert env.action_masks().dtype == np.bool_
        assert env.action_masks().tolist() == info["action_mask"].tolist()
        assert env.action_space.contains(env.action_space.sample(mask=info["action_mask"]))
        *_, info = env.step(2 if number < 5 else 1)
        assert info["costs"] == 0.0


def test_levels_beyond_the_margin_tier_are_masked() -> None:
    tiers = (MarginTier(0.0, 0.01, 10.0), MarginTier(15_000.0, 0.05, 2.0))
    venue = Venue({"A": SymbolRules(tiers=tiers)})
    levels = (-1.0, -0.25, 0.0, 0.25, 0.5, 1.0)
    config = starting(2, 8, venue=venue, max_leverage=5.0, max_exposure=5.0, levels=levels)
    env = TradingEnv(crash(), config)
    assert env.reset()[1]["action_mask"].tolist() == [0, 1, 1, 1, 0, 0]  # 2.5 x 10,000 lies in the tier of leverage 2
    apart = TradingEnv(crash(), replace(config, venue=Venue(isolated={"A": 2.0})))
    assert apart.reset()[1]["action_mask"].tolist() == [0, 1, 1, 1, 0, 0]


def test_masks_of_several_symbols_fit_their_space() -> None:
    env = TradingVectorEnv(walk(1, count=2), 3, EnvConfig(length=8))
    _, infos = env.reset(seed=1)
    assert infos["action_mask"].shape == env.action_masks().shape == (3, 2, 3)
    env.single_action_space.sample(mask=tuple(infos["action_mask"][0]))
    assert "action_mask" not in TradingEnv(walk(1), EnvConfig(length=8, actions="continuous")).reset()[1]


def test_a_liquidated_account_is_terminated() -> None:
    config = starting(5, 30, max_leverage=3.0, max_exposure=3.0)
    seen = play(TradingEnv(crash(), config), np.full(30, 2))
    _, reward, terminated, truncated, info = seen[-1]
    assert (terminated, truncated, info["bar"]) == (True, False, 20)
    assert info["action_mask"].tolist() == [0, 1, 0]
    assert reward == pytest.approx(np.log(_WORST_RATIO))


def test_a_terminated_account_begins_anew_beside_the_others() -> None:
    market = crash()
    costs = Costs(borrow_rate=0.0)
    config = starting(5, 20, max_leverage=3.0, max_exposure=3.0, costs=costs)
    env = TradingVectorEnv(market, 3, config)
    env.reset()
    for bar in range(6, 26):
        rows, rewards, terminated, truncated, infos = env.step([2, 1, 0])
        assert terminated.tolist() == [bar == 20, False, False]
        assert truncated.all() == (bar == 25)
        assert (infos["bar"] == bar).all()
        if bar == 21:  # its action is not taken
            assert infos["equity"][0] == config.cash
            assert infos["costs"][0] == rewards[0] == field(rows[0], market, config, "exposure A") == 0.0
            assert rows[0].tobytes() == fresh_row(market, config, 21, left=4 / 20).tobytes()
        if bar == 22:
            assert field(rows[0], market, config, "exposure A") == pytest.approx(3.0)
    assert infos["equity"][2] > infos["equity"][1] == config.cash
    rows, rewards, terminated, truncated, infos = env.step([2, 2, 2])
    assert not (rewards.any() or terminated.any() or truncated.any())
    assert (infos["equity"] == config.cash).all()
    assert (infos["bar"] == 5).all()


def fresh_row(market: Market, config: EnvConfig, bar: int, left: float) -> NDArray[np.float32]:
    """What an account sees that is reset at `bar`, with this share of its episode left."""
    row, _ = TradingEnv(market, replace(config, first=bar, stop=bar + 5, length=4)).reset()
    row[-2] = left
    return row


def test_an_account_that_ends_in_the_last_bar_is_terminated_not_truncated() -> None:
    config = starting(5, 15, max_leverage=3.0, max_exposure=3.0)
    env = TradingVectorEnv(crash(), 2, config)
    env.reset()
    for _ in range(15):
        _, _, terminated, truncated, _ = env.step([2, 1])
    assert terminated.tolist() == [True, False]
    assert truncated.tolist() == [False, True]
    assert (env.step([2, 1])[4]["equity"] == config.cash).all()


def test_returned_arrays_are_the_callers_own() -> None:
    env = TradingVectorEnv(walk(1), 2, EnvConfig(length=20))
    kept: list[Any] = [env.reset(seed=1)[0]]
    copies = [kept[0].copy()]
    for _ in range(5):
        rows, rewards, terminated, truncated, infos = env.step([2, 0])
        kept += [rows, rewards, terminated, truncated, *infos.values()]
        copies += [array.copy() for array in kept[len(copies) :]]
    assert all(np.array_equal(one, other) for one, other in zip(kept, copies, strict=True))
    assert not any(np.shares_memory(one, other) for i, one in enumerate(kept) for other in kept[:i])
