"""Where a team's decisions stand on the candles of one coin: which decision an order came from, and what was cut."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from backend.decisions.backtest_document import BacktestDocument
from backend.decisions.document import StoredDecision

CutKind = Literal["veto", "reduced", "guard"]


class Cut(NamedTuple):
    """What RiskAnalyst or the guard took of a decision, at a close (ms): the number of the decision, and why."""

    time: int
    decision: int
    kind: CutKind
    text: str


class DecisionsOnCandles:
    """The decisions on one coin. `decisions` are a team's in their order, `result` is their backtest's."""

    def __init__(self, decisions: Sequence[StoredDecision], result: BacktestDocument, symbol: str) -> None:
        bar_of = {time: result.start + row for row, time in enumerate(result.times)}
        self._decisions, self._symbol = decisions, symbol
        sent = [
            (bar_of[one.time], one.ordinal)
            for one in decisions
            if one.time in bar_of and any(order.symbol == symbol for order in one.document.orders)
        ]
        self._bars, self._numbers = [bar for bar, _ in sent], [number for _, number in sent]

    def number(self, bar: int) -> int | None:
        """The decision that a fill in `bar` came from: the newest one before that bar that sent an order, whose stops
        and targets hold until the next. None where there is none."""
        place = bisect_left(self._bars, bar) - 1
        return self._numbers[place] if place >= 0 else None

    def cuts(self) -> Iterator[Cut]:
        """What was taken of orders of this coin, in the order of the decisions."""
        for decision in self._decisions:
            document, number = decision.document, decision.ordinal
            for ruling in document.rulings:
                if ruling.symbol == self._symbol:
                    words = f"{ruling.side} {_share(ruling.asked)} became {_share(ruling.allowed)}"
                    yield Cut(decision.time, number, "reduced" if ruling.allowed > 0.0 else "veto", words)
            for time, clamp in (
                *((decision.time, one) for one in document.clamps),
                *((later.time, later) for later in document.later),
            ):
                if clamp.symbol == self._symbol:
                    yield Cut(time, number, "guard", f"rule {clamp.rule}: {clamp.detail}")


def _share(value: float) -> str:
    return f"{100.0 * value:.3g} %"
