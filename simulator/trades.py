"""Round trips from fills: what was earned from opening a position to closing it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from simulator.kernel import DUST
from simulator.orders import Fill, FillReason, FundingPayment


@dataclass(frozen=True)
class Trade:
    """One position of one symbol, from flat to flat; turning it round ends one trade and begins the next.

    Attributes:
        quantity: largest signed quantity held.
        entry_price, exit_price: averages over the fills that enlarged and that reduced the position.
        pnl: net of fees, spread and funding, in quote currency. Over all trades of a run it sums to the change of
            equity.
        fees, funding: the part of the costs that `pnl` already holds (the spread is in the prices).
        reason: what closed it; "open" when it was still held at the end, valued there at the last close, at no cost.
    """

    symbol: str
    quantity: float
    entry_time: int
    entry_bar: int
    entry_price: float
    exit_time: int
    exit_bar: int
    exit_price: float
    pnl: float
    fees: float
    funding: float
    reason: FillReason | Literal["open"]


@dataclass
class _Position:
    """A trade in the making. Sums over its fills; `held` is signed, the others are not."""

    opened: Fill
    held: float = 0.0
    largest: float = 0.0
    bought: float = 0.0  # quantity that enlarged, and its value
    bought_value: float = 0.0
    sold: float = 0.0  # quantity that reduced, and its value
    sold_value: float = 0.0
    fees: float = 0.0
    funding: float = 0.0

    def trade(self, time: int, bar: int, price: float, reason: FillReason | Literal["open"]) -> Trade:
        """The finished trade; what is still held leaves at `price`."""
        side = 1.0 if self.largest > 0.0 else -1.0
        rest = abs(self.held)
        sold, sold_value = self.sold + rest, self.sold_value + rest * price
        return Trade(
            symbol=self.opened.symbol,
            quantity=self.largest,
            entry_time=self.opened.time,
            entry_bar=self.opened.bar,
            entry_price=self.bought_value / self.bought,
            exit_time=time,
            exit_bar=bar,
            exit_price=sold_value / sold,
            pnl=side * (sold_value - self.bought_value) - self.fees - self.funding,
            fees=self.fees,
            funding=self.funding,
            reason=reason,
        )


def trades_of(ledger: Sequence[Fill | FundingPayment], marks: Mapping[str, float], time: int, bar: int) -> list[Trade]:
    """Trades in the order of their exits; positions still open at the end (`time`, `bar`, `marks`) come last."""
    trades: list[Trade] = []
    positions: dict[str, _Position] = {}
    for event in ledger:
        if isinstance(event, FundingPayment):
            positions[event.symbol].funding += event.amount
        else:
            _apply(event, positions, trades)
    for symbol, position in positions.items():
        trades.append(position.trade(time, bar, marks[symbol], "open"))
    return trades


def _apply(fill: Fill, positions: dict[str, _Position], trades: list[Trade]) -> None:
    """Book one fill; one that turns the position round is split, its fee by quantity."""
    position = positions.get(fill.symbol)
    held = position.held if position is not None else 0.0
    closing = min(abs(fill.quantity), abs(held)) if held * fill.quantity < 0.0 else 0.0
    opening = abs(fill.quantity) - closing
    side = 1.0 if fill.quantity > 0.0 else -1.0
    share = closing / abs(fill.quantity)
    if position is not None and closing > 0.0:
        position.sold += closing
        position.sold_value += closing * fill.price
        position.fees += fill.fee * share
        position.held += side * closing
        if abs(position.held) <= DUST * abs(position.largest):
            position.held = 0.0
            trades.append(position.trade(fill.time, fill.bar, fill.price, fill.reason))
            del positions[fill.symbol]
            position = None
    if opening > DUST * abs(fill.quantity):
        if position is None:
            position = positions[fill.symbol] = _Position(opened=fill)
        position.bought += opening
        position.bought_value += opening * fill.price
        position.fees += fill.fee * (1.0 - share)
        position.held += side * opening
        if abs(position.held) > abs(position.largest):
            position.largest = position.held
