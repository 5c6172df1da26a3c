"""The market in which each role knows what no other does (`kind = "private"`): hidden chains over the present one.

Drift, volatility, funding and shocks are those of `simulator.synthetic.dynamics`, bit for bit. On top of them, for
each coin alone:

* **Liquidity.** With probability 1 / WIDE_BARS a bar it is drawn again: wide with probability WIDE_SHARE, and then the
  half spread is one of WIDE_SPREAD until the next draw. Only Trader's tools show a spread.
* **Crowding.** With probability 1 / CROWD_BARS a bar it is drawn again: crowded with probability CROWD_SHARE. A draw
  that ends a crowded time comes with a jump with probability JUMP_CHANCE: the price is multiplied by 1 + JUMP_SIZE or
  1 - JUMP_SIZE, equally likely, so a jump has no drift. Only RiskAnalyst's tools show the crowding.
* **Headlines**, of all coins at once: with probability 1 / PRESS_BARS a bar it is drawn again whether they are
  confirmed (right with the accuracy of the configuration) or rumours (right half of the time). Only MarketAnalyst's
  tools show it, and only they show which way prices went, headlines and funding.

A jump comes where the state is drawn again, so the state after it knows nothing of it. And a past without a jump does
not make a crowded time less likely either: with share w, chance j and rate q of a draw, the chance x of a crowded time
given no jump so far obeys x' (1 - q x j) = x (1 - q) + q w (1 - x j), of which x = w is the fixed point. So prices say
nothing about the crowding.

On the no-edge control the same happens, and what the tools show has nothing to do with it: the crowding that is
shown is another chain of the same law, and spreads are drawn again at every bar, so that the one shown says nothing of
the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from simulator.arrays import BoolArray, FloatArray

WIDE_BARS: Final = 48  # mean length of a state of liquidity, 8 days of 4h bars
WIDE_SHARE: Final = 0.4
WIDE_SPREAD: Final = (50e-4, 150e-4)  # half spread, evenly
CROWD_BARS: Final = 18
CROWD_SHARE: Final = 0.25
JUMP_CHANCE: Final = 0.9
JUMP_SIZE: Final = 0.15
PRESS_BARS: Final = 120
CONFIRMED_SHARE: Final = 0.5
RUMOUR_ACCURACY: Final = 0.5

_DRAWS = 9  # uniforms a bar and coin
_Scalar = TypeVar("_Scalar", bound=np.generic)


class PrivateState(NamedTuple):
    """The state at the close of a bar, `(P, S)`: it governs the next bar."""

    wide: FloatArray  # half spread of a wide market, 0 where it is not wide
    crowded: BoolArray
    shown: BoolArray  # the crowding that is shown: the same, but for the twin
    confirmed: BoolArray


class PrivateCourse(NamedTuple):
    """What happened, `(P, B, S)`: the factor of the price by which each bar jumped, and the state after every bar."""

    jump: FloatArray
    wide: FloatArray
    crowded: BoolArray
    shown: BoolArray
    confirmed: BoolArray


@dataclass(frozen=True)
class PrivateHistory:
    """The states of a market behind every bar, `(T, S)`."""

    jump: FloatArray
    wide: FloatArray
    crowded: BoolArray
    shown: BoolArray
    confirmed: BoolArray

    def select(self, columns: list[int]) -> PrivateHistory:
        """Those of some of the symbols, by their columns."""
        return PrivateHistory(
            self.jump[:, columns],
            self.wide[:, columns],
            self.crowded[:, columns],
            self.shown[:, columns],
            self.confirmed[:, columns],
        )

    def at(self, index: int, paths: int) -> PrivateState:
        """The state after bar `index` at the start of that number of paths."""
        arrays = (self.wide, self.crowded, self.shown, self.confirmed)
        return PrivateState(*(np.repeat(array[index][None], paths, axis=0) for array in arrays))


def evolve_private(
    rng: np.random.Generator, shape: tuple[int, int, int], edge: bool, state: PrivateState | None = None
) -> PrivateCourse:
    """Continue from `state`, or begin with a draw of all states, over `shape` = (P, B, S). `rng` is read bar by bar, so
    with P = 1 more bars never change the earlier ones."""
    paths, bars, symbols = shape
    uniforms = rng.random((paths, bars, symbols + 1, _DRAWS))
    own, common = uniforms[:, :, :symbols], uniforms[:, :, symbols:]
    begins = np.zeros(shape, np.bool_)
    if state is None:
        begins[:, 0] = True
        none = np.zeros((paths, symbols))
        state = PrivateState(none, none > 0.0, none > 0.0, none > 0.0)
    low, high = WIDE_SPREAD
    spreads = np.where(own[..., 1] < WIDE_SHARE, low + (high - low) * own[..., 2], 0.0)
    wide = _held(begins | (own[..., 0] < (1.0 / WIDE_BARS if edge else 1.0)), spreads, state.wide)
    anew = begins | (own[..., 3] < 1.0 / CROWD_BARS)
    crowded = _held(anew, own[..., 4] < CROWD_SHARE, state.crowded)
    before = np.concatenate([state.crowded[:, None], crowded[:, :-1]], axis=1)
    jumps = anew & before & (own[..., 5] < JUMP_CHANCE)
    jump = np.where(jumps, np.where(own[..., 6] < 0.5, 1.0 + JUMP_SIZE, 1.0 - JUMP_SIZE), 1.0)
    shown = crowded
    if not edge:
        shown = _held(begins | (own[..., 7] < 1.0 / CROWD_BARS), own[..., 8] < CROWD_SHARE, state.shown)
    press_anew = np.broadcast_to(common[..., 0] < 1.0 / PRESS_BARS, shape) | begins
    press = np.broadcast_to(common[..., 1] < CONFIRMED_SHARE, shape)
    return PrivateCourse(jump, wide, crowded, shown, _held(press_anew, press, state.confirmed))


def jumped(
    open_: FloatArray, high: FloatArray, low: FloatArray, close: FloatArray, jump: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Bars (P, B, S) with jumps at their ends: the same moves, and the factors of `jump` on top of them."""
    after = np.cumprod(jump, axis=1)
    before = np.concatenate([np.ones_like(after[:, :1]), after[:, :-1]], axis=1)
    moved = close * after
    return open_ * before, np.maximum(high * before, moved), np.minimum(low * before, moved), moved


def jump_probability(crowded: bool, bars: int) -> float:
    """Probability of at least one jump in the next `bars` bars."""
    draw, in_crowd, outside = 1.0 / CROWD_BARS, float(crowded), float(not crowded)  # and no jump so far
    for _ in range(bars):
        anew = draw * (outside + in_crowd * (1.0 - JUMP_CHANCE))
        in_crowd, outside = (
            (1.0 - draw) * in_crowd + CROWD_SHARE * anew,
            (1.0 - draw) * outside + (1.0 - CROWD_SHARE) * anew,
        )
    return 1.0 - in_crowd - outside


def jump_variance(crowded: bool, bars: int) -> float:
    """Variance of the return over `bars` bars that comes from jumps, up to a second jump."""
    return jump_probability(crowded, bars) * JUMP_SIZE**2


def headline_accuracy(history: PrivateHistory, confirmed: float) -> FloatArray:
    """(T, S): the accuracy of the headlines that appear in each bar, `confirmed` in a time of confirmed ones."""
    before = np.concatenate([history.confirmed[:1], history.confirmed[:-1]])
    return np.where(before, confirmed, RUMOUR_ACCURACY)


def _held(anew: BoolArray, drawn: npt.NDArray[_Scalar], first: npt.NDArray[_Scalar]) -> npt.NDArray[_Scalar]:
    """(P, B, S): what was drawn at the last bar that drew again, `first` (P, S) before any did."""
    bars = np.arange(anew.shape[1])[None, :, None]
    last = np.maximum.accumulate(np.where(anew, bars, -1), axis=1)
    held = np.take_along_axis(drawn, np.maximum(last, 0), axis=1)
    return np.where(last >= 0, held, first[:, None])
