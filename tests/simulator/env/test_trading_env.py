"""The environments: the interface, the exchange's own numbers, no look at the future, seeds, masks, episodes' ends."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import cache
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from simulator.env.observations import LEAST, LIMIT, MEASURED_BARS, columns, prepare
from simulator.env.step import _WORST_RATIO
from simulator.env.trading_env import ENV_ID, EnvConfig, TradingEnv, TradingVectorEnv
from simulator.errors import DataError
from simulator.exchange.costs import Costs
from simulator.exchange.exchange import Exchange
from simulator.exchange.orders import Target
from simulator.exchange.rules import MarginTier, SymbolRules
from simulator.exchange.venue import Venue
from simulator.market.market import Market
from tests.examples import tried
from tests.lookahead_scenes import other_future
from tests.markets import HOUR, NAMES, bars_of, random_market, without_places

SEEDS = st.integers(0, 2**32 - 1)


@cache
def walk(seed: int, bars: int = 160, count: int = 1, step: float = 0.02, absent: float = 0.0) -> Market:
    """A random walk with wicks, spread, volume, funding and, maybe, holes."""
    rng = np.random.default_rng(seed)
    market = random_market(rng, bars, NAMES[:count], step, absent=absent, rate=0.001)
    return replace(market, volume=market.volume * rng.lognormal(6.0, 1.0, market.close.shape))


def field(row: NDArray[np.float32], market: Market, config: EnvConfig, name: str) -> float:
    """The value called `name` in an observation."""
    return float(row[[entry[0] for entry in columns(market.symbols, config.window)].index(name)])


def starting(start: int, length: int, **given: Any) -> EnvConfig:
    """Episodes of `length` bars that all start at the close of bar `start`."""
    return EnvConfig(length=length, first=start, stop=start + length + 1, **given)


def play(env: TradingEnv, actions: NDArray[Any], seed: int | None = 0) -> list[tuple[Any, ...]]:
    """The reset and every step until the episode is over."""
    seen: list[tuple[Any, ...]] = [env.reset(seed=seed)]
    for action in actions:
        seen.append(env.step(action))
        if seen[-1][2] or seen[-1][3]:
            break
    return seen


def crash(bars: int = 40, at: int = 20) -> Market:
    """Flat at 100, then 30 for good from bar `at` on."""
    return bars_of(np.where(np.arange(bars) < at, 100.0, 30.0), volume=0.0)


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
        ({"length": 10, "decide_every": 3}, "not a multiple of decide_every 3"),
        ({"actions": "both"}, "use discrete or continuous"),
        ({"levels": (0.5, 1.0)}, "0 among them"),
        ({"levels": (0.0, 2.0)}, "from -1 to 1"),
        ({"levels": (0.0, float("nan"))}, "rising"),
        ({"max_exposure": 2.0}, "at most 1"),
        ({"max_leverage": 0.0}, "max_leverage is 0"),
        ({"cash": -1.0}, "starting cash"),
        ({"costs": Costs(latency_bars=1)}, "larger decide_every"),
        ({"length": 160}, "does not fit into bars 0..159"),
        ({"first": 130, "length": 40}, "does not fit"),
        ({"stop": 30, "length": 40}, "does not fit"),
    ],
)
def test_what_means_nothing_or_the_market_does_not_have_is_refused(given: dict[str, Any], words: str) -> None:
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
    other = other_future(market, now, seed)
    assert other.content_hash != market.content_hash
    config = starting(start, 30)
    actions = rng.integers(0, 3, (steps, count)) if count > 1 else rng.integers(0, 3, steps)
    for one, two in zip(
        play(TradingEnv(market, config), actions), play(TradingEnv(other, config), actions), strict=True
    ):
        assert one[0].tobytes() == two[0].tobytes()
        assert np.array_equal(one[-1]["action_mask"], two[-1]["action_mask"])


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


def test_levels_without_a_price_are_masked_and_do_nothing() -> None:
    market = without_places(crash(), slice(15))
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
