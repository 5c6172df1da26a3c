"""Gymnasium environments: one account, or N accounts side by side, on one market.

`TradingEnv` and `TradingVectorEnv` hold the same accounts and step them with `simulator.kernel.kernel`, so an episode
gives the equity that an `Exchange` gives when it is fed the same target exposures. Importing this module registers
`cryptosentinel/Trading-v0` for `gymnasium.make` and `gymnasium.make_vec`.

An episode starts at the close of a bar with a flat account and lasts `EnvConfig.length` bars. An action is decided at a
close and names exposures; what has to be traded for them is sized and traded at the next open, costs included. An
action that repeats the standing one trades nothing if it is discrete, so drift is left alone; a continuous one brings
the exposure back. Once a position is gone without a decision (liquidated, or too small to be opened), the standing one
is flat.

The accounts of a vector environment share the clock: all start at the same bar. One that is liquidated or has lost its
equity is terminated; at the next step it takes no action and begins again with fresh cash, at the bar where the others
are, for the rest of their episode. At the end of an episode all are truncated, and the next step resets all to a new
start. So `metadata["autoreset_mode"]` is NEXT_STEP.

Every number of the observations is described in `simulator.env.observations`. `info` holds, per account: `equity`,
`costs` (fees, spread, impact, funding, interest and liquidation fees paid so far), `bar` (index of the market's bar at
whose close it stands) and, for discrete actions, `action_mask`: 1 for levels that can be reached, int8 of shape
(levels,) for one symbol, else (symbols, levels). The standing level is always allowed. Masked are all others of a
symbol that has not traded yet, those of an account that is over, and those beyond the leverage of the margin tier or
the isolated position. To choose one is not an error: without a price nothing happens; otherwise it grows as far
as the margin reaches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from simulator.arrays import BoolArray, FloatArray
from simulator.env.observations import SmallArray, columns, prepare
from simulator.env.step import (
    EnvMemory,
    Given,
    MaskArray,
    Results,
    choose_levels,
    step,
    write_observations,
)
from simulator.errors import DataError
from simulator.exchange.costs import Costs, check_leverage
from simulator.exchange.tape import last_closes, late_rows, market_tape, terms_of
from simulator.exchange.venue import Venue, kind_of
from simulator.kernel import layout as at
from simulator.kernel.layout import KernelState
from simulator.market.market import Market

ENV_ID = "cryptosentinel/Trading-v0"


@dataclass(frozen=True)
class EnvConfig:
    """What an environment is like.

    Attributes:
        window: bars in an observation.
        length: bars of an episode, a multiple of `decide_every`.
        decide_every: bars from one action to the next.
        actions: "discrete" chooses one of `levels` for each symbol (`Discrete`, for several symbols `MultiDiscrete`);
            "continuous" any number from the least to the greatest of them (`Box`).
        levels: exposures as shares of ``max_exposure / symbols``, from -1 to 1, rising, 0 among them.
        max_exposure: gross exposure of the boldest action, at most `max_leverage`.
        cash: what an account starts with, in quote currency.
        costs, max_leverage, venue: as of `simulator.exchange.exchange.Exchange`. A latency must be below
        `decide_every`.
        first, stop: the market's bars that episodes may use: the first close at which one may start, and the bar
            before which all end (None: the last one counts). Each episode draws its start. Observations look back
            beyond `first`.

    Raises:
        DataError: a value out of range.
    """

    window: int = 8
    length: int = 240
    decide_every: int = 1
    actions: Literal["discrete", "continuous"] = "discrete"
    levels: tuple[float, ...] = (-1.0, 0.0, 1.0)
    max_exposure: float = 1.0
    cash: float = 10_000.0
    costs: Costs = field(default_factory=Costs)
    max_leverage: float = 1.0
    venue: Venue = field(default_factory=Venue)
    first: int = 0
    stop: int | None = None

    def __post_init__(self) -> None:
        check_leverage(self.max_leverage)
        for name in ("window", "length", "decide_every"):
            if getattr(self, name) < 1:
                raise DataError(f"{name} is {getattr(self, name)}; give at least 1 bar.")
        if self.length % self.decide_every:
            raise DataError(
                f"length {self.length} is not a multiple of decide_every {self.decide_every}; change either."
            )
        if self.actions not in ("discrete", "continuous"):
            raise DataError(f"actions is '{self.actions}'; use discrete or continuous.")
        rising = all(low < high for low, high in zip(self.levels, self.levels[1:], strict=False))
        if len(self.levels) < 2 or not rising or 0.0 not in self.levels or max(map(abs, self.levels)) > 1.0:
            raise DataError(f"levels are {self.levels}; give two or more from -1 to 1, rising, 0 among them.")
        if not 0.0 < self.max_exposure <= self.max_leverage:
            raise DataError(f"max_exposure is {self.max_exposure}; give more than 0 and at most {self.max_leverage:g}.")
        if not (math.isfinite(self.cash) and self.cash > 0.0):
            raise DataError(f"the starting cash is {self.cash}; give a positive amount.")
        if self.costs.latency_bars >= self.decide_every:
            raise DataError(
                f"a latency of {self.costs.latency_bars} bars reaches the next decision; "
                f"give a larger decide_every than {self.decide_every}."
            )


class _Accounts:
    """N accounts that share a clock, from one reset to the next. `index` is the bar at whose close they stand, `end`
    the one at which the episode ends, -1 both before the first. Raises `DataError` where no episode fits."""

    def __init__(self, market: Market, config: EnvConfig, count: int) -> None:
        self.market, self.config, self.count = market, config, count
        stop = len(market) if config.stop is None else config.stop
        last = stop - 1 - config.length
        if not 0 <= config.first <= last or stop > len(market):
            raise DataError(
                f"an episode of {config.length} bars does not fit into bars {config.first}..{stop - 1} of "
                f"{market.source}, which has {len(market)}; it needs {config.length + 1}."
            )
        symbols = len(market.symbols)
        self._range = (config.first, last + 1)
        tape, self._per_bar = market_tape(market, config.first + 1, stop, config.costs, config.venue)
        interval = market.interval // self._per_bar
        kinds = [kind_of(symbol, market, config.venue) for symbol in market.symbols]
        terms = terms_of(market.symbols, kinds, interval, config.costs, config.max_leverage, config.venue)
        late, _ = late_rows(config.costs.latency_ms, interval)
        # The row of a step in which the venue gets its actions.
        self._due = config.costs.latency_bars * self._per_bar + late
        if self._due >= config.decide_every * self._per_bar:
            raise DataError(
                f"a latency of {config.costs.latency_bars} bars and {config.costs.latency_ms} ms reaches the next "
                f"decision; give a larger decide_every than {config.decide_every}."
            )
        self._places = len(columns(market.symbols, config.window))
        self._unit = config.max_exposure / symbols
        self._levels = np.array(config.levels) * self._unit
        self._state = at.new_state(count, symbols, 1, config.cash)
        self._state.accounts[:, at.MAKER_FEE] = config.costs.maker_fee
        self._state.accounts[:, at.TAKER_FEE] = config.costs.taker_fee
        self._fresh = KernelState(*(array.copy() for array in self._state))
        self._memory = EnvMemory(
            np.zeros((count, symbols)), np.zeros((count, symbols)), np.zeros(count), np.zeros(count),
            np.zeros(count, np.bool_),
        )  # fmt: skip
        self._asked = np.zeros((count, symbols))
        features = prepare(market, config.window, config.costs.spread_multiplier)
        targets = np.full((count, config.decide_every * self._per_bar, symbols), np.nan)
        levels = self._levels if config.actions == "discrete" else self._levels[:0]
        given = Given(self._asked, targets, levels, features.bars, features.newest)
        self._arrays = (*tape, *terms, *self._state, *at.new_log(0), *self._memory, *given)
        self._shapes = (count, self._places), (count, symbols, len(levels))
        self._over = 0  # accounts that begin anew at the next step
        self.index = self.end = -1

    def begin(self, rng: np.random.Generator, options: dict[str, Any] | None) -> Results:
        """Start an episode of all accounts; the results hold no rewards. Raises `DataError` for options: there are
        none."""
        if options:
            raise DataError(f"a reset takes no options, got {', '.join(options)}; starts belong to the configuration.")
        self.index = int(rng.integers(*self._range))
        self.end = self.index + self.config.length
        self._renew(np.arange(self.count))
        self._memory.over[:] = False
        self._over = 0
        results = self._results(np.zeros)
        results.equity[:] = self.config.cash
        write_observations(self.index, 1.0, *self._arrays, *results)
        return results

    def _results(self, make: Callable[..., NDArray[Any]]) -> Results:
        """New arrays, which belong to the caller from then on."""
        n, (rows, mask) = self.count, self._shapes
        return Results(make(n), make(n, np.bool_), make(n), make(n), make(rows, np.float32), make(mask, np.int8))

    def _renew(self, rows: NDArray[np.int64]) -> None:
        """Make these accounts flat and fresh at the close where the clock stands."""
        for array, fresh in zip(self._state, self._fresh, strict=True):
            array[rows] = fresh[rows]
        self._state.positions[rows, :, at.MARK] = last_closes(self.market, self.index)
        for array in (self._memory.wanted, self._memory.held, self._memory.idle):
            array[rows] = 0.0
        self._memory.before[rows] = self.config.cash

    def step(self, actions: Any) -> Results:
        """Let all accounts act, except those that are over: these begin again."""
        self._decode(actions)
        if self._over:
            self._renew(np.flatnonzero(self._memory.over))
        config, first, row = self.config, self.config.first + 1, self.index + 1
        self.index += config.decide_every
        results = self._results(np.empty)
        self._over = step(
            (row - first) * self._per_bar, self._due, first * self._per_bar,
            config.actions == "continuous", config.decide_every / config.length,
            self.index, (self.end - self.index) / config.length,
            *self._arrays, *results,
        )  # fmt: skip
        np.log(results.rewards, out=results.rewards)
        return results

    def _decode(self, actions: Any) -> None:
        """Turn actions into exposures. Raises `DataError` for what is not in the action space."""
        given, shape = np.asarray(actions), self._asked.shape
        if given.size != self._asked.size:
            raise DataError(f"the actions have shape {given.shape}; {shape} (accounts, symbols) is needed.")
        given = given.reshape(shape)
        if self.config.actions == "discrete":
            if given.dtype.kind not in "iu" or not choose_levels(
                given.astype(np.int64, copy=False), self._levels, self._asked
            ):
                raise DataError(f"an action names no level; give whole numbers from 0 to {len(self._levels) - 1}.")
            return
        low, high = self.config.levels[0], self.config.levels[-1]
        if given.dtype.kind not in "iuf" or not ((given >= low - 1e-6) & (given <= high + 1e-6)).all():
            raise DataError(f"an action is not within {low:g}..{high:g}; clip actions before the step.")
        np.multiply(np.clip(given.astype(np.float64), low, high), self._unit, out=self._asked)

    def masks(self, results: Results) -> MaskArray:
        """(N, levels) for one symbol, else (N, S, levels); without levels for continuous actions."""
        return results.mask[:, 0] if results.mask.shape[1] == 1 else results.mask

    def infos(self, results: Results) -> dict[str, Any]:
        """See the module's docstring; arrays by account."""
        infos: dict[str, Any] = {
            "equity": results.equity,
            "costs": results.costs,
            "bar": np.full(self.count, self.index),
        }
        if self.config.actions == "discrete":
            infos["action_mask"] = self.masks(results)
        return infos

    def info(self, results: Results) -> dict[str, Any]:
        """Of the only account."""
        info = {name: values[0] for name, values in self.infos(results).items()}
        return info | {"equity": float(info["equity"]), "costs": float(info["costs"]), "bar": self.index}

    def observation_space(self) -> spaces.Space[SmallArray]:
        """Of one account."""
        bounds = np.array([(low, high) for _, low, high in columns(self.market.symbols, self.config.window)])
        low, high = bounds.T.astype(np.float32)
        return cast("spaces.Space[SmallArray]", spaces.Box(low, high, dtype=np.float32))

    def action_space(self) -> spaces.Space[Any]:
        """Of one account."""
        symbols, levels = self._asked.shape[1], self.config.levels
        if self.config.actions == "continuous":
            return spaces.Box(levels[0], levels[-1], (symbols,), np.float32)
        return spaces.Discrete(len(levels)) if symbols == 1 else spaces.MultiDiscrete([len(levels)] * symbols)


class TradingEnv(gymnasium.Env[SmallArray, Any]):
    """One account, see the module's docstring. Raises `DataError` for a market on which no episode fits."""

    metadata = {"render_modes": []}  # noqa: RUF012 - the base class declares it so

    def __init__(self, market: Market, config: EnvConfig | None = None) -> None:
        self.config = config or EnvConfig()
        self._accounts = _Accounts(market, self.config, 1)
        self._running = False
        self._seen: Results | None = None
        self.observation_space = self._accounts.observation_space()
        self.action_space = self._accounts.action_space()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[SmallArray, dict[str, Any]]:
        """Begin an episode. Same seed, same bytes."""
        super().reset(seed=seed)
        self._seen = self._accounts.begin(self.np_random, options)
        self._running = True
        return self._seen.rows[0], self._accounts.info(self._seen)

    def step(self, action: Any) -> tuple[SmallArray, float, bool, bool, dict[str, Any]]:
        """Act, and stand at the close of the bar where the next action is due."""
        if not self._running:
            raise gymnasium.error.ResetNeeded("the episode is over or has not begun; call reset first.")
        self._seen = results = self._accounts.step(action)
        terminated = bool(results.terminated[0])
        truncated = not terminated and self._accounts.index == self._accounts.end
        self._running = not (terminated or truncated)
        return results.rows[0], float(results.rewards[0]), terminated, truncated, self._accounts.info(results)

    def action_masks(self) -> BoolArray:
        """(levels,) or (symbols, levels): True for what can be reached. Continuous actions have no levels."""
        if self._seen is None:
            raise gymnasium.error.ResetNeeded("no episode has begun; call reset first.")
        return self._accounts.masks(self._seen)[0].astype(np.bool_)


class TradingVectorEnv(VectorEnv[SmallArray, Any, NDArray[Any]]):
    """`num_envs` accounts that share a clock, see the module's docstring; every array that it returns is a new one.

    The same seed gives the starts that it gives in a `TradingEnv`. Raises `DataError` for a market on which no episode
    fits.
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 - as in the base class

    def __init__(self, market: Market, num_envs: int = 1, config: EnvConfig | None = None) -> None:
        if num_envs < 1:
            raise DataError(f"num_envs is {num_envs}; give at least 1.")
        self.config = config or EnvConfig()
        self.num_envs = num_envs
        self._accounts = _Accounts(market, self.config, num_envs)
        self._seen: Results | None = None
        self.single_observation_space = self._accounts.observation_space()
        self.single_action_space = self._accounts.action_space()
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[SmallArray, dict[str, Any]]:
        """Begin an episode of all accounts."""
        super().reset(seed=seed)
        self._seen = self._accounts.begin(self.np_random, options)
        return self._seen.rows, self._accounts.infos(self._seen)

    def step(self, actions: Any) -> tuple[SmallArray, FloatArray, BoolArray, BoolArray, dict[str, Any]]:
        """Let all accounts act; after the end of an episode, begin the next one instead."""
        accounts = self._accounts
        if accounts.index < 0:
            raise gymnasium.error.ResetNeeded("no episode has begun; call reset first.")
        no = np.zeros(self.num_envs, np.bool_)
        if accounts.index == accounts.end:
            observations, infos = self.reset()
            return observations, np.zeros(self.num_envs), no, no.copy(), infos
        self._seen = results = accounts.step(actions)
        truncated = ~results.terminated if accounts.index == accounts.end else no
        return results.rows, results.rewards, results.terminated, truncated, accounts.infos(results)

    def action_masks(self) -> BoolArray:
        """(N, levels) or (N, symbols, levels): True for what can be reached. Continuous actions have no levels."""
        if self._seen is None:
            raise gymnasium.error.ResetNeeded("no episode has begun; call reset first.")
        return self._accounts.masks(self._seen).astype(np.bool_)


gymnasium.register(
    ENV_ID,
    entry_point="simulator.env.trading_env:TradingEnv",
    vector_entry_point="simulator.env.trading_env:TradingVectorEnv",
)
