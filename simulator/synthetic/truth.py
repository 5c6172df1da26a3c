"""The hidden state of a synthetic market behind every bar, and the scenarios that continue from it.

It cannot be reached from a `MarketView`. Training scores a decision over many scenarios of the same state instead of
the one that happened. Evaluation uses the state for the oracle (`simulator.synthetic.oracle`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from simulator.arrays import FloatArray
from simulator.errors import DataError
from simulator.market.market import Market
from simulator.market.price_paths import PricePaths
from simulator.market.timeframes import interval_of
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.dynamics import STREAMS, Int8Array, Parameters, PathState, draw, evolve, settlements_of
from simulator.synthetic.private import PrivateHistory, evolve_private, jumped

STATE_COLUMNS = ("regime", "signal", "variance", "funding", "spread", "spike_left", "spike_height")  # the (T, S) arrays

_Scalar = TypeVar("_Scalar", bound=np.generic)


@dataclass(frozen=True)
class Truth:
    """The hidden state at the close of every bar: `(T, S)` arrays, row i governing bar i + 1.

    `regime` is -1 bear, 0 range, +1 bull. `signal` is the regime that drives funding and headlines: the same with
    edge, another one without. The other fields are those of `simulator.synthetic.dynamics.PathState`. `config.symbols`
    may be more than `symbols`.
    """

    config: SyntheticConfig
    symbols: tuple[str, ...]
    open_time: npt.NDArray[np.int64]  # (T,)
    regime: Int8Array
    signal: Int8Array
    storm: Int8Array  # (T,)
    variance: FloatArray
    funding: FloatArray
    spread: FloatArray
    spike_left: Int8Array
    spike_height: FloatArray
    private: PrivateHistory | None = None  # of a market of that kind

    @cached_property
    def law(self) -> Parameters:
        """The model's numbers per bar, for `symbols`."""
        return self.config.parameters(self.symbols)

    @cached_property
    def drift(self) -> FloatArray:
        """(T, S): expected simple return of the next bar. Its expected log return is `drift - vol**2 / 2`."""
        drift: FloatArray = self.regime * self.law.bull_drift
        return drift

    @cached_property
    def vol(self) -> FloatArray:
        """(T, S): standard deviation of the log return of the next bar."""
        factor = np.where(self.storm == 1, self.law.storm_variance, self.law.calm_variance)[:, None]
        vol: FloatArray = self.law.volatility * np.sqrt(factor * self.variance)
        return vol

    def select(self, symbols: Sequence[str]) -> Truth:
        """The truth about some of the symbols, in the order asked for. Raises `DataError` for an unknown one."""
        unknown = [symbol for symbol in symbols if symbol not in self.symbols]
        if unknown:
            raise DataError(f"truth: no symbol '{unknown[0]}'; there are {', '.join(self.symbols)}")
        columns = [self.symbols.index(symbol) for symbol in symbols]
        arrays = {name: np.ascontiguousarray(getattr(self, name)[:, columns]) for name in STATE_COLUMNS}
        private = None if self.private is None else self.private.select(columns)
        return Truth(self.config, tuple(symbols), self.open_time, storm=self.storm, private=private, **arrays)

    def scenarios(
        self,
        market: Market,
        index: int,
        paths: int,
        bars: int,
        seed: int,
        belief: npt.ArrayLike | None = None,
        jumps: bool = True,
    ) -> PricePaths:
        """`paths` independent continuations of `market` over the `bars` bars after bar `index`.

        They start from the hidden state and the close of bar `index`; the same arguments give the same paths. `market`
        may hold some of the symbols only. Settlements inside one bar are added up in its funding rate. With `belief`,
        (S, 3) probabilities of bear, range and bull in the order of `market`, the paths' first regimes are spread by
        it (systematic resampling, Kitagawa 1996), each coin's alone, in place of the one that was there. Without
        `jumps`, those of a market of private knowledge are left out.
        Raises `DataError` when `market` is not the one that this truth is about.
        """
        if market.symbols != self.symbols:
            return self.select(market.symbols).scenarios(market, index, paths, bars, seed, belief, jumps)
        interval = interval_of(self.config.timeframe)
        inside = 0 <= index < min(len(market), len(self.open_time))
        if market.interval != interval or not inside or market.open_time[index] != self.open_time[index]:
            raise DataError(f"{market.source}: bar {index} is not one that the truth is about")

        regime, signal = _repeat(self.regime[index], paths), _repeat(self.signal[index], paths)
        if belief is not None:
            regime = _spread(np.asarray(belief, np.float64), paths, np.random.default_rng((seed, index, 1)))
            signal = regime if self.config.edge else signal
        state = PathState(
            regime=regime,
            signal=signal,
            storm=np.repeat(self.storm[index : index + 1], paths),
            variance=_repeat(self.variance[index], paths),
            funding=_repeat(self.funding[index], paths),
            spread=_repeat(self.spread[index], paths),
            spike_left=_repeat(self.spike_left[index], paths),
            spike_height=_repeat(self.spike_height[index], paths),
        )
        open_time = self.open_time[index] + interval * np.arange(1, bars + 1, dtype=np.int64)
        settles = settlements_of(open_time, interval) >= 0
        draws = draw(
            [np.random.default_rng((seed, index))] * STREAMS,
            (paths, bars, len(self.symbols)),
            self.config.steps,
            settles.shape[1],
            self.config.tail_freedom,
            self.config.scale_cap,
        )
        course = evolve(state, _repeat(market.close[index], paths), draws, self.law, settles)
        ohlc, half_spread = (course.open, course.high, course.low, course.close), course.half_spread
        if self.private is not None:
            rng = np.random.default_rng((seed, index, 2))
            own = evolve_private(rng, half_spread.shape, self.config.edge, self.private.at(index, paths))
            half_spread = np.where(own.wide > 0.0, own.wide, half_spread)
            ohlc = jumped(*ohlc, own.jump) if jumps else ohlc
        return PricePaths(
            open=ohlc[0],
            high=ohlc[1],
            low=ohlc[2],
            close=ohlc[3],
            half_spread=half_spread,
            funding_rate=course.funding_rate.sum(axis=3),
            interval=interval,
        )


def truth_of(market: Market) -> Truth:
    """The hidden state of a synthetic market. Raises `DataError` for a market that has none."""
    if not isinstance(market.truth, Truth):
        raise DataError(f"{market.source}: its hidden state is not known; only synthetic markets have one")
    return market.truth


def _repeat(row: npt.NDArray[_Scalar], paths: int) -> npt.NDArray[_Scalar]:
    """`(S,)` -> `(paths, S)`."""
    return np.repeat(row[None], paths, axis=0)


def _spread(belief: FloatArray, paths: int, rng: np.random.Generator) -> Int8Array:
    """(P, S) regimes, of each coin as many of each kind as its belief (S, 3) says, in random order."""
    found = np.empty((paths, len(belief)), np.int8)
    for column, chances in enumerate(belief):
        at = (np.arange(paths) + rng.random()) / paths
        kind = np.searchsorted(np.cumsum(chances / chances.sum())[:-1], at, side="right")
        found[:, column] = rng.permutation(kind - 1)
    return found
