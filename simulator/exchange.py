"""The exchange that holds one account: orders in, bars forward, a record of everything that happened.

The rules of a bar are those of `simulator.kernel`, which does all the arithmetic; this module checks orders, keeps the
list of those that wait and turns the kernel's log into records. An order that cannot be used becomes a `Rejection`
with a reason; none vanishes, none raises.

A new order replaces (as `superseded`) the orders of the same symbol that were submitted at an earlier bar and still
wait: the newer decision has seen more. Orders submitted at the same bar stand beside each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator import kernel
from simulator.errors import DataError
from simulator.market import Market
from simulator.orders import (
    AccountView,
    Costs,
    Fill,
    FillReason,
    FundingPayment,
    Order,
    Rejection,
    RejectionReason,
    bracket_side,
    objection,
    resulting_position,
)
from simulator.tape import last_closes, market_tape, order_table

__all__ = ["AccountView", "Costs", "Exchange", "Fill", "FundingPayment", "Order", "Rejection"]

_FILL_REASONS: dict[int, FillReason] = {
    kernel.FILL_ORDER: "order",
    kernel.FILL_STOP: "stop",
    kernel.FILL_TARGET: "target",
    kernel.FILL_BANKRUPT: "bankrupt",
}
_DROP_REASONS: dict[int, RejectionReason] = {
    kernel.DROP_LEVERAGE: "leverage_cap",
    kernel.DROP_REDUCE_ONLY: "reduce_only",
    kernel.DROP_BRACKET_CLOSED: "bracket_closed",
    kernel.DROP_BRACKET_SIDE: "position_changed",
    kernel.DROP_BANKRUPT: "bankrupt",
}
_ORDER_ROWS = 8  # doubled whenever more orders wait
_LOG_ROWS = 256


@dataclass(frozen=True)
class _Waiting:
    order: Order
    submitted: int  # bar at whose close it was decided
    active: int  # first bar in which it may fill
    side: int  # sign of the position that its bracket is meant for; 0 without a bracket


class Exchange:
    """One account on one market, from the close of bar `index` to the close of bar `stop` (default: the last one).

    Attributes:
        index: the bar at whose close the account stands now.
        ledger, rejections: what happened so far, oldest first.
    """

    def __init__(
        self,
        market: Market,
        index: int,
        cash: float = 10_000.0,
        costs: Costs | None = None,
        max_leverage: float = 1.0,
        stop: int | None = None,
    ) -> None:
        self.stop = len(market) - 1 if stop is None else stop
        if not 0 <= index <= self.stop < len(market):
            raise DataError(f"bars {index}..{self.stop} are not within 0..{len(market) - 1} of {market.source}.")
        if not (math.isfinite(cash) and cash > 0.0):
            raise DataError(f"the starting cash is {cash}; give a positive amount.")
        check_leverage(max_leverage)
        self.market = market
        self.index = index
        self.initial_cash = cash
        self.costs = costs or Costs()
        self.max_leverage = max_leverage
        self.ledger: list[Fill | FundingPayment] = []
        self.rejections: list[Rejection] = []
        self._first = index + 1
        self._tape = market_tape(market, self._first, self.stop + 1)
        self._state = kernel.new_state(1, len(market.symbols), _ORDER_ROWS, cash)
        self._state.positions[0, :, kernel.MARK] = last_closes(market, index)
        self._record = np.zeros((1, self.stop - index, 1 + len(market.symbols)))
        self._log = np.empty((max(_LOG_ROWS, kernel.log_rows(self._state)), kernel.LOG_FIELDS))
        self._waiting: dict[int, _Waiting] = {}
        self._orders_seen = 0

    @property
    def fills(self) -> list[Fill]:
        """The fills of the ledger."""
        return [event for event in self.ledger if isinstance(event, Fill)]

    def submit(self, order: Order) -> None:
        """Queue `order` for the open of the next bar (or later, by its delay); an unusable one is recorded.

        An order of quantity 0 only withdraws what waits for its symbol from earlier bars.
        """
        account, positions = self._state.accounts[0], self._state.positions[0]
        symbols = self.market.symbols
        marks = dict(zip(symbols, positions[:, kernel.MARK].tolist(), strict=True))
        older = [key for key, w in self._waiting.items() if w.submitted < self.index and w.order.symbol == order.symbol]
        beside = [w.order for key, w in self._waiting.items() if key not in older]
        if order.quantity == 0.0 and older:
            self._supersede(older)
            self._write_orders()
            return
        position = 0.0
        if order.symbol in marks:
            held = float(positions[symbols.index(order.symbol), kernel.QUANTITY])
            position = resulting_position(order, held, beside)
        why = objection(order, marks, position, bool(account[kernel.ENDED]))
        if why is None and self.index >= self.stop:
            why = "window_end", f"bar {self.stop} is the last"
        if why is not None:
            self.rejections.append(Rejection(self.index, order, *why))
            return
        self._supersede(older)
        side = bracket_side(order, position)
        self._waiting[self._orders_seen] = _Waiting(order, self.index, self.index + 1 + order.delay, side)
        self._orders_seen += 1
        self._write_orders()

    def _supersede(self, keys: list[int]) -> None:
        for key in keys:
            detail = f"by a decision at bar {self.index}"
            self.rejections.append(Rejection(self.index, self._waiting.pop(key).order, "superseded", detail))

    def step(self, bars: int = 1) -> int:
        """Advance by `bars`, at most to `stop`, where orders that still wait are rejected. Returns the bars taken."""
        begin, end = self.index + 1 - self._first, min(self.index + bars, self.stop) + 1 - self._first
        at = begin
        while at < end:
            at, logged = kernel.advance(
                self._tape, at, end, self._first, self._state.accounts, self._state.positions, self._state.orders,
                self._log, kernel.log_rows(self._state), self._record, self.costs.taker_fee,
                self.costs.spread_multiplier, self.max_leverage,
            )  # fmt: skip
            if logged:
                self._read_log(logged)
        self.index = self._first + end - 1
        if self.index == self.stop:
            for waiting in self._waiting.values():
                self.rejections.append(
                    Rejection(self.index, waiting.order, "window_end", f"bar {self.stop} is the last")
                )
            self._waiting = {}
        return end - begin

    def account(self) -> AccountView:
        """The account at the close of bar `index`."""
        symbols = self.market.symbols
        cash, equity, peak = self._state.accounts[0, : kernel.PEAK + 1].tolist()
        rows = self._state.positions[0].tolist()
        positions, exposure, marks = {}, {}, {}
        entry: dict[str, float | None] = dict.fromkeys(symbols)
        stop: dict[str, float | None] = dict.fromkeys(symbols)
        target: dict[str, float | None] = dict.fromkeys(symbols)
        for symbol, row in zip(symbols, rows, strict=True):
            quantity, mark = row[kernel.QUANTITY], row[kernel.MARK]
            positions[symbol] = quantity
            marks[symbol] = mark
            exposure[symbol] = 0.0
            if quantity != 0.0:
                exposure[symbol] = quantity * mark / equity
                entry[symbol] = row[kernel.ENTRY]
                stop[symbol] = None if math.isnan(row[kernel.STOP]) else row[kernel.STOP]
                target[symbol] = None if math.isnan(row[kernel.TARGET]) else row[kernel.TARGET]
        return AccountView(
            equity=equity,
            cash=cash,
            initial_cash=self.initial_cash,
            positions=positions,
            exposure=exposure,
            entry_price=entry,
            stop=stop,
            target=target,
            mark=marks,
            drawdown=1.0 - equity / peak,
            pending=tuple(self._pending()),
            pending_sides=tuple(waiting.side for waiting in self._waiting.values()),
            bankrupt=bool(self._state.accounts[0, kernel.ENDED]),
        )

    def equity_curve(self) -> NDArray[np.float64]:
        """(bars so far + 1,): the starting cash, then the equity at the close of each bar."""
        done = self.index + 1 - self._first
        return np.concatenate([[self.initial_cash], self._record[0, :done, 0]])

    def exposure_curve(self) -> NDArray[np.float64]:
        """(bars so far + 1, S): signed notional over equity at each close; 0 where the equity is gone."""
        done = self.index + 1 - self._first
        equity = self._record[0, :done, :1]
        notional = self._record[0, :done, 1:]
        exposure = np.divide(notional, equity, out=np.zeros_like(notional), where=equity > 0.0)
        return np.concatenate([np.zeros((1, notional.shape[1])), exposure])

    def paid(self) -> dict[str, float]:
        """Costs so far in quote currency: `fees`, `spread` (already in the fill prices) and `funding`."""
        account = self._state.accounts[0]
        return {
            "fees": float(account[kernel.FEES]),
            "spread": float(account[kernel.SPREAD]),
            "funding": float(account[kernel.FUNDING_PAID]),
        }

    def _pending(self) -> Iterator[Order]:
        for waiting in self._waiting.values():
            yield replace(waiting.order, delay=max(0, waiting.active - self.index - 1))

    def _write_orders(self) -> None:
        rows = self._state.orders.shape[1]
        while rows < len(self._waiting):
            rows *= 2
        symbols = self.market.symbols
        self._state.orders = order_table(
            1,
            rows,
            ((key, symbols.index(w.order.symbol), w.order, w.active, w.side) for key, w in self._waiting.items()),
        )
        self._state.accounts[0, kernel.PENDING] = len(self._waiting)
        needed = kernel.log_rows(self._state)
        if needed > len(self._log):
            self._log = np.empty((needed, kernel.LOG_FIELDS))

    def _read_log(self, logged: int) -> None:
        symbols, interval, open_time = self.market.symbols, self.market.interval, self.market.open_time
        for kind_, _, bar_, symbol_, order_id, quantity, price, fee, spread in self._log[:logged].tolist():
            kind, bar, symbol = int(kind_), int(bar_), symbols[int(symbol_)]
            if kind == kernel.SETTLED:
                self.ledger.append(FundingPayment(bar, symbol, fee))
            elif kind in _FILL_REASONS:
                time = int(open_time[bar]) + (0 if kind == kernel.FILL_ORDER else interval)
                self.ledger.append(Fill(time, bar, symbol, quantity, price, fee, spread, _FILL_REASONS[kind]))
            else:
                order = self._waiting[int(order_id)].order
                part = "" if quantity == order.quantity else f" of {order.quantity:.8g}"
                detail = f"{quantity:.8g}{part} not executed"
                self.rejections.append(Rejection(bar, order, _DROP_REASONS[kind], detail))
        table = self._state.orders[0]
        live = set(table[table[:, kernel.WAITING] != 0.0, kernel.ORDER_ID].astype(int).tolist())
        self._waiting = {key: waiting for key, waiting in self._waiting.items() if key in live}


def check_leverage(max_leverage: float) -> None:
    """Raise `DataError` unless the cap is a positive finite number."""
    if not (math.isfinite(max_leverage) and max_leverage > 0.0):
        raise DataError(f"max_leverage is {max_leverage}; give a positive number, 1 for no borrowing.")
