"""Look-ahead analysis: does a decision depend on anything that became known after it?

A strategy (or a team) decides on the whole market, on the market truncated at a time, and on perturbed markets, whose
later values differ. All of them agree in what was known at that time, so all decisions up to it must be identical.
Every run begins with a fresh instance and holds the account that its own orders led to. `simulator.checks.recursion`
asks the other question: how much history does a decision need?
"""

from __future__ import annotations

import math
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from simulator.backtest.run import BacktestRun, Strategy, Window, fit
from simulator.checks.perturbation import perturbed, truncated, with_room
from simulator.errors import LookAheadError, RunFailed, UserError
from simulator.exchange.exchange_records import AccountView
from simulator.market.market import Market, MarketView
from simulator.market.timeframes import format_time

# Drives a run to its end, with an instance that has seen no other run.
Drive = Callable[[BacktestRun], None]
CheckProgress = Callable[[int, int], None]  # markets done, of how many


def drive_strategies(make: Callable[[], Strategy]) -> Drive:
    """Runs of the strategies that `make` builds, one for each run."""

    def drive(run: BacktestRun) -> None:
        strategy = make()
        fit(strategy, run.view())
        while not run.done:
            run.apply(strategy.decide(run.view(), run.account()))

    return drive


@dataclass(frozen=True)
class LookaheadFinding:
    """The first decision of one run that differs from the expected one.

    Attributes:
        kind: `clock` (asked a view for what was not known), `truncation`, `perturbation`, `warm_up`, `failure` (raised
            where it had decided before) or `not_repeatable` (differs on the very same market).
        altered_after: the bar after whose close the market was truncated or perturbed; None for the whole market.
        bar, time: of the decision, `time` being its close (ms).
        symbol, field: what of its orders differs; `-` where no single order is meant.
        expected, found: the values on the whole market and on the truncated or perturbed one.
    """

    kind: str
    altered_after: int | None
    bar: int
    time: int
    symbol: str
    field: str
    expected: str
    found: str

    def sentence(self) -> str:
        """The finding in words."""
        where = "" if self.altered_after is None else f", market altered after bar {self.altered_after}"
        return (
            f"{self.kind} at {format_time(self.time)} UTC (bar {self.bar}{where}): {self.symbol} {self.field}: "
            f"{self.expected} became {self.found}"
        )


@dataclass(frozen=True)
class LookaheadReport:
    """What was tested and found.

    Attributes:
        times: the tested bars; up to each of them decisions were compared. with_orders: how many of the decisions at
            exactly these bars had orders. Where it is 0, the check proves little.
        draws: perturbed markets for each of the times.
        comparisons: decisions that were compared. findings: at most one for each run, the earliest decision first.
    """

    times: tuple[int, ...]
    with_orders: int
    draws: int
    seed: int
    data_hash: str
    comparisons: int
    findings: tuple[LookaheadFinding, ...]

    @property
    def clean(self) -> bool:
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON types."""
        return {**asdict(self), "times": list(self.times), "findings": [asdict(one) for one in self.findings]}


def check_lookahead(
    drive: Drive,
    market: Market,
    window: Window,
    *,
    times: int = 20,
    draws: int = 3,
    seed: int = 1,
    on_progress: CheckProgress | None = None,
    **account: Any,
) -> LookaheadReport:
    """Compare the decisions of a run through `window` with those on truncated and perturbed markets.

    Args:
        times: how many decisions to test: the first and the last one, and others spread over the window, half of them
            among those with orders.
        draws: perturbed markets for each time, beside the truncated one.
        account: `cash`, `costs`, `max_leverage` of every run, as `BacktestRun` takes them.

    Raises:
        UserError: the strategy fails on the market as it is.
    """
    if times < 2 or draws < 0:
        raise UserError(f"times is {times} and draws is {draws}; give at least 2 times and at least 0 draws.")
    last = window.start + (window.decisions - 1) * window.decide_every
    whole = CheckedRun(market, window, last, account)
    findings = [check_unaltered(drive, whole)]
    comparisons = 0
    if findings[0] is None:
        again = CheckedRun(market, window, last, account)
        findings.append(_compared(drive, again, whole.decided, "not_repeatable", None))
        comparisons = len(again.decided)
    # A run that is not repeatable cannot be compared. One that stopped at the clock can, up to that bar.
    comparable = whole.decided if findings[-1] is None or findings[-1].kind == "clock" else {}
    chosen = choose_bars(comparable, times, np.random.default_rng(seed)) if comparable else []
    for number, bar in enumerate(chosen):
        altered = [("truncation", truncated(market, bar))]
        for draw in range(draws):
            altered.append(("perturbation", perturbed(market, bar, np.random.default_rng([seed, bar, draw]))))
        for kind, other in altered:
            run = CheckedRun(other, window, bar, account)
            findings.append(_compared(drive, run, whole.decided, kind, bar))
            comparisons += len(run.decided)
        if on_progress is not None:
            on_progress(number + 1, len(chosen))
    return LookaheadReport(
        times=tuple(chosen),
        with_orders=sum(bool(whole.decided[bar]) for bar in chosen),
        draws=draws,
        seed=seed,
        data_hash=market.content_hash,
        comparisons=comparisons,
        findings=tuple(sorted(filter(None, findings), key=lambda one: (one.bar, one.altered_after or 0))),
    )


def first_difference(
    expected: Sequence[Any], found: Sequence[Any], tolerance: float = 0.0
) -> tuple[str, str, str, str] | None:
    """Symbol, field and both values of the first difference of two lists of orders; None for equal ones.

    Orders are compared field by field. A NaN equals a NaN; floats may differ by `tolerance`, relative.
    """
    for mine, its in zip(expected, found, strict=False):
        symbol = str(getattr(mine, "symbol", "-"))
        if type(mine) is not type(its) or not is_dataclass(mine):
            if not _same(mine, its, tolerance):
                return symbol, "order", repr(mine), repr(its)
            continue
        for one in fields(mine):
            values = getattr(mine, one.name), getattr(its, one.name)
            if not _same(*values, tolerance):
                return symbol, one.name, repr(values[0]), repr(values[1])
    if len(expected) == len(found):
        return None
    extra = (expected if len(expected) > len(found) else found)[min(len(expected), len(found))]
    sides = ("no order", repr(extra)) if len(found) > len(expected) else (repr(extra), "no order")
    return str(getattr(extra, "symbol", "-")), "order", *sides


class CheckedRun(BacktestRun):
    """A run that records every decision and ends with the one at the close of bar `last`, where the market may end.

    With `accounts` the decisions are only recorded, not sent: the account is the given one at each bar. `begin` is how
    many bars this market lacks at its beginning; bars are counted in the whole market.
    """

    def __init__(
        self,
        market: Market,
        window: Window,
        last: int,
        account: Mapping[str, Any],
        accounts: Mapping[int, AccountView] | None = None,
        begin: int = 0,
    ) -> None:
        # At its last bar an exchange rejects the orders that wait; in the real run they are still there.
        room = with_room(market) if last + 1 - begin == len(market) else market
        super().__init__(room, Window(window.start - begin, last + 1 - begin, window.decide_every), **account)
        self.market = market
        self.last = last
        self.decided: dict[int, tuple[Any, ...]] = {}
        self.accounts: dict[int, AccountView] = {}
        self._given = accounts
        self._begin = begin

    @property
    def bar(self) -> int:
        """The present bar, counted as in the whole market."""
        return self.index + self._begin

    @property
    def done(self) -> bool:
        return self.last in self.decided

    def view(self) -> MarketView:
        return self.market.view(self.index)

    def account(self) -> AccountView:
        return super().account() if self._given is None else self._given[self.bar]

    def _watched_account(self) -> AccountView:
        # Between decisions, too, who watches the account must see that of the real run.
        if self._given is None:
            self.accounts[self.bar] = super()._watched_account()
            return self.accounts[self.bar]
        return self._given[self.bar]

    def apply(self, orders: Sequence[Any], thinking_ms: Sequence[int] = ()) -> None:
        if not isinstance(orders, Sequence):
            raise UserError(
                f"the decision at bar {self.bar} is a {type(orders).__name__}; return a list or tuple of orders, an "
                "empty one to change nothing."
            )
        self.accounts[self.bar] = self.account()
        self.decided[self.bar] = tuple(orders)
        if not self.done:
            if self._given is None:
                super().apply(self.decided[self.bar], thinking_ms)
            else:
                super().apply(())

    def close(self, bar: int) -> int:
        """Close time of a bar, ms."""
        return int(self.market.open_time[bar - self._begin]) + self.market.interval


def run_drive(drive: Drive, run: CheckedRun) -> Exception | None:
    """Drive `run` to its end, or to an error of the strategy, which is returned."""
    try:
        drive(run)
    except (RunFailed, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - a strategy is anybody's code, and what it raises is what is asked
        return error
    if not run.done:
        raise UserError(f"the run was left at bar {run.bar}; drive it until it is done.")
    return None


def check_unaltered(drive: Drive, run: CheckedRun) -> LookaheadFinding | None:
    """Drive the run on the market as it is. A look past the clock is a finding, any other failure a `UserError`."""
    failure = run_drive(drive, run)
    if failure is None or isinstance(failure, UserError):
        if failure is not None:
            raise failure
        return None
    said = f"{type(failure).__name__}: {failure}"
    if isinstance(failure, LookAheadError):
        return LookaheadFinding("clock", None, run.bar, run.close(run.bar), "-", "decision", "what was known", said)
    place = traceback.extract_tb(failure.__traceback__)[-1]
    raise UserError(
        f"the strategy fails at {format_time(run.close(run.bar))} UTC (bar {run.bar}) with {said} "
        f"({os.path.basename(place.filename)}, line {place.lineno}); mend it first."
    ) from failure


def _compared(
    drive: Drive, run: CheckedRun, expected: Mapping[int, tuple[Any, ...]], kind: str, altered_after: int | None
) -> LookaheadFinding | None:
    """Drive `run`, and find the first decision that is not as `expected`."""
    failure = run_drive(drive, run)
    for bar, orders in run.decided.items():
        difference = first_difference(expected[bar], orders)
        if difference is not None:
            return LookaheadFinding(kind, altered_after, bar, run.close(bar), *difference)
    if failure is None:
        return None
    kind = "clock" if isinstance(failure, LookAheadError) else "failure"
    return failure_finding(kind, failure, run, expected[run.bar], altered_after)


def failure_finding(
    kind: str, failure: Exception, run: CheckedRun, expected: Sequence[Any], altered_after: int | None
) -> LookaheadFinding:
    """That `run` ended with `failure` at a decision that should have been `expected`."""
    said = f"{type(failure).__name__}: {failure}"
    close = run.close(run.bar)
    return LookaheadFinding(kind, altered_after, run.bar, close, "-", "decision", repr(list(expected)), said)


def choose_bars(decided: Mapping[int, tuple[Any, ...]], times: int, rng: np.random.Generator) -> list[int]:
    """Up to `times` bars: the first, the last, and others spread over the run, half of them among those with orders.

    A decision without orders shows a leak only where the leak would have made it trade, so those with orders count.
    """
    bars = sorted(decided)
    chosen = {bars[0], bars[-1]}
    ordered = [bar for bar in bars if decided[bar] and bar not in chosen]
    chosen.update(_spread(ordered, (times - len(chosen)) // 2, rng))
    chosen.update(_spread([bar for bar in bars if bar not in chosen], times - len(chosen), rng))
    return sorted(chosen)


def _spread(bars: Sequence[int], count: int, rng: np.random.Generator) -> list[int]:
    """One bar at random of each of `count` equal parts of `bars`; all of them where they are fewer."""
    if len(bars) <= count:
        return list(bars)
    edges = np.linspace(0, len(bars), count + 1).astype(int).tolist()
    return [bars[int(rng.integers(low, high))] for low, high in pairwise(edges)]


def _same(one: Any, other: Any, tolerance: float) -> bool:
    if (
        tolerance
        and isinstance(one, float)
        and isinstance(other, float)
        and math.isclose(one, other, rel_tol=tolerance)
    ):
        return True
    return repr(one) == repr(other) or bool(one == other)
