"""Compiled: one decision of N environment accounts, see `simulator.env`."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator import kernel
from simulator import layout as at
from simulator.compiled import compiled
from simulator.layout import FloatArray, Log, State, Tape, Terms
from simulator.margin import leverage_of

REWARDS = ("log_return", "return", "differential_sharpe")
WORST_RATIO = 1e-3  # a step's log return is that of this ratio at least: the log of a lost equity is not finite
SHARPE_BOUND = 10.0  # the differential Sharpe ratio divides by a variance that starts near 0

BoolArray = NDArray[np.bool_]
MaskArray = NDArray[np.int8]


class Book(NamedTuple):
    """What the environment remembers of N accounts.

    Attributes:
        wanted: (N, S) exposures asked for last.
        held: (N, S) quantities at the last decision.
        idle: (N,) bars since the last step that traded, as a share of the episode.
        sums: (N, SUMS).
        over: (N,) True where the account's own episode is over.
    """

    wanted: FloatArray
    held: FloatArray
    idle: FloatArray
    sums: FloatArray
    over: BoolArray


# Columns of the sums: equity at the last decision, worst drawdown, weighted mean and mean square of the returns.
BEFORE, WORST, MEAN, SQUARE = range(4)
SUMS = 4


class Results(NamedTuple):
    """What a step gives, by account: rewards, terminated, equity and costs (N,)."""

    rewards: FloatArray
    terminated: BoolArray
    equity: FloatArray
    costs: FloatArray


@compiled
def choose(chosen: NDArray[np.int64], levels: FloatArray, asked: FloatArray) -> bool:
    """Put the exposures of the chosen levels (N, S) into `asked`; False where there is no such level."""
    for n in range(chosen.shape[0]):
        for s in range(chosen.shape[1]):
            if chosen[n, s] < 0 or chosen[n, s] >= levels.shape[0]:
                return False
            asked[n, s] = levels[chosen[n, s]]
    return True


@compiled
def step_accounts(
    tape: Tape, terms: Terms, state: State, log: Log, book: Book, asked: FloatArray, targets: FloatArray, row: int,
    due: int, first_bar: int, repeats: bool, share: float, reward: int, decay: float, penalty: float, results: Results,
) -> None:  # fmt: skip
    """One decision of all accounts and the bars until the next one.

    Args:
        targets: (N, rows, S), NaN; `due` is the row in which the venue gets the actions.
        row: of the tape, where the step begins.
        repeats: an action that repeats the standing one is sent again.
        share: of the episode's bars that this step takes.
        reward: position in REWARDS.
    """
    accounts, positions, sums = state.accounts, state.positions, book.sums
    symbols = positions.shape[1]
    for n in range(accounts.shape[0]):
        for s in range(symbols):
            target = np.nan
            sent = repeats or asked[n, s] != book.wanted[n, s]
            if sent and not book.over[n] and not math.isnan(positions[n, s, at.MARK]):
                target = asked[n, s]
                book.wanted[n, s] = target
                positions[n, s, at.WANTED] = np.nan  # a newer decision ends what an older one had left to do
            targets[n, due, s] = target
    kernel.advance(
        tape, terms, state, log, row, row + targets.shape[1], first_bar, 0, targets, kernel.NO_EQUITY,
        kernel.NO_NOTIONAL,
    )  # fmt: skip
    for n in range(accounts.shape[0]):
        account = accounts[n]
        traded = False
        for s in range(symbols):
            quantity = positions[n, s, at.QUANTITY]
            traded |= quantity != book.held[n, s]
            book.held[n, s] = quantity
            if quantity == 0.0 and math.isnan(positions[n, s, at.WANTED]):
                book.wanted[n, s] = 0.0
        book.idle[n] = 0.0 if traded or book.over[n] else book.idle[n] + share
        equity = account[at.EQUITY]
        results.equity[n] = equity
        results.costs[n] = (
            account[at.FEES] + account[at.SPREAD] + account[at.IMPACT_PAID] + account[at.FUNDING_PAID]
            + account[at.BORROW_PAID] + account[at.LIQUIDATION_PAID] - account[at.INSURED]
        )  # fmt: skip
        if book.over[n]:  # it has begun anew
            book.over[n] = False
            results.rewards[n] = 0.0
            results.terminated[n] = False
            continue
        ratio = equity / sums[n, BEFORE]
        if reward == 0:
            gain = math.log(max(ratio, WORST_RATIO))
        elif reward == 1:
            gain = ratio - 1.0
        else:
            gain = _differential_sharpe(sums[n], ratio - 1.0, decay)
        drawdown = 1.0 - equity / account[at.PEAK]
        if drawdown > sums[n, WORST]:
            gain -= penalty * (drawdown - sums[n, WORST])
            sums[n, WORST] = drawdown
        sums[n, BEFORE] = equity
        results.rewards[n] = gain
        book.over[n] = account[at.ENDED] != 0.0 or equity <= 0.0
        results.terminated[n] = book.over[n]


@compiled
def _differential_sharpe(sums: FloatArray, change: float, decay: float) -> float:
    """How much a return moves the weighted Sharpe ratio, per unit of decay; 0 while the returns do not vary."""
    mean, square = sums[MEAN], sums[SQUARE]
    variance = square - mean * mean
    moved, moved_square = change - mean, change * change - square
    gain = 0.0
    if variance > 1e-15:
        gain = (square * moved - 0.5 * mean * moved_square) / variance**1.5
    sums[MEAN] += decay * moved
    sums[SQUARE] += decay * moved_square
    return min(max(gain, -SHARPE_BOUND), SHARPE_BOUND)


@compiled
def reachable(state: State, terms: Terms, wanted: FloatArray, levels: FloatArray, mask: MaskArray) -> None:
    """Fill in the mask (N, S, levels), see the module's docstring."""
    most = terms.scalars[at.MAX_LEVERAGE]
    for n in range(mask.shape[0]):
        equity = state.accounts[n, at.EQUITY]
        alive = state.accounts[n, at.ENDED] == 0.0 and equity > 0.0
        for s in range(mask.shape[1]):
            free = alive and not math.isnan(state.positions[n, s, at.MARK])
            bound = terms.rules[s, at.ISOLATED] != 0.0 or terms.rules[s, at.TIER_FIRST] != terms.rules[s, at.TIER_STOP]
            for k in range(mask.shape[2]):
                level = abs(levels[k])
                fits = free
                if free and bound:
                    fits = level <= leverage_of(level * equity, terms.rules[s], terms.tiers, most) * (1.0 + 1e-9)
                mask[n, s, k] = fits or levels[k] == wanted[n, s]
