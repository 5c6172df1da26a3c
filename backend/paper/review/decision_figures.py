"""What each decision of an account came to: its return, what trading cost, how it was filled and how it was taken."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from backend.paper.journal import bar_from_json, history_from_json
from backend.store.records import JournalRecord
from cryptosentinel.team import TeamDecision
from simulator.backtest.run import BacktestResult
from simulator.exchange.exchange_records import Fill
from simulator.exchange.snapshot import record_from_json
from simulator.live.broker import session_market
from simulator.market.market import Market

VETO_VERDICT = "veto"


@dataclass(frozen=True)
class DecisionFigures:
    """A close at which a decision was due, and the bars up to the next one.

    Attributes:
        time: of the close, ms.
        returned, costs: change of the equity and what fills cost (fees, spread, impact), as fractions of the equity.
        traded: notional of the orders' fills, in quote currency; `slipped`: how much worse they were, in total, than
            the last close before the decision.
        asked: decisions on coins that were taken here; `held` of them changed nothing, `vetoed` met a veto.
        due: whether a decision was due, and could be taken; `late`: none was, or only after the next bar was over.
    """

    time: int
    returned: float
    costs: float
    traded: float
    slipped: float
    asked: int
    held: int
    vetoed: int
    due: bool
    late: bool


@dataclass(frozen=True)
class _Decided:
    """At one close: decisions on coins, those without an order, those with a veto, and how late the last one was."""

    asked: int
    held: int
    vetoed: int
    late_ms: int


def figures_of_session(entries: Sequence[JournalRecord]) -> list[DecisionFigures]:
    """Those of the journal `entries`, in order; a stretch that the session has not finished is left out."""
    start = entries[0].document
    history = history_from_json(start["history"])
    bars = [entry for entry in entries if entry.kind == "bar"]
    if not bars:
        return []
    market = session_market(history, [bar_from_json(entry.document["bar"]) for entry in bars])
    first = len(history) - 1
    equity = [float(start["cash"]), *(float(entry.document["account"]["equity"]) for entry in bars)]
    fills = [record_from_json(one) for entry in bars for one in entry.document["happened"]["ledger"]]
    decided: dict[int, _Decided] = {}
    for entry in entries:
        if entry.kind == "decision":
            made = entry.document["decisions"]
            vetoed = sum(any(one["verdict"] == VETO_VERDICT for one in each["rulings"]) for each in made)
            late = max((int(one["thinking_ms"]) for one in made), default=0)
            decided[int(entry.document["bar"])] = _Decided(
                len(made), sum(not one["orders"] for one in made), vetoed, late
            )
    missed = {int(entry.document["bar_index"]) for entry in entries if entry.document.get("missed")}
    return _figures(
        market, first, int(start["decide_every"]), equity, [one for one in fills if isinstance(one, Fill)], decided,
        missed,
    )  # fmt: skip


def figures_of_backtest(
    market: Market, result: BacktestResult, decide_every: int, decisions: Sequence[tuple[int, TeamDecision]]
) -> list[DecisionFigures]:
    """Those of a backtest of `market`."""
    by_bar: dict[int, list[TeamDecision]] = {}
    for bar, one in decisions:
        by_bar.setdefault(bar, []).append(one)
    decided = {
        bar: _Decided(
            len(made),
            sum(not one.orders for one in made),
            sum(any(ruling.verdict == VETO_VERDICT for ruling in one.rulings) for one in made),
            max(one.thinking_ms for one in made),
        )
        for bar, made in by_bar.items()
    }
    return _figures(market, result.start, decide_every, result.equity.tolist(), result.fills, decided, set())


def _figures(
    market: Market,
    first: int,
    decide_every: int,
    equity: Sequence[float],
    fills: Sequence[Fill],
    decided: Mapping[int, _Decided],
    missed: set[int],
) -> list[DecisionFigures]:
    """`equity` begins at the close of bar `first`."""
    begins = list(range(first, first + len(equity) - decide_every, decide_every))
    costs, traded, slipped = (np.zeros(len(begins)) for _ in range(3))
    closes: list[dict[str, float]] = []
    for bar in begins:
        view = market.view(bar)
        closes.append({symbol: view.last_close(symbol) for symbol in market.symbols})
    for fill in fills:
        row = bisect_left(begins, fill.bar) - 1
        if row < 0 or fill.bar > begins[row] + decide_every:
            continue
        costs[row] += fill.fee + fill.spread_cost + fill.impact_cost
        if fill.reason == "order":
            reference = closes[row][fill.symbol]
            traded[row] += abs(fill.quantity) * reference
            slipped[row] += fill.quantity * (fill.price - reference)
    found = []
    for row, bar in enumerate(begins):
        before, after = equity[bar - first], equity[bar - first + decide_every]
        here = decided.get(bar, _Decided(0, 0, 0, 0))
        found.append(
            DecisionFigures(
                time=int(market.open_time[bar]) + market.interval,
                returned=after / before - 1.0 if before > 0.0 else 0.0,
                costs=float(costs[row]) / before if before > 0.0 else 0.0,
                traded=float(traded[row]),
                slipped=float(slipped[row]),
                asked=here.asked,
                held=here.held,
                vetoed=here.vetoed,
                due=bar in missed or bar in decided,
                late=bar in missed or here.late_ms >= market.interval,
            )
        )
    return found
