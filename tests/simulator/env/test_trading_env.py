"""The environments: the interface, the exchange's own numbers, no look at the future, seeds, masks, episodes' ends."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from hypothesis import given
from hypothesis import strategies as st

from simulator.env.observations import LEAST, LIMIT, MEASURED_BARS, columns, prepare
from simulator.env.step import _WORST_RATIO
from simulator.env.trading_env import ENV_ID, EnvConfig, TradingEnv, TradingVectorEnv
from simulator.errors import DataError
from simulator.exchange.costs import Costs
from simulator.exchange.exchange import Exchange
from simulator.exchange.orders import Target
from simulator.exchange.rules import MarginTier, SymbolRules
from simulator.exchange.venue import Venue
from simulator.market.events import FundingEvent
from simulator.market.timeframes import BAR_COLUMNS
from tests.env_scenes import HOUR, SEEDS, field, play, starting, walk
from tests.examples import tried


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_gymnasium_finds_nothing_to_warn_of(count: int, kind: Any) -> None:
    config = EnvConfig(length=40, actions=kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make(ENV_ID, market=walk(1, count=count, absent=0.1), config=config)
        check_env(env.unwrapped)


def test_make_vec_gives_the_vector_environment_and_wrappers_accept_it() -> None:
    made: Any = gymnasium.make_vec(ENV_ID, num_envs=3, market=walk(1), config=EnvConfig(length=20))
    assert isinstance(made.unwrapped, TradingVectorEnv)
    assert made.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    env: Any = gymnasium.wrappers.vector.RecordEpisodeStatistics(made)
    env.reset(seed=1)
    total = np.zeros(3)
    for _ in range(20):
        row, rewards, terminated, truncated, infos = env.step(env.action_space.sample())
        assert row in env.observation_space
        assert terminated.dtype == truncated.dtype == np.bool_
        total += rewards
    assert infos["_episode"].all()
    assert infos["episode"]["r"] == pytest.approx(total)
    assert (infos["episode"]["l"] == 20).all()


@pytest.mark.parametrize(
    ("config", "count", "space"),
    [
        (EnvConfig(length=40), 1, gymnasium.spaces.Discrete(3)),
        (EnvConfig(length=40, levels=(0.0, 0.5, 1.0)), 2, gymnasium.spaces.MultiDiscrete([3, 3])),
        (EnvConfig(length=40, actions="continuous"), 2, gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)),
        (EnvConfig(length=40, actions="continuous", levels=(0.0, 1.0)), 1, gymnasium.spaces.Box(0.0, 1.0, (1,))),
    ],
)
def test_spaces(config: EnvConfig, count: int, space: Any) -> None:
    market = walk(1, count=count)
    env = TradingEnv(market, config)
    assert env.action_space == space
    assert env.observation_space.shape == (config.window * count * 5 + count * 5 + 3,)
    names = [name for name, _, _ in columns(market.symbols, config.window)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"window": 0}, "window is 0"),
        ({"length": 0}, "length is 0"),
        ({"length": 10, "decide_every": 3}, "no multiple of decide_every 3"),
        ({"actions": "both"}, "use discrete or continuous"),
        ({"levels": (0.5, 1.0)}, "0 among them"),
        ({"levels": (0.0,)}, "two or more"),
        ({"levels": (0.0, 2.0)}, "from -1 to 1"),
        ({"levels": (1.0, 0.0)}, "rising"),
        ({"levels": (0.0, float("nan"))}, "rising"),
        ({"max_exposure": 2.0}, "at most 1"),
        ({"max_leverage": 0.0}, "max_leverage is 0"),
        ({"cash": -1.0}, "starting cash"),
        ({"costs": Costs(latency_bars=1)}, "larger decide_every"),
    ],
)
def test_a_config_that_means_nothing_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        EnvConfig(**given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"length": 160}, "does not fit into bars 0..159"),
        ({"first": -1}, "does not fit"),
        ({"first": 130, "length": 40}, "does not fit"),
        ({"stop": 161, "length": 40}, "does not fit"),
        ({"stop": 30, "length": 40}, "does not fit"),
    ],
)
def test_a_range_that_the_market_does_not_have_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        TradingEnv(walk(1), EnvConfig(**given))


@pytest.mark.parametrize(
    ("config", "action", "words"),
    [
        (EnvConfig(length=40), 3, "from 0 to 2"),
        (EnvConfig(length=40), -1, "from 0 to 2"),
        (EnvConfig(length=40), 0.5, "names no level"),
        (EnvConfig(length=40), [0, 1], "is needed"),
        (EnvConfig(length=40, actions="continuous"), [1.5], "clip actions"),
        (EnvConfig(length=40, actions="continuous"), [float("nan")], "clip actions"),
    ],
)
def test_an_action_outside_the_space_is_refused(config: EnvConfig, action: Any, words: str) -> None:
    env = TradingEnv(walk(1), config)
    env.reset(seed=1)
    with pytest.raises(DataError, match=words):
        env.step(action)


def test_other_misuse_is_refused() -> None:
    env, many = TradingEnv(walk(1), EnvConfig(length=1)), TradingVectorEnv(walk(1), 2, EnvConfig(length=1))
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)
    with pytest.raises(gymnasium.error.ResetNeeded):
        many.step([0, 0])
    with pytest.raises(DataError, match="no options, got start"):
        env.reset(options={"start": 3})
    with pytest.raises(DataError, match="num_envs is 0"):
        TradingVectorEnv(walk(1), 0)
    env.reset()
    env.step(0)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)


# The same numbers as the exchange.

VENUES = {
    "plain": (Costs(), Venue()),
    "free": (Costs(taker_fee=0.0, spread_multiplier=0.0), Venue()),
    "volume": (Costs(participation=0.05), Venue()),
    "close": (Costs(fill="close"), Venue()),
    "base": (Costs(fee_currency="base", sizing="fee_on_top"), Venue()),
    "spot and lots": (Costs(), Venue({"A": SymbolRules(kind="spot", lot=0.5, min_notional=400.0)})),
    "margin": (
        Costs(), Venue({"A": SymbolRules(tiers=(MarginTier(0.0, 0.05, 2.0),), liquidation_fee=0.01)}, {"B": 2.0}),
    ),
}  # fmt: skip


@tried(60)
@given(
    seed=SEEDS, count=st.integers(1, 3), kind=st.sampled_from(["discrete", "continuous"]),
    venue=st.sampled_from([*VENUES]),
    every=st.sampled_from([1, 3]), late=st.booleans(), leverage=st.sampled_from([1.0, 3.0]),
    step=st.sampled_from([0.01, 0.1]), absent=st.sampled_from([0.0, 0.2]),
)  # fmt: skip
def test_an_episode_is_an_exchange_fed_with_targets(
    seed: int, count: int, kind: Any, venue: str, every: int, late: bool, leverage: float, step: float, absent: float
) -> None:
    market = walk(seed % 50, 60, max(count, 2 if venue == "margin" else 1), step, absent)
    rng = np.random.default_rng(seed)
    symbols = market.symbols
    costs, place = VENUES[venue]
    costs = replace(costs, latency_bars=2 if late and every == 3 else 0)
    config = EnvConfig(
        length=24, actions=kind, decide_every=every, costs=costs, venue=place, max_leverage=leverage,
        max_exposure=leverage,
    )  # fmt: skip
    env = TradingEnv(market, config)
    _, info = env.reset(seed=seed)
    exchange = Exchange(market, info["bar"], config.cash, costs, leverage, venue=place)
    standing = np.zeros(len(symbols))
    equity = [config.cash]
    while True:
        if kind == "discrete":
            levels = rng.integers(0, 3, len(symbols))
            action: Any = levels if len(symbols) > 1 else levels[0]
            asked = np.array(config.levels)[levels] * leverage / len(symbols)
        else:
            action = rng.uniform(-1.0, 1.0, len(symbols)).astype(np.float32)
            asked = action.astype(np.float64) * (leverage / len(symbols))
        for s, symbol in enumerate(symbols):
            if (kind == "continuous" or asked[s] != standing[s]) and exchange.account().mark[symbol] > 0.0:
                exchange.submit(Target(symbol, float(asked[s])))
                standing[s] = asked[s]
        exchange.step(every)
        _, reward, terminated, truncated, info = env.step(action)
        held = exchange.account()
        waiting = {one.symbol for _, _, one in exchange._targets}
        wanted = exchange._state.positions[0, :, 9]
        for s, symbol in enumerate(symbols):
            if held.positions[symbol] == 0.0 and symbol not in waiting and np.isnan(wanted[s]):
                standing[s] = 0.0
        assert info["equity"] == held.equity
        assert info["costs"] == pytest.approx(sum(exchange.paid().values()), abs=1e-9)
        ratio = max(info["equity"] / equity[-1], _WORST_RATIO)
        assert reward == pytest.approx(np.log(ratio), rel=1e-12, abs=1e-15)
        assert terminated == (held.liquidated or held.equity <= 0.0)
        equity.append(info["equity"])
        if terminated or truncated:
            break
    curve = exchange.equity_curve()[::every]
    assert np.array(equity).tobytes() == np.ascontiguousarray(curve).tobytes()


def test_finer_bars_decide_inside_a_bar_as_they_do_for_the_exchange() -> None:
    fine = walk(4, 400)
    fine = replace(fine, timeframe="1h", funding={})
    market, venue = fine.resample("4h"), Venue(finer=fine)
    env = TradingEnv(market, EnvConfig(length=60, venue=venue))
    _, info = env.reset(seed=3)
    exchange = Exchange(market, info["bar"], venue=venue)
    for number in range(60):
        level = number // 3 % 3
        if number % 3 == 0:
            exchange.submit(Target("A", float(level - 1)))
        exchange.step()
        info = env.step(level)[4]
        assert info["equity"] == exchange.account().equity


# N accounts and one.


@tried(25)
@given(
    seed=SEEDS,
    count=st.integers(1, 2),
    accounts=st.integers(1, 5),
)
def test_accounts_in_a_vector_are_what_they_are_alone(seed: int, count: int, accounts: int) -> None:
    market = walk(seed % 7, count=count, absent=0.1)
    config = EnvConfig(length=12, decide_every=2)
    many = TradingVectorEnv(market, accounts, config)
    singles = [TradingEnv(market, config) for _ in range(accounts)]
    rng = np.random.default_rng(seed)
    rows, infos = many.reset(seed=seed)
    for n, env in enumerate(singles):
        row, info = env.reset(seed=seed)
        assert row.tobytes() == rows[n].tobytes()
        assert all(np.array_equal(value, infos[key][n]) for key, value in info.items())
    for number in range(2 * 7):  # two episodes of six decisions, each with the step that resets
        actions = rng.integers(0, 3, (accounts, count))
        rows, rewards, terminated, truncated, infos = many.step(actions[:, 0] if count == 1 else actions)
        assert truncated.all() == (number % 7 == 5)
        for n, env in enumerate(singles):
            if number % 7 == 6:
                row, info = env.reset()
                assert rewards[n] == 0.0
                assert not terminated[n]
            else:
                row, gain, ended, cut, info = env.step(actions[n, 0] if count == 1 else actions[n])
                assert (gain, ended, cut) == (rewards[n], terminated[n], truncated[n])
            assert row.tobytes() == rows[n].tobytes()
            assert info.keys() == infos.keys()
            assert all(np.array_equal(value, infos[key][n]) for key, value in info.items())


@tried(20)
@given(seed=SEEDS)
def test_a_seed_decides_every_byte(seed: int) -> None:
    config = EnvConfig(length=30)
    actions = np.random.default_rng(seed).integers(0, 3, 30)
    env = TradingEnv(walk(2), config)
    env.reset()
    first, again = play(env, actions, seed), play(TradingEnv(walk(2), config), actions, seed)
    for one, other in zip(first, again, strict=True):
        assert one[0].tobytes() == other[0].tobytes()
        assert one[1:-1] == other[1:-1]


def test_starts_are_drawn_from_the_whole_range() -> None:
    drawn = TradingEnv(walk(2), EnvConfig(length=10, first=20, stop=35))
    assert {drawn.reset(seed=n)[1]["bar"] for n in range(100)} == {20, 21, 22, 23, 24}


# What is seen.


@tried(40)
@given(seed=SEEDS, count=st.integers(1, 2), steps=st.integers(0, 25))
def test_later_bars_change_nothing_that_is_seen(seed: int, count: int, steps: int) -> None:
    market = walk(seed % 20, 120, count, absent=0.1)
    start = 60
    now = start + steps
    rng = np.random.default_rng(seed)
    later = np.arange(len(market))[:, None] > now
    scale = np.exp(rng.normal(0.0, 1.0, (len(market), 1)))
    arrays: dict[str, Any] = {
        name: np.where(later, getattr(market, name) * scale, getattr(market, name)) for name in BAR_COLUMNS
    }
    arrays["half_spread"] = np.where(later, 0.3 * market.half_spread, market.half_spread)
    known = (now + 1) * HOUR
    funding = {
        symbol: tuple(FundingEvent(one.time, one.rate * (1.0 if one.time <= known else -7.0)) for one in events)
        for symbol, events in market.funding.items()
    }
    other = replace(market, **arrays, funding=funding)
    assert other.content_hash != market.content_hash
    config = starting(start, 30)
    actions = rng.integers(0, 3, (steps, count)) if count > 1 else rng.integers(0, 3, steps)
    for one, two in zip(
        play(TradingEnv(market, config), actions), play(TradingEnv(other, config), actions), strict=True
    ):
        assert one[0].tobytes() == two[0].tobytes()
        assert np.array_equal(one[-1]["action_mask"], two[-1]["action_mask"])


def test_the_newest_bar_is_seen() -> None:
    market = walk(3)
    other = replace(market, close=market.close.copy())
    other.close[70] = (market.high[70] + market.low[70]) / 2
    config = starting(70, 10)
    assert not np.array_equal(TradingEnv(market, config).reset()[0], TradingEnv(other, config).reset()[0])


def test_features_by_their_definition() -> None:
    """Against plain numpy, one bar at a time."""
    market = walk(5, 150, absent=0.15)
    features = prepare(market, 1, 2.0)
    rows, newest = features.bars.reshape(len(market), 5), features.newest
    present = np.flatnonzero(market.present[:, 0])
    assert not rows[~market.present[:, 0]].any()
    for place, bar in enumerate(present):
        moves = np.diff(np.log(market.close[present[: place + 1], 0]))
        before, upto = moves[:-1][-MEASURED_BARS:], moves[-MEASURED_BARS:]
        sizes = np.log1p(market.volume[present[:place], 0])[-MEASURED_BARS:]
        volatility = np.sqrt(np.mean(before**2)) if len(before) >= LEAST else np.inf
        expected = [
            1.0,
            moves[-1] / volatility if len(moves) else 0.0,
            np.log(market.high[bar, 0] / market.low[bar, 0]) / volatility,
            (np.log1p(market.volume[bar, 0]) - sizes.mean()) / sizes.std() if len(sizes) >= LEAST else 0.0,
            2.0 * market.half_spread[bar, 0] / volatility,
        ]
        assert rows[bar] == pytest.approx(np.clip(expected, -LIMIT, LIMIT), rel=1e-5, abs=1e-6)
        after = 100.0 * np.sqrt(np.mean(upto**2)) if len(upto) >= LEAST else 0.0
        known = [one.rate for one in market.funding["A"] if one.time <= (bar + 1) * HOUR]
        assert newest[bar] == pytest.approx([after, 1e3 * known[-1] if known else 0.0], rel=1e-5)


@tried(30)
@given(seed=SEEDS, step=st.sampled_from([0.0, 1e-6, 0.02, 0.8]), absent=st.sampled_from([0.0, 0.5, 0.97]))
def test_whatever_the_market_rows_are_finite_and_in_the_space(seed: int, step: float, absent: float) -> None:
    market = walk(seed % 30, 80, 2, step, absent)
    if step == 0.0:
        market = replace(market, volume=np.where(market.present, 5.0, np.nan))
    many = TradingVectorEnv(market, 4, EnvConfig(length=30, max_exposure=3.0, max_leverage=3.0))
    rng = np.random.default_rng(seed)
    rows, _ = many.reset(seed=seed)
    for _ in range(65):
        assert np.isfinite(rows).all()
        assert rows in many.observation_space
        rows, rewards, *_ = many.step(rng.integers(0, 3, (4, 2)))
        assert np.isfinite(rewards).all()


def test_observations_of_the_account_agree_with_the_exchange() -> None:
    market, config = walk(6), starting(80, 8, levels=(-1.0, 0.0, 0.5, 1.0))
    env = TradingEnv(market, config)
    row, _ = env.reset()
    exchange = Exchange(market, 80)
    peak = worst = config.cash
    idle = [0, 1, 2, 0, 1, 0, 1, 2]
    for number, action in enumerate([2, 2, 2, 0, 0, 1, 1, 1]):
        assert field(row, market, config, "left") == pytest.approx(1.0 - number / 8)
        if number in (0, 3, 5):
            exchange.submit(Target("A", config.levels[action]))
        exchange.step()
        row, *_ = env.step(action)
        account = exchange.account()
        peak, worst = max(peak, account.equity), min(worst, account.equity)
        entry = account.entry_price["A"]
        gained = 0.0 if entry is None else account.positions["A"] * (account.mark["A"] - entry) / account.equity
        assert field(row, market, config, "exposure A") == pytest.approx(account.exposure["A"], rel=1e-6)
        assert field(row, market, config, "wanted A") == config.levels[action]
        assert field(row, market, config, "unrealized A") == pytest.approx(gained, rel=1e-6)
        assert field(row, market, config, "drawdown") == pytest.approx(1.0 - account.equity / peak, rel=1e-6)
        assert field(row, market, config, "idle") == pytest.approx(idle[number] / 8)


# Rewards.


@tried(40)
@given(seed=SEEDS, count=st.integers(1, 2))
def test_rewards_sum_to_the_log_of_the_equity_ratio(seed: int, count: int) -> None:
    env = TradingEnv(walk(seed % 40, count=count), EnvConfig(length=40))
    actions = np.random.default_rng(seed).integers(0, 3, (40, count))
    seen = play(env, actions if count > 1 else actions[:, 0], seed)
    equity = np.array([one[-1]["equity"] for one in seen])
    assert sum(one[1] for one in seen[1:]) == pytest.approx(np.log(equity[-1] / equity[0]), abs=1e-9)


def test_an_action_that_repeats_trades_only_if_it_is_continuous() -> None:
    cases: list[tuple[Any, Any, bool]] = [("discrete", 2, False), ("continuous", np.array([0.7]), True)]
    for kind, action, expected in cases:
        config = EnvConfig(length=20, actions=kind, costs=Costs(spread_multiplier=0.0))
        env = TradingEnv(replace(walk(8), funding={}), config)
        costs = [one[-1]["costs"] for one in play(env, np.array([action] * 20))]
        assert costs[1] > 0.0
        assert (costs[-1] > costs[1]) == expected


# Masks and ends.
