"""A window decided by the team: decide, fill, and on to the next decision, until it ends.

Whether the window is history or continues now is not known here: a backtest is one `TradingSession`, a paper session
another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from cryptosentinel.conversation.budget import FREE, Ledger, Price
from cryptosentinel.guard.guard import Guard
from cryptosentinel.guard.limits import Clamp, GuardLimits
from cryptosentinel.team import AgentTask, Team, TeamDecision, derive_seed
from simulator.backtest.run import BacktestResult, Watch, Window
from simulator.exchange.exchange_records import AccountView
from simulator.exchange.orders import Cancel, Order, OrderRequest
from simulator.market.market import MarketView

# Seconds that every decision takes, or "measured": those that its answers were waited for.
ThinkingTime = float | Literal["measured"]


class TradingSession(Protocol):
    """An account in a market that stands at a bar's close, and continues when it is told what to submit there."""

    @property
    def index(self) -> int:
        """The bar at whose close it stands."""

    @property
    def window(self) -> Window:
        """Where it began and how often it is decided; a session that continues now has no end yet."""

    @property
    def done(self) -> bool:
        """Whether nothing is decided any more."""

    def view(self) -> MarketView:
        """The market as it is known at this close."""

    def account(self) -> AccountView:
        """The account at this close."""

    def watched_by(self, watch: Watch) -> None:
        """Called once, before anything else: `apply` asks `watch` at each close between two decisions, and submits what
        it gives. A session that was left between two decisions continues to the next one here."""

    def late_ms(self, thought_ms: int) -> int:
        """How long after this close orders are sent whose decisions took `thought_ms` so far."""

    def apply(self, requests: Sequence[OrderRequest], thinking_ms: Sequence[int] = ()) -> None:
        """Submit `requests`, each late by its time, and advance to the next decision or the end."""

    def earned(self) -> Mapping[str, float]:
        """Net profit of each symbol so far, with what is held at its last price."""

    def result(self) -> BacktestResult:
        """What came of it so far."""


@dataclass(frozen=True)
class EpisodeResult:
    """The backtest's result, and each decision with the bar at whose close it was taken. `liquidated_at` is the bar at
    whose close the account was found liquidated, after which nothing was decided; None if that did not happen.
    `ledger` is the inference cost."""

    result: BacktestResult
    decisions: list[tuple[int, TeamDecision]]
    liquidated_at: int | None = None
    ledger: Ledger = field(default_factory=Ledger)


def play(
    team: Team,
    run: TradingSession,
    limits: GuardLimits,
    seed: int,
    *,
    guard: Guard | None = None,
    on_decision: Callable[[int], None] | None = None,
    on_clamps: Callable[[int, Sequence[Clamp]], None] | None = None,
    price: Price | None = FREE,
    decisions: list[tuple[int, TeamDecision]] | None = None,
    thinking_time: ThinkingTime = 0.0,
) -> AgentTask[EpisodeResult]:
    """Let the team trade `run` to its end. `on_decision` gets the bars that are done. Between the decisions the guard
    looks at every bar: it closes the account past a loss limit, and sends what it held back once there is room.
    `on_clamps` gets what it did there, with the bar. `guard` is one of these `limits` that continues, such as one whose
    state was restored; by default a fresh one.

    The manager decides on one coin at a time, each with 1/S of the equity to itself; with `portfolio` in the team's
    settings on all of them in one conversation. The inference is booked at the `price` of its model. Each decision is
    appended to `decisions` when it is made, so that the caller has them even if the engine fails.

    `thinking_time` delays the orders of each decision. Decisions on several coins are taken one after the other, and
    each sends its orders as soon as it is taken. A measured time is that of the answers themselves: a recording gives
    those of its recording, so that a replay trades as the run did.
    """
    guard, ledger = guard or Guard(limits), Ledger(price)
    decisions = [] if decisions is None else decisions
    liquidated_at: int | None = None
    newest: dict[str, TeamDecision] = {}  # by symbol

    def watch(view: MarketView, account: AccountView) -> Sequence[OrderRequest]:
        requests, clamps = guard.watch(view, account)
        if clamps and on_clamps is not None:
            on_clamps(run.index, clamps)
        for clamp in clamps if newest else ():  # a resumed session has no decision yet
            of_symbol = newest.get(clamp.symbol, next(iter(newest.values())))
            of_symbol.later.append((run.index, clamp))
        return requests

    run.watched_by(watch)
    while not run.done:
        view, account = run.view(), run.account()
        if account.liquidated:  # the account is over: whatever a model would say, no order could follow
            liquidated_at = run.index
            break
        groups = [view.symbols] if team.settings.portfolio else [(symbol,) for symbol in view.symbols]
        share = 1.0 / len(groups)
        orders: list[Order] = []
        late: list[int] = []  # milliseconds, for each of the orders
        thought = 0
        for number, symbols in enumerate(groups):
            decision = yield from team.decide(
                view,
                account,
                symbols,
                guard,
                derive_seed(seed, run.index, number),
                share=share,
                sent=orders,
                ledger=ledger,
            )
            seconds = decision.usage.seconds if thinking_time == "measured" else thinking_time
            thought += round(1000.0 * seconds)
            late_by = run.late_ms(thought)
            decision = replace(decision, thinking_ms=late_by)
            decisions.append((run.index, decision))
            newest |= dict.fromkeys(symbols, decision)
            orders += decision.orders
            late += [late_by] * len(decision.orders)
        # Orders that rest from an earlier decision end with this one, which has seen more.
        ended = {order.id: Cancel(order.id) for order in account.pending if order.kind != "market"}
        ended |= {withdrawal.id: withdrawal for withdrawal in guard.withdrawals(account)}
        # What rests is withdrawn at the close, before anybody thinks: it must not fill beside what comes after it.
        run.apply([*ended.values(), *orders], [0] * len(ended) + late)
        if on_decision is not None:
            on_decision(run.index - run.window.start)
    while not run.done:
        run.apply([])
    if on_decision is not None and liquidated_at is not None:
        on_decision(run.index - run.window.start)
    if run.account().liquidated and liquidated_at is None:
        liquidated_at = run.index
    return EpisodeResult(run.result(), decisions, liquidated_at, ledger)
