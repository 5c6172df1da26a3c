"""The law of motion of the synthetic market: one step for all coins, the same for history and for scenarios.

`draw` makes all the randomness, `evolve` turns it into bars, deterministically. History is one path from the initial
state; `Truth.scenarios` is many paths from the state at some bar. Both use this code, so scenarios are true
continuations of the history.

Shapes: P paths, B bars, S coins, K sub-steps of a bar, M funding settlements of a bar.

The model (per coin and bar unless said otherwise):

* **Regime** in {-1 bear, 0 range, +1 bull}. With a small probability a bar it is redrawn from fixed weights. Part of
  these draws hit all coins at once with one result, which correlates their regimes; each coin alone is still a Markov
  chain, P = (1-q) I + q 1 w'.
* **Return.** log r = drift(regime) - s^2/2 + s e, so the expected simple return of the next bar is drift(regime).
* **Volatility.** s^2 = s0^2 * storm * h. `storm` is a market-wide two-state chain, h is GARCH(1,1) of mean one, driven
  by the coin's own shocks (Bollerslev 1986). Neither depends on the drift.
* **Shock** e: Student t, built as a Gaussian (correlated between coins) times a common random scale, so that all coins
  jump together. The Gaussian is split into K sub-steps, whose extremes are the bar's high and low.
* **Funding** every 8 h: an AR(1) around the sign of the *signal* regime. With edge the signal is the regime; without,
  it is another chain of the same law, so funding and news look the same and carry no information.
* **Half spread**: log AR(1) around its base, replaced by a spike of some bars now and then.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import gamma
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simulator.arrays import FloatArray
from simulator.kernel.jit import allocating, compiled

Int8Array = npt.NDArray[np.int8]

STREAMS = 10  # random streams that `draw` reads
FUNDING_INTERVAL = 28_800_000  # ms between settlements, which fall on whole multiples of it


class Parameters(NamedTuple):
    """The numbers of the model, per bar. Probabilities in [0, 1]."""

    redraw_market: float  # probability that all coins' regimes are drawn anew with one result
    redraw_own: float  # the same for one coin alone
    bear_weight: float
    bull_weight: float
    redraw_storm: float
    storm_share: float
    calm_variance: float  # factors of the variance
    storm_variance: float
    persistence: float  # of h
    reaction: float  # of h to the last squared shock
    variance_cap: float
    volatility: FloatArray  # (S,) s0
    bull_drift: FloatArray  # (S,), 0 without edge
    correlation: float  # of the shocks between coins
    edge: bool
    funding_scale: float
    funding_memory: float
    funding_noise: float
    spread_base: float
    spread_memory: float
    spread_noise: float
    spike_onset: float  # probability of a new spike in a bar without one
    spike_shortest: int  # bars
    spike_longest: int
    spike_low: float  # half spread in a spike
    spike_high: float


class PathState(NamedTuple):
    """The hidden state at the close of a bar: together with new randomness it determines all later bars."""

    regime: Int8Array  # (P, S), governs the next bar
    signal: Int8Array  # (P, S), the regime that funding and news speak of
    storm: Int8Array  # (P,)
    variance: FloatArray  # (P, S) h of the next bar
    funding: FloatArray  # (P, S)
    spread: FloatArray  # (P, S) log deviation from the base
    spike_left: Int8Array  # (P, S) further bars of the running spike
    spike_height: FloatArray  # (P, S) half spread of the running or last spike


class Draws(NamedTuple):
    """The randomness of B bars: standard normals and uniforms, and the common scale of the shocks."""

    market_steps: FloatArray  # (P, B, K)
    own_steps: FloatArray  # (P, B, S, K)
    scale: FloatArray  # (P, B)
    market_regime: FloatArray  # (P, B, 2) uniforms: whether, what
    own_regime: FloatArray  # (P, B, S, 2)
    market_signal: FloatArray  # (P, B, 2)
    own_signal: FloatArray  # (P, B, S, 2)
    storm: FloatArray  # (P, B, 2)
    funding: FloatArray  # (P, B, S, M)
    spread: FloatArray  # (P, B, S)
    spike: FloatArray  # (P, B, S, 3) uniforms: whether, how long, how high


class Course(NamedTuple):
    """What happened: bars `(P, B, S)`, funding rates `(P, B, S, M)` and the state after every bar."""

    open: FloatArray
    high: FloatArray
    low: FloatArray
    close: FloatArray
    half_spread: FloatArray
    funding_rate: FloatArray
    regime: Int8Array
    signal: Int8Array
    storm: Int8Array  # (P, B)
    variance: FloatArray
    funding: FloatArray
    spread: FloatArray
    spike_left: Int8Array
    spike_height: FloatArray


def draw(
    streams: Sequence[np.random.Generator],
    shape: tuple[int, int, int],
    steps: int,
    settlements: int,
    tail_freedom: float,
    scale_cap: float,
) -> Draws:
    """Randomness for `shape` = (P, B, S).

    Each of the `STREAMS` generators is read bar by bar, so with P = 1 and distinct generators more bars never change
    the earlier ones. One generator may stand for all of them where that does not matter.
    """
    paths, bars, symbols = shape
    shocks, mixing, regimes, own_regimes, signals, own_signals, storms, fundings, spreads, spikes = streams
    # Both are handed on as arrays of their own: of one bar of one path a part lies in memory without gaps, of more it
    # does not, and numba would compile `evolve` for each.
    steps_of_all = shocks.standard_normal((paths, bars, symbols + 1, steps))
    scale = np.sqrt((tail_freedom - 2) / mixing.chisquare(tail_freedom, (paths, bars)))
    return Draws(
        market_steps=np.ascontiguousarray(steps_of_all[:, :, 0]),
        own_steps=np.ascontiguousarray(steps_of_all[:, :, 1:]),
        scale=np.minimum(scale, scale_cap) / _capped_deviation(tail_freedom, scale_cap),
        market_regime=regimes.random((paths, bars, 2)),
        own_regime=own_regimes.random((paths, bars, symbols, 2)),
        market_signal=signals.random((paths, bars, 2)),
        own_signal=own_signals.random((paths, bars, symbols, 2)),
        storm=storms.random((paths, bars, 2)),
        funding=fundings.standard_normal((paths, bars, symbols, settlements)),
        spread=spreads.standard_normal((paths, bars, symbols)),
        spike=spikes.random((paths, bars, symbols, 3)),
    )


@lru_cache
def _capped_deviation(tail_freedom: float, cap: float) -> float:
    """Root mean square of min(sqrt((n-2)/W), cap) for W chi-squared with n degrees: the capped shock's deviation.

    The cap makes the expected simple return finite (a Student t has no exponential moment). Integrated over log W.
    """
    log_w = np.linspace(np.log(1e-9), np.log(50.0 * tail_freedom), 20_001)
    w = np.exp(log_w)
    density = w ** (tail_freedom / 2) * np.exp(-w / 2) / (2 ** (tail_freedom / 2) * gamma(tail_freedom / 2))
    square = np.minimum((tail_freedom - 2) / w, cap**2)
    return float(np.sqrt(np.trapezoid(square * density, log_w)))


def settlements_of(open_time: npt.NDArray[np.int64], interval: int) -> npt.NDArray[np.int64]:
    """Funding settlements in the bars that open at `open_time`: `(B, M)` times in ms, -1 where there is none.

    A settlement belongs to the bar with open < time <= close.
    """
    most = max(1, -(-interval // FUNDING_INTERVAL))
    first = (open_time // FUNDING_INTERVAL + 1) * FUNDING_INTERVAL
    times = first[:, None] + FUNDING_INTERVAL * np.arange(most)
    return np.where(times <= (open_time + interval)[:, None], times, -1)


@compiled
def _redrawn(old: int, market: FloatArray, own: FloatArray, law: Parameters) -> int:
    """The regime after one bar; `market` and `own` hold two uniforms each: whether, what."""
    new = old
    if market[0] < law.redraw_market:
        new = -1 if market[1] < law.bear_weight else (1 if market[1] >= 1.0 - law.bull_weight else 0)
    if own[0] < law.redraw_own:
        new = -1 if own[1] < law.bear_weight else (1 if own[1] >= 1.0 - law.bull_weight else 0)
    return new


@allocating
def evolve(
    state: PathState,
    price: FloatArray,
    draws: Draws,
    law: Parameters,
    settles: npt.NDArray[np.bool_],
) -> Course:
    """Continue from `state` and the last prices `(P, S)`. `settles` is `(B, M)`: which settlements take place."""
    paths, bars, symbols, steps = draws.own_steps.shape
    shape = (paths, bars, symbols)
    out = Course(
        open=np.empty(shape),
        high=np.empty(shape),
        low=np.empty(shape),
        close=np.empty(shape),
        half_spread=np.empty(shape),
        funding_rate=np.zeros((paths, bars, symbols, settles.shape[1])),
        regime=np.empty(shape, np.int8),
        signal=np.empty(shape, np.int8),
        storm=np.empty((paths, bars), np.int8),
        variance=np.empty(shape),
        funding=np.empty(shape),
        spread=np.empty(shape),
        spike_left=np.empty(shape, np.int8),
        spike_height=np.empty(shape),
    )
    common = np.sqrt(law.correlation / steps)
    alone = np.sqrt((1.0 - law.correlation) / steps)
    funding_kick = law.funding_noise * np.sqrt(1.0 - law.funding_memory**2)
    spread_kick = law.spread_noise * np.sqrt(1.0 - law.spread_memory**2)
    lengths = law.spike_longest - law.spike_shortest + 1
    for p in range(paths):
        for s in range(symbols):
            regime, signal, storm = state.regime[p, s], state.signal[p, s], state.storm[p]
            variance, funding, spread = state.variance[p, s], state.funding[p, s], state.spread[p, s]
            left, height = state.spike_left[p, s], state.spike_height[p, s]
            last = price[p, s]
            for b in range(bars):
                # Price: all of the bar is governed by the state at the close before it.
                factor = law.storm_variance if storm else law.calm_variance
                volatility = law.volatility[s] * np.sqrt(factor * variance)
                step_mean = (regime * law.bull_drift[s] - 0.5 * volatility**2) / steps
                step_size = volatility * draws.scale[p, b]
                path, high, low, gauss = 0.0, 0.0, 0.0, 0.0
                for k in range(steps):
                    kick = common * draws.market_steps[p, b, k] + alone * draws.own_steps[p, b, s, k]
                    gauss += kick
                    path += step_mean + step_size * kick
                    high = max(high, path)
                    low = min(low, path)
                out.open[p, b, s] = last
                out.high[p, b, s] = last * np.exp(high)
                out.low[p, b, s] = last * np.exp(low)
                last *= np.exp(path)
                out.close[p, b, s] = last
                # Funding is settled at times inside the bar, under the same regime.
                for m in range(settles.shape[1]):
                    if settles[b, m]:
                        pull = (1.0 - law.funding_memory) * signal
                        funding = law.funding_memory * funding + pull + funding_kick * draws.funding[p, b, s, m]
                        out.funding_rate[p, b, s, m] = law.funding_scale * funding
                # Spread: a running spike stays; else one may begin.
                spread = law.spread_memory * spread + spread_kick * draws.spread[p, b, s]
                if left > 0:
                    left -= 1
                    out.half_spread[p, b, s] = height
                elif draws.spike[p, b, s, 0] < law.spike_onset:
                    left = law.spike_shortest - 1 + int(draws.spike[p, b, s, 1] * lengths)
                    height = law.spike_low + (law.spike_high - law.spike_low) * draws.spike[p, b, s, 2]
                    out.half_spread[p, b, s] = height
                else:
                    out.half_spread[p, b, s] = law.spread_base * np.exp(spread - 0.5 * law.spread_noise**2)
                # The state for the next bar.
                shock = gauss * draws.scale[p, b]
                variance = (
                    1.0 - law.persistence
                    + law.reaction * variance * shock**2
                    + (law.persistence - law.reaction) * variance
                )  # fmt: skip
                variance = min(variance, law.variance_cap)
                regime = _redrawn(regime, draws.market_regime[p, b], draws.own_regime[p, b, s], law)
                if law.edge:
                    signal = regime
                else:
                    signal = _redrawn(signal, draws.market_signal[p, b], draws.own_signal[p, b, s], law)
                if draws.storm[p, b, 0] < law.redraw_storm:
                    storm = 1 if draws.storm[p, b, 1] < law.storm_share else 0
                out.regime[p, b, s] = regime
                out.signal[p, b, s] = signal
                out.storm[p, b] = storm
                out.variance[p, b, s] = variance
                out.funding[p, b, s] = funding
                out.spread[p, b, s] = spread
                out.spike_left[p, b, s] = left
                out.spike_height[p, b, s] = height
    return out
