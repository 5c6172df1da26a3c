"""A strategy's backtest, and for a user's own the verdict whether it looks ahead."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from backend.builders.strategies import NamedStrategy
from backend.config.plugins import describe_failure
from simulator.backtest.run import BacktestResult, Window, run_backtest
from simulator.checks.verdict import SKIPPED, CheckProgress, LookaheadCheck, LookaheadVerdict, RecordedStrategy
from simulator.errors import UserError
from simulator.market.market import Market

_LEAST_SECONDS = 5.0  # for the history outside the window; more where the backtest itself took longer


@dataclass(frozen=True)
class PlayedStrategy:
    """The run of a strategy: its result, what it sent, the market with the indicators that it made, its seconds.

    `warm_up` is the number of bars that must lie before its first decision.
    """

    subject: NamedStrategy
    market: Market
    window: Window
    terms: dict[str, Any]
    result: BacktestResult
    recorded: RecordedStrategy
    seconds: float
    warm_up: int = 0


def play_strategy(subject: NamedStrategy, market: Market, window: Window, terms: dict[str, Any]) -> PlayedStrategy:
    """Play a strategy through `window`. Raises `UserError` where the user's own strategy fails."""
    own = market.without_indicators()
    begun = time.monotonic()
    try:
        strategy = subject.make()
        recorded = RecordedStrategy(strategy)
        result = run_backtest(own, recorded, window, **terms)
    except UserError as error:
        raise type(error)(f"{subject.name}: {error}") from error
    except Exception as error:
        if subject.load is None:
            raise
        raise UserError(f"{subject.name} failed: {describe_failure(error)}; fix it first") from error
    seconds, warm_up = time.monotonic() - begun, int(getattr(strategy, "warmup", 0))
    return PlayedStrategy(subject, own, window, terms, result, recorded, seconds, warm_up)


def lookahead_verdict(
    played: PlayedStrategy,
    *,
    skip: bool = False,
    whole: bool = False,
    seed: int = 1,
    on_progress: CheckProgress | None = None,
) -> LookaheadVerdict | None:
    """Whether a user's strategy looks ahead; None for the project's own, which its tests check.

    Args:
        skip: do not check. whole: take the time that the whole history needs; otherwise the history outside the window
            gets as long as the backtest took, and at least 5 s.
    """
    load = played.subject.load
    if load is None:
        return None
    if skip:
        return SKIPPED
    check = LookaheadCheck(
        load,
        played.market,
        played.window,
        played.recorded.decided,
        played.terms,
        first=played.warm_up,
        seed=seed,
        seconds=float("inf") if whole else max(_LEAST_SECONDS, played.seconds),
        on_progress=on_progress,
    )
    return check.verdict()
