"""Round trips from fills: what was earned from opening a position to closing it, and how far the price went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from simulator.errors import DataError
from simulator.exchange.exchange_records import (
    BorrowPayment,
    Fill,
    FillReason,
    InsurancePayment,
    LedgerEntry,
    LiquidationFee,
)
from simulator.kernel.layout import DUST
from simulator.market.market import Market


@dataclass(frozen=True)
class Trade:
    """One position of one symbol, from flat to flat; turning it round ends one trade and begins the next.

    Attributes:
        quantity: largest signed quantity held.
        entry_price, exit_price: averages over the fills that enlarged and that reduced the position.
        pnl: net of all costs, in quote currency. Over all trades of a run it sums to the change of
            equity.
        fees, funding: the part of the costs that `pnl` already holds (the spread is in the prices).
        reason: what closed it; "open" when it was still held at the end, valued there at the last close, at no cost.
        spread, impact: money that half spreads and market impact took; the prices, and so `pnl`, already hold them.
        borrow, liquidation: interest on what was borrowed, and the fee of a liquidation minus what the insurance
            paid of the loss; the other parts of the costs that `pnl` holds.
        closing_price: price of the last fill, or the last close of a trade that is "open".
        holding_ms: from the first fill to the last; a fill inside a bar counts as at its close.
        bars_held: bars in which it was held, at least in part.
        mae, mfe: worst and best excursion of the price while it was held, as fractions of the entry price, signed so
            that a gain is positive: `mae <= 0 <= mfe`. See `with_excursions`, which sets these two and
            `bars_held`; None before.
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
    spread: float = 0.0
    impact: float = 0.0
    borrow: float = 0.0
    liquidation: float = 0.0
    closing_price: float | None = None
    holding_ms: int | None = None
    bars_held: int | None = None
    mae: float | None = None
    mfe: float | None = None


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
    spread: float = 0.0
    impact: float = 0.0
    borrow: float = 0.0

    def book_costs(self, fill: Fill, share: float) -> None:
        """Add the part `share` of what the fill cost."""
        self.fees += share * fill.fee
        self.spread += share * fill.spread_cost
        self.impact += share * fill.impact_cost

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
            pnl=side * (sold_value - self.bought_value) - self.fees - self.funding - self.borrow,
            fees=self.fees,
            funding=self.funding,
            reason=reason,
            spread=self.spread,
            impact=self.impact,
            borrow=self.borrow,
            closing_price=price,
            holding_ms=time - self.opened.time,
        )


def trades_of(ledger: Sequence[LedgerEntry], marks: Mapping[str, float], time: int, bar: int) -> list[Trade]:
    """Trades in the order of their exits; positions still open at the end (`time`, `bar`, `marks`) come last."""
    trades: list[Trade] = []
    positions: dict[str, _Position] = {}
    for event in ledger:
        if isinstance(event, Fill):
            _apply(event, positions, trades)
        elif isinstance(event, InsurancePayment | LiquidationFee):
            # They follow the liquidation that closed the position, so its trade is finished already.
            last = max(place for place, trade in enumerate(trades) if trade.symbol == event.symbol)
            trade = trades[last]
            trades[last] = replace(trade, pnl=trade.pnl - event.amount, liquidation=trade.liquidation + event.amount)
        elif event.symbol not in positions:  # carry of a position that was closed inside the bar
            last = max(place for place, trade in enumerate(trades) if trade.symbol == event.symbol)
            trade = replace(trades[last], pnl=trades[last].pnl - event.amount)
            if isinstance(event, BorrowPayment):
                trades[last] = replace(trade, borrow=trade.borrow + event.amount)
            else:
                trades[last] = replace(trade, funding=trade.funding + event.amount)
        elif isinstance(event, BorrowPayment):
            positions[event.symbol].borrow += event.amount
        else:
            positions[event.symbol].funding += event.amount
    for symbol, position in positions.items():
        trades.append(position.trade(time, bar, marks[symbol], "open"))
    return trades


def _apply(fill: Fill, positions: dict[str, _Position], trades: list[Trade]) -> None:
    """Book one fill; one that turns the position round is split, its costs by quantity."""
    position = positions.get(fill.symbol)
    held = position.held if position is not None else 0.0
    closing = min(abs(fill.quantity), abs(held)) if held * fill.quantity < 0.0 else 0.0
    opening = abs(fill.quantity) - closing
    side = 1.0 if fill.quantity > 0.0 else -1.0
    share = closing / abs(fill.quantity)
    if position is not None and closing > 0.0:
        position.sold += closing
        position.sold_value += closing * fill.price
        position.book_costs(fill, share)
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
        position.book_costs(fill, 1.0 - share)
        position.held += side * opening
        if abs(position.held) > abs(position.largest):
            position.largest = position.held


def with_excursions(trades: Sequence[Trade], market: Market) -> list[Trade]:
    """The trades with `bars_held`, `mae` and `mfe`, from the lows and highs of `market`.

    Only prices that the market is known to have had while the position was held count:

    * the entry price itself, so that no excursion is on the wrong side of 0;
    * a bar that was entered at its open, and every later one before the last: its low and high;
    * a bar that was entered inside: its close;
    * a bar that was left at its open: the price of the last fill;
    * a bar that was left inside, by a stop, a target, a limit or a liquidation: its open and the price of the last
      fill, since nobody knows whether its low and high came before;
    * the last bar of a trade that was still "open" at its close: its low and high.

    A fill is at the open of its bar when its time is that of the open. The prices of fills hold spread and impact, lows
    and highs do not; absent bars say nothing. Raises `DataError` for a symbol or a bar that the market lacks.
    """
    return [_with_excursion(trade, market) for trade in trades]


def _with_excursion(trade: Trade, market: Market) -> Trade:
    column = market.column(trade.symbol)
    first, last = trade.entry_bar, trade.exit_bar
    if not 0 <= first <= last < len(market):
        raise DataError(
            f"a trade of {trade.symbol} lasted from bar {first} to bar {last}, but {market.source} has bars "
            f"0..{len(market) - 1}; give the market that it was made on."
        )
    entered_at_open = trade.entry_time == int(market.open_time[first])
    left_at_open = trade.exit_time == int(market.open_time[last])
    to_the_close = trade.reason == "open"

    prices = [trade.entry_price, trade.exit_price if trade.closing_price is None else trade.closing_price]
    begin, end = (first if entered_at_open else first + 1), (last + 1 if to_the_close else last)
    if not entered_at_open and (first < last or to_the_close):
        prices.append(float(market.close[first, column]))
    if not (left_at_open or to_the_close) and begin <= last:
        prices.append(float(market.open[last, column]))
    if begin < end:
        low, high = market.low[begin:end, column], market.high[begin:end, column]
        prices += [float(np.fmin.reduce(low)), float(np.fmax.reduce(high))]
    side = 1.0 if trade.quantity > 0.0 else -1.0
    moves = [side * (price / trade.entry_price - 1.0) for price in prices if not np.isnan(price)]
    return replace(
        trade,
        bars_held=last - first + (0 if left_at_open else 1),
        mae=min(0.0, *moves),
        mfe=max(0.0, *moves),
    )
