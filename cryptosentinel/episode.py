"""A backtest by the team: decide, fill, and on to the next decision, until the window ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cryptosentinel.guard import Guard, GuardLimits
from cryptosentinel.team import Talk, Team, TeamDecision, derive_seed
from simulator.backtest import BacktestResult, BacktestRun
from simulator.orders import Order


@dataclass(frozen=True)
class EpisodeResult:
    """The backtest's result, and each decision with the bar it was taken at the close of."""

    result: BacktestResult
    decisions: list[tuple[int, TeamDecision]]


def play(
    team: Team,
    run: BacktestRun,
    limits: GuardLimits,
    seed: int,
    *,
    each_symbol: bool = True,
    on_decision: Callable[[int], None] | None = None,
) -> Talk[EpisodeResult]:
    """Let the team trade `run` to its end. `on_decision` gets the bars that are done.

    With `each_symbol` the manager decides on one coin at a time, each with 1/S of the equity to itself; otherwise on
    the whole portfolio in one conversation.
    """
    guard = Guard(limits)
    decisions: list[tuple[int, TeamDecision]] = []
    while not run.done:
        view, account = run.view(), run.account()
        groups = [(symbol,) for symbol in view.symbols] if each_symbol else [view.symbols]
        orders: list[Order] = []
        for number, symbols in enumerate(groups):
            decision = yield from team.decide(
                view,
                account,
                symbols,
                guard,
                derive_seed(seed, view.index, number),
                share=1.0 / len(groups),
                sent=orders,
            )
            decisions.append((view.index, decision))
            orders += decision.orders
        run.apply(orders)
        if on_decision is not None:
            on_decision(run.index - run.window.start)
    return EpisodeResult(run.result(), decisions)
