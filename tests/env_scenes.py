"""Markets and episodes for the tests of the environments."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from simulator.env.observations import columns
from simulator.env.trading_env import EnvConfig, TradingEnv
from simulator.market.events import FundingEvent
from simulator.market.market import Market

HOUR = 3_600_000
NAMES = ("A", "B", "C")
SEEDS = st.integers(0, 2**32 - 1)


@cache
def walk(seed: int, bars: int = 160, count: int = 1, step: float = 0.02, absent: float = 0.0) -> Market:
    """A random walk with wicks, spread, volume, funding every fourth bar and, maybe, holes."""
    rng = np.random.default_rng(seed)
    close = 100.0 * np.exp(np.cumsum(rng.normal(0.0, step, (bars, count)), axis=0))
    first = close * np.exp(rng.normal(0.0, step, (bars, count)))
    arrays: dict[str, Any] = {
        "open": first,
        "high": np.maximum(first, close) * np.exp(np.abs(rng.normal(0.0, step / 2, (bars, count)))),
        "low": np.minimum(first, close) * np.exp(-np.abs(rng.normal(0.0, step / 2, (bars, count)))),
        "close": close,
        "volume": rng.lognormal(6.0, 1.0, (bars, count)),
        "half_spread": rng.uniform(0.0, 0.005, (bars, count)),
    }
    gone = rng.random((bars, count)) < absent
    for array in arrays.values():
        array[gone] = np.nan
    times = np.arange(4, bars, 4) * HOUR
    funding = {
        name: tuple(FundingEvent(int(t), float(rng.normal(0.0, 0.001))) for t in times) for name in NAMES[:count]
    }
    open_time = np.arange(bars, dtype=np.int64) * HOUR
    return Market(symbols=NAMES[:count], timeframe="1h", open_time=open_time, funding=funding, **arrays)


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


# The interface.


def crash(bars: int = 40, at: int = 20) -> Market:
    """Flat at 100, then 30 for good from bar `at` on."""
    close = np.where(np.arange(bars) < at, 100.0, 30.0)[:, None]
    first = np.concatenate([close[:1], close[:-1]])
    arrays: dict[str, Any] = dict.fromkeys(("volume", "half_spread"), np.zeros((bars, 1)))
    arrays |= {"open": first, "close": close, "high": np.maximum(first, close), "low": np.minimum(first, close)}
    return Market(("A",), "1h", np.arange(bars, dtype=np.int64) * HOUR, **arrays)
