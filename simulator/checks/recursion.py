"""Recursion analysis: how much history does a decision need, so that more of it changes nothing?

A strategy (or a team) decides at the same times with shorter histories. An indicator over a fixed number of bars
settles once these bars are there. A recursive one, like an exponential average, changes with every longer history.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from simulator.backtest.run import BacktestRun, Window
from simulator.checks.perturbation import drop_before
from simulator.checks.verdict import CheckProgress, Drive, first_difference
from simulator.errors import RunFailed, UserError
from simulator.exchange.exchange_records import AccountView
from simulator.market.market import Market
from simulator.market.timeframes import format_time

_ROUNDING = 1e-9  # relative: a longer history may be summed in another order


@dataclass(frozen=True)
class DecisionChange:
    """A decision that is another one with less history: `bar` and `time` (ms) of its close, the symbol and the field of
    its orders (`-` where it failed), and both values."""

    bar: int
    time: int
    symbol: str
    field: str
    expected: str
    found: str


@dataclass(frozen=True)
class WarmUp:
    """What a history of `bars` bars did to the decisions.

    Attributes:
        compared: times that have more history than that. changed: how many of them were decided otherwise.
        first: the earliest change.
    """

    bars: int
    compared: int
    changed: int
    first: DecisionChange | None


@dataclass(frozen=True)
class RecursionReport:
    """`warm_ups` from short to long; see `WarmUp`."""

    times: tuple[int, ...]
    with_orders: int
    data_hash: str
    warm_ups: tuple[WarmUp, ...]

    @property
    def settled(self) -> int | None:
        """The shortest warm-up from which on no longer one changed a decision; None where even the longest did."""
        settled = None
        for one in reversed(self.warm_ups):
            if one.changed:
                break
            settled = one.bars
        return settled

    @property
    def clean(self) -> bool:
        return self.settled is not None

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON types."""
        return {"settled": self.settled, **asdict(self), "times": list(self.times)}


def check_recursion(
    drive: Drive,
    market: Market,
    window: Window,
    *,
    warm_ups: Sequence[int] = (121, 200, 400, 800),
    times: int = 20,
    first_time: int = 0,
    on_progress: CheckProgress | None = None,
    **account: Any,
) -> RecursionReport:
    """Compare decisions under histories of some `warm_ups` (bars, the current one included) with those under all of it.

    The account is that of the real run at every decision, so that only the history differs. What keeps state decides
    from the first decision on that lies in the window and the history and that it does not fail at. Floats may differ
    by rounding (1e-9, relative).

    Args:
        times: how many decisions to test, of those from bar `first_time` on, see `choose_bars`.

    Raises:
        UserError: the strategy fails; no time has more history than the longest warm-up.
    """
    if not warm_ups or min(warm_ups) < 1 or times < 2:
        raise UserError("give at least 2 times and at least one warm-up, each of at least 1 bar.")
    whole = _Replay(market, window, account)
    failure = _failure(drive, whole)
    if failure is not None:
        place = traceback.extract_tb(failure.__traceback__)[-1]
        raise UserError(
            f"the strategy fails at {format_time(whole.close)} UTC (bar {whole.bar}) with {_said(failure)} "
            f"({os.path.basename(place.filename)}, line {place.lineno}); fix it first."
        ) from failure
    testable = {bar: orders for bar, orders in whole.decided.items() if bar >= max(first_time, max(warm_ups))}
    if not testable:
        raise UserError(
            f"{market.source}: no decision has more than {max(warm_ups)} bars of history before it; load more history, "
            "or give shorter warm-ups."
        )
    chosen = choose_bars(testable, times)
    rows: dict[int, list[DecisionChange | None]] = {bars: [] for bars in sorted(set(warm_ups))}
    for number, bar in enumerate(chosen):
        for bars, found in rows.items():
            found.append(_replayed(drive, market, window, bar, bar + 1 - bars, whole, account))
        if on_progress is not None:
            on_progress(number + 1, len(chosen))
    return RecursionReport(
        times=tuple(chosen),
        with_orders=sum(bool(whole.decided[bar]) for bar in chosen),
        data_hash=market.content_hash,
        warm_ups=tuple(
            WarmUp(
                bars,
                len(found),
                sum(change is not None for change in found),
                next((change for change in found if change is not None), None),
            )
            for bars, found in rows.items()
        ),
    )


class _Replay(BacktestRun):
    """A run that records every decision and account. With `accounts` the decisions are only recorded, not sent: the
    account is the given one at each bar. `begin` is how many bars this market lacks at its beginning; bars are counted
    in the whole market."""

    def __init__(
        self, market: Market, window: Window, terms: Mapping[str, Any], begin: int = 0,
        accounts: Mapping[int, AccountView] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(market, Window(window.start - begin, window.stop - begin, window.decide_every), **terms)
        self.decided: dict[int, tuple[Any, ...]] = {}
        self.accounts: dict[int, AccountView] = {}
        self._given, self._begin = accounts, begin

    @property
    def bar(self) -> int:
        """The present bar, counted as in the whole market."""
        return self.index + self._begin

    @property
    def close(self) -> int:
        """Close of the present bar, ms."""
        return int(self.market.open_time[self.index]) + self.market.interval

    def account(self) -> AccountView:
        if self._given is not None:
            return self._given[self.bar]
        self.accounts[self.bar] = super().account()
        return self.accounts[self.bar]

    def _watched_account(self) -> AccountView:
        # Between decisions, too, who watches the account must see that of the real run.
        return self.account()

    def apply(self, orders: Sequence[Any], thinking_ms: Sequence[int] = ()) -> None:
        if self._given is None:
            self.account()
        self.decided[self.bar] = tuple(orders)
        if self._given is None:
            super().apply(orders, thinking_ms)
        else:
            super().apply(())


def _failure(drive: Drive, run: _Replay) -> Exception | None:
    """Drive `run` to its end, or to an error of the strategy, which is returned."""
    try:
        drive(run)
    except (RunFailed, MemoryError, UserError):
        raise
    except Exception as error:  # noqa: BLE001 - a strategy is anybody's code, and what it raises is what is asked
        return error
    return None


def _replayed(
    drive: Drive, market: Market, window: Window, bar: int, begin: int, whole: _Replay, terms: Mapping[str, Any]
) -> DecisionChange | None:
    """What is not as in the `whole` run in the decision at `bar` with the history from bar `begin` on and the same
    accounts."""
    late = max(0, begin - window.start)
    start = window.start + -(-late // window.decide_every) * window.decide_every
    expected, shown = whole.decided[bar], drop_before(market, begin)
    while True:
        run = _Replay(shown, Window(start, bar + 1, window.decide_every), terms, begin, whole.accounts)
        failure = _failure(drive, run)
        if failure is None:
            break
        if run.bar == bar:
            return DecisionChange(bar, run.close, "-", "decision", repr(list(expected)), _said(failure))
        # Too little history to begin with, perhaps: it begins as soon as it can.
        start = run.bar + window.decide_every
    difference = first_difference(expected, run.decided[bar], _ROUNDING)
    return (
        None if difference is None else DecisionChange(bar, int(market.open_time[bar]) + market.interval, *difference)
    )


def choose_bars(decided: Mapping[int, tuple[Any, ...]], times: int) -> list[int]:
    """Up to `times` bars, spread over the run: the first, the last, and others with orders as far as there are any."""
    bars = sorted(decided)
    ordered = [bar for bar in bars[1:-1] if decided[bar]]
    chosen = {bars[0], bars[-1], *_spread(ordered, times - 2)}
    chosen.update(_spread([bar for bar in bars if bar not in chosen], times - len(chosen)))
    return sorted(chosen)


def _spread(bars: Sequence[int], count: int) -> list[int]:
    """`count` of `bars`, evenly; all of them where they are fewer."""
    return [bars[place] for place in np.linspace(0, len(bars) - 1, min(count, len(bars))).astype(int)]


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
