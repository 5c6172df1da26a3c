"""Compiled: one decision of N environment accounts, see `simulator.env.trading_env`."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import BoolArray, FloatArray
from simulator.env.observations import SmallArray, observe
from simulator.kernel import kernel
from simulator.kernel import layout as at
from simulator.kernel.jit import compiled
from simulator.kernel.layout import KernelState, Log, Tape, Terms
from simulator.kernel.margin import leverage_of

_WORST_RATIO = 1e-3  # a step's log return is that of this ratio at least: the log of a lost equity is not finite

MaskArray = NDArray[np.int8]


class EnvMemory(NamedTuple):
    """What the environment remembers of N accounts.

    Attributes:
        wanted: (N, S) exposures asked for last.
        held: (N, S) quantities at the last decision.
        idle: (N,) bars since the last step that traded, as a share of the episode.
        before: (N,) equity at the last decision.
        over: (N,) True where the account's own episode is over.
    """

    wanted: FloatArray
    held: FloatArray
    idle: FloatArray
    before: FloatArray
    over: BoolArray


class Given(NamedTuple):
    """What a step is given: the exposures asked for (N, S); room for targets (N, rows, S), NaN; the levels of discrete
    actions; and the market's part of the observations, see `simulator.env.observations.Features`."""

    asked: FloatArray
    targets: FloatArray
    levels: FloatArray
    bars: SmallArray
    newest: SmallArray


class Results(NamedTuple):
    """What a step gives, by account: rewards (the exponential of log returns: numpy takes the log of all at once, four
    times as fast as of one after the other), terminated, equity and costs (N,), observations (N, places) and masks (N,
    S, levels)."""

    rewards: FloatArray
    terminated: BoolArray
    equity: FloatArray
    costs: FloatArray
    rows: SmallArray
    mask: MaskArray


@compiled
def choose_levels(chosen: NDArray[np.int64], levels: FloatArray, asked: FloatArray) -> bool:
    """Put the exposures of the chosen levels (N, S) into `asked`; False where there is no such level."""
    for n in range(chosen.shape[0]):
        for s in range(chosen.shape[1]):
            if chosen[n, s] < 0 or chosen[n, s] >= levels.shape[0]:
                return False
            asked[n, s] = levels[chosen[n, s]]
    return True


# numba takes a named tuple apart at every call from Python, which takes longer than to step a hundred accounts; arrays
# one by one cost next to nothing. So they are handed over flat and put together again by compiled code.
_TERMS = len(Tape._fields)
_STATE = _TERMS + len(Terms._fields)
_LOG = _STATE + len(KernelState._fields)
_MEMORY = _LOG + len(Log._fields)
_GIVEN = _MEMORY + len(EnvMemory._fields)
_RESULTS = _GIVEN + len(Given._fields)


@compiled
def write_observations(index: int, left: float, *arrays: Any) -> None:
    """Write what is seen at the close of bar `index` into the results: observations and masks.

    Args:
        left: share of the episode's bars that are still to come.
        arrays: those of a Tape, Terms, KernelState, Log, EnvMemory, Given and Results, one after the other.
    """
    terms, state = Terms(*arrays[_TERMS:_STATE]), KernelState(*arrays[_STATE:_LOG])
    memory, given = EnvMemory(*arrays[_MEMORY:_GIVEN]), Given(*arrays[_GIVEN:_RESULTS])
    results = Results(*arrays[_RESULTS:])
    _write_observations(index, left, terms, state, memory, given, results)


@compiled
def step(
    row: int, due: int, first_bar: int, repeats: bool, share: float, index: int, left: float, *arrays: Any
) -> int:  # fmt: skip
    """One decision of all accounts, the bars until the next one, and what is seen then.

    Args:
        row: of the tape, where the step begins. `due` is the row of the targets in which the venue gets the actions.
        repeats: an action that repeats the standing one is sent again.
        share: of the episode's bars that this step takes.
        index, left, arrays: as of `write_observations`, after the step.

    Returns:
        How many accounts are over.
    """
    tape, terms, state = Tape(*arrays[:_TERMS]), Terms(*arrays[_TERMS:_STATE]), KernelState(*arrays[_STATE:_LOG])
    log, memory, given = Log(*arrays[_LOG:_MEMORY]), EnvMemory(*arrays[_MEMORY:_GIVEN]), Given(*arrays[_GIVEN:_RESULTS])
    results = Results(*arrays[_RESULTS:])
    over = _step(tape, terms, state, log, memory, given, row, due, first_bar, repeats, share, results)
    _write_observations(index, left, terms, state, memory, given, results)
    return over


@compiled
def _write_observations(
    index: int, left: float, terms: Terms, state: KernelState, memory: EnvMemory, given: Given, results: Results
) -> None:
    observe(given.bars, given.newest, index, state, memory.wanted, memory.idle, left, results.rows)
    reachable(state, terms, memory.wanted, given.levels, results.mask)


@compiled
def _step(
    tape: Tape, terms: Terms, state: KernelState, log: Log, memory: EnvMemory, given: Given, row: int, due: int,
    first_bar: int, repeats: bool, share: float, results: Results,
) -> int:  # fmt: skip
    asked, targets = given.asked, given.targets
    ended = 0
    accounts, positions = state.accounts, state.positions
    symbols = positions.shape[1]
    for n in range(accounts.shape[0]):
        for s in range(symbols):
            target = np.nan
            sent = repeats or asked[n, s] != memory.wanted[n, s]
            if sent and not memory.over[n] and not math.isnan(positions[n, s, at.MARK]):
                target = asked[n, s]
                memory.wanted[n, s] = target
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
            traded |= quantity != memory.held[n, s]
            memory.held[n, s] = quantity
            if quantity == 0.0 and math.isnan(positions[n, s, at.WANTED]):
                memory.wanted[n, s] = 0.0
        memory.idle[n] = 0.0 if traded or memory.over[n] else memory.idle[n] + share
        equity = account[at.EQUITY]
        results.equity[n] = equity
        results.costs[n] = (
            account[at.FEES] + account[at.SPREAD] + account[at.IMPACT_PAID] + account[at.FUNDING_PAID]
            + account[at.BORROW_PAID] + account[at.LIQUIDATION_PAID] - account[at.INSURED]
        )  # fmt: skip
        if memory.over[n]:  # it has begun anew
            memory.over[n] = False
            results.rewards[n] = 1.0
            results.terminated[n] = False
            continue
        results.rewards[n] = max(equity / memory.before[n], _WORST_RATIO)
        memory.before[n] = equity
        memory.over[n] = account[at.ENDED] != 0.0 or equity <= 0.0
        results.terminated[n] = memory.over[n]
        ended += memory.over[n]
    return ended


@compiled
def reachable(state: KernelState, terms: Terms, wanted: FloatArray, levels: FloatArray, mask: MaskArray) -> None:
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
