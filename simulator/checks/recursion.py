"""Recursion analysis: how much history does a decision need, so that more of it changes nothing?

A strategy (or a team) decides at the same times with shorter histories. An indicator over a fixed number of bars
settles once these bars are there. A recursive one, like an exponential average, changes with every longer history.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from simulator.backtest.run import Window
from simulator.checks.lookahead import (
    CheckedRun,
    CheckProgress,
    Drive,
    LookaheadFinding,
    check_unaltered,
    choose_bars,
    failure_finding,
    first_difference,
    run_drive,
)
from simulator.checks.perturbation import begun_at, truncated
from simulator.errors import UserError
from simulator.exchange.exchange_records import AccountView
from simulator.market.market import Market

_ROUNDING = 1e-9  # relative: a longer history may be summed in another order


@dataclass(frozen=True)
class WarmUp:
    """What a history of `bars` bars did to the decisions.

    Attributes:
        compared: times that have more history than that. changed: how many of them were decided otherwise.
        exposure_difference: largest difference of the exposure that a symbol's orders lead to, a fraction of equity,
            where there was a decision.
        first: the earliest change.
    """

    bars: int
    compared: int
    changed: int
    exposure_difference: float
    first: LookaheadFinding | None


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
        return {
            "times": list(self.times),
            "with_orders": self.with_orders,
            "data_hash": self.data_hash,
            "settled": self.settled,
            "warm_ups": [asdict(one) for one in self.warm_ups],
        }


def check_recursion(
    drive: Drive,
    market: Market,
    window: Window,
    *,
    warm_ups: Sequence[int] = (121, 200, 400, 800),
    times: int = 20,
    first_time: int = 0,
    seed: int = 1,
    on_progress: CheckProgress | None = None,
    **account: Any,
) -> RecursionReport:
    """Compare decisions under histories of some `warm_ups` (bars, the current one included) with those under all of it.

    The account is that of the real run at every decision, so that only the history differs. What keeps state decides
    from the first decision on that lies in the window and the history and that it does not fail at. Floats may differ
    by rounding (1e-9, relative).

    Args:
        times: how many decisions to test, of those from bar `first_time` on; chosen as in `check_lookahead`.

    Raises:
        UserError: the strategy fails or looks ahead; no time has more history than the longest warm-up.
    """
    if not warm_ups or min(warm_ups) < 1 or times < 2:
        raise UserError("give at least 2 times and at least one warm-up, each of at least 1 bar.")
    last = window.start + (window.decisions - 1) * window.decide_every
    whole = CheckedRun(market, window, last, account)
    stopped = check_unaltered(drive, whole)
    if stopped is not None:
        raise UserError(f"{stopped.sentence()}; mend that first, `check lookahead` tells more.")
    testable = {bar: orders for bar, orders in whole.decided.items() if bar >= max(first_time, max(warm_ups))}
    if not testable:
        raise UserError(
            f"{market.source}: no decision has more than {max(warm_ups)} bars of history before it; load more history, "
            "or give shorter warm-ups."
        )
    chosen = choose_bars(testable, times, np.random.default_rng(seed))
    rows: dict[int, list[tuple[LookaheadFinding | None, float | None]]] = {bars: [] for bars in sorted(set(warm_ups))}
    for number, bar in enumerate(chosen):
        known = truncated(market, bar)
        unlike, _ = _replayed(drive, known, window, 0, whole, account)
        if unlike is not None:
            raise UserError(
                f"the decision is another one where the market ends with it: {unlike.sentence()}; mend that first, "
                "`check lookahead` tells more."
            )
        for bars, found in rows.items():
            found.append(_replayed(drive, known, window, bar + 1 - bars, whole, account))
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
                sum(finding is not None for finding, _ in found),
                max((difference for _, difference in found if difference is not None), default=0.0),
                next((finding for finding, _ in found if finding is not None), None),
            )
            for bars, found in rows.items()
        ),
    )


def _replayed(
    drive: Drive, known: Market, window: Window, begin: int, whole: CheckedRun, account: Mapping[str, Any]
) -> tuple[LookaheadFinding | None, float | None]:
    """The decision at the last bar of `known`, with the history from bar `begin` on and the accounts of `whole`.

    Returns what is not as in the `whole` run, and the largest difference of the exposures that the orders lead to, None
    where nothing was decided.
    """
    bar = len(known) - 1
    late = max(0, begin - window.start)
    start = window.start + -(-late // window.decide_every) * window.decide_every
    expected = whole.decided[bar]
    shown = begun_at(known, begin)
    while True:
        run = CheckedRun(shown, Window(start, bar + 1, window.decide_every), bar, account, whole.accounts, begin)
        failure = run_drive(drive, run)
        if failure is None:
            break
        if run.bar == bar:
            return failure_finding("failure", failure, run, expected, None), None
        # Too little history to begin with, perhaps: it begins as soon as it can.
        start = run.bar + window.decide_every
    difference = first_difference(expected, run.decided[bar], _ROUNDING)
    if difference is None:
        return None, 0.0
    meant, got = (_exposures(whole.accounts[bar], orders) for orders in (expected, run.decided[bar]))
    return LookaheadFinding("warm_up", None, bar, run.close(bar), *difference), max(
        abs(meant[s] - got[s]) for s in meant
    )


def _exposures(account: AccountView, orders: Sequence[Any]) -> dict[str, float]:
    """Exposure of every symbol once `orders` are filled at its mark; 0 where it has no mark or nothing is left.

    An order that names an exposure leads there; what has neither exposure nor quantity changes none.
    """
    found = {}
    for symbol, held in account.positions.items():
        own = [order for order in orders if getattr(order, "symbol", None) == symbol]
        targets = [float(order.exposure) for order in own if hasattr(order, "exposure")]
        after = held + math.fsum(getattr(order, "quantity", None) or 0.0 for order in own)
        worth = after * account.mark[symbol] / account.equity if account.equity > 0.0 else 0.0
        worth = targets[-1] if targets else worth
        found[symbol] = worth if math.isfinite(worth) else 0.0
    return found
