"""The exchange of one account: takes requests, advances bar by bar, and records everything that happens.

`simulator.kernel.kernel` has the rules of a bar and does all the arithmetic. This module checks requests, keeps the
list of waiting orders and turns the kernel's log into records. A request that cannot be used becomes a `Rejection`
with a reason. No request is lost, and none raises.

A new market order or target replaces (as `superseded`) the market orders and targets of the same symbol that were
submitted at an earlier bar and still wait: the newer decision has seen more. Those submitted at the same bar stand
beside each other. All other orders stay until they are filled, cancelled or expire.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import BoolArray
from simulator.errors import DataError
from simulator.exchange.costs import Costs, check_leverage
from simulator.exchange.exchange_records import AccountView, Fill, LedgerEntry, Rejection, read_log, unreached
from simulator.exchange.orders import (
    Cancel,
    Order,
    OrderRequest,
    RejectionReason,
    Target,
    bracket_side,
    objection,
    resulting_position,
)
from simulator.exchange.tape import last_closes, late_rows, market_tape, order_row, terms_of, whole_bars
from simulator.exchange.venue import DELISTED_AFTER_MS, Venue, delisted_bars, kind_of
from simulator.kernel import kernel
from simulator.kernel import layout as at
from simulator.kernel.jit import is_compiled
from simulator.market.market import Market
from simulator.market.timeframes import HOUR_MS

_ORDER_ROWS = 8  # doubled whenever more orders wait
_LOG_ROWS = 512
_CURVE_ROWS = 1_024  # of the curves of a live account, doubled whenever they are full
_OPEN_END = sys.maxsize


def is_ready() -> bool:
    """Whether the machine code of a bar lies on disk. Else the first bar compiles it, half a minute once for each
    installation."""
    return is_compiled(kernel.advance)


@dataclass(frozen=True)
class _Waiting:
    order: Order
    submitted: int  # bar at whose close it was decided
    side: int  # sign of the position that its bracket is meant for; 0 without a bracket


class Exchange:
    """One account on one market, from the close of bar `index` to the close of bar `stop` (default: the last bar).

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
        venue: Venue | None = None,
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
        self.venue = venue or Venue()
        self.max_leverage = max_leverage
        self.ledger: list[LedgerEntry] = []
        self.rejections: list[Rejection] = []
        self._origin = int(market.open_time[0])  # when the bar that is counted as 0 opens
        self._first = index + 1
        self._tape_first = self._first  # the market's bar in row 0 of the tape
        self._tape, self._per_bar = market_tape(market, self._first, self.stop + 1, self.costs, self.venue)
        self._whole = self._without_finer(market, self.venue.finer, self._first, self.stop + 1)
        self._interval = market.interval // self._per_bar  # of a row of the tape, ms
        kinds = [kind_of(symbol, market, self.venue) for symbol in market.symbols]
        self._terms = terms_of(market.symbols, kinds, self._interval, self.costs, max_leverage, self.venue)
        self._delisted = delisted_bars(market)
        self._state = at.new_state(1, len(market.symbols), _ORDER_ROWS, cash)
        self._state.accounts[0, at.MAKER_FEE] = self.costs.maker_fee
        self._state.accounts[0, at.TAKER_FEE] = self.costs.taker_fee
        self._state.positions[0, :, at.MARK] = last_closes(market, index)
        rows = (self.stop - index) * self._per_bar
        self._equity = np.empty((1, rows))
        self._notional = np.empty((1, rows, len(market.symbols)))
        self._log = at.new_log(max(_LOG_ROWS, at.log_rows(self._state)))
        self._waiting: dict[int, _Waiting] = {}
        self._names: dict[int, str] = {}  # every order's id, by its number
        self._groups: dict[str, int] = {}
        self._targets: list[tuple[int, int, Target]] = []  # row of the tape, column, target
        self._seen = 0
        self._traded = 0.0  # notional of the fills in the ledger

    @property
    def fills(self) -> list[Fill]:
        """The fills of the ledger."""
        return [event for event in self.ledger if isinstance(event, Fill)]

    def submit(self, request: OrderRequest, thinking_ms: int = 0) -> None:
        """Take `request` at the close of bar `index`; it reaches the venue at the next open, or later by its delay, the
        latency and `thinking_ms`, the time that the decision took. An unusable one is recorded.

        A cancel acts from the open of the bar that it falls into, as the orders that are sent with it do; a target that
        took thinking acts from the first open after it has arrived.
        """
        why: tuple[RejectionReason, str] | None = None
        if self.index >= self.stop:
            why = "window_end", f"bar {self.stop} is the last"
        if isinstance(request, Cancel):
            self._cancel(request, self._row(0, thinking_ms), why)
        elif isinstance(request, Target):
            self._submit_target(request, why, thinking_ms)
        else:
            self._submit_order(request, why, thinking_ms)

    def _submit_order(self, order: Order, why: tuple[RejectionReason, str] | None, thinking_ms: int) -> None:
        symbols = self.market.symbols
        older = self._older(order.symbol) if order.kind == "market" else []
        if order.kind == "market" and order.quantity == 0.0 and (older or self._drop_targets(order.symbol)):
            self._supersede(older)
            return
        beside = [waiting.order for key, waiting in self._waiting.items() if key not in older]
        marks = dict(zip(symbols, self._state.positions[0, :, at.MARK].tolist(), strict=True))
        position = 0.0
        if order.symbol in marks:
            held = float(self._state.positions[0, symbols.index(order.symbol), at.QUANTITY])
            position = resulting_position(order, held, beside)
        ended = bool(self._state.accounts[0, at.ENDED])
        wrong = objection(order, marks, position, ended, self.venue.rules.get(order.symbol)) or why
        wrong = wrong or self._delisting(order.symbol)
        if wrong is None and order.id and order.id in self._live_names():
            wrong = "duplicate_id", f"an order '{order.id}' waits already"
        if wrong is not None:
            self.rejections.append(Rejection(self.index, order, *wrong))
            return
        self._supersede(older)
        if order.kind == "market":
            self._drop_targets(order.symbol)
        side = bracket_side(order, position)
        group = self._group_of(order.group) if order.group else 0
        key = self._seen
        self._seen += 1
        self._names[key] = order.id or f"#{key}"
        self._waiting[key] = _Waiting(order, self.index, side)
        rows, late = late_rows(self.costs.latency_ms + thinking_ms, self._interval)
        active, column = self._first_row(order.delay) + rows, symbols.index(order.symbol)
        self._add_row(order_row(key, column, order, active, side, group, self._per_bar, late))

    def _delisting(self, symbol: str) -> tuple[RejectionReason, str] | None:
        """Why nothing of a symbol of the market can be traded any more, if it was delisted."""
        if symbol not in self.market.symbols or self.index < self._delisted[self.market.symbols.index(symbol)]:
            return None
        return "delisted", f"{symbol} has had no bar for {DELISTED_AFTER_MS // HOUR_MS} hours and gets none any more"

    def _submit_target(self, target: Target, why: tuple[RejectionReason, str] | None, thinking_ms: int) -> None:
        symbols, wrong = self.market.symbols, why
        if target.symbol not in symbols:
            wrong = "unknown_symbol", f"the market has {', '.join(symbols)}"
        elif self._state.accounts[0, at.ENDED]:
            wrong = "liquidated", "the account has been liquidated"
        elif not (math.isfinite(target.exposure) and abs(target.exposure) <= self.max_leverage * (1.0 + 1e-9)):
            wrong = "bad_exposure", f"exposure {target.exposure}, at most {self.max_leverage:g} is allowed"
        elif target.delay < 0:
            wrong = "bad_delay", f"delay {target.delay}"
        elif math.isnan(self._state.positions[0, symbols.index(target.symbol), at.MARK]):
            wrong = "no_price", f"{target.symbol} has no bar yet"
        wrong = wrong or self._delisting(target.symbol)
        if wrong is not None:
            self.rejections.append(Rejection(self.index, target, *wrong))
            return
        self._supersede(self._older(target.symbol))
        self._drop_targets(target.symbol)
        rows, _ = late_rows(self.costs.latency_ms, self._interval)
        if thinking_ms:
            rows = -(-(self.costs.latency_ms + thinking_ms) // self._interval)
        self._targets.append((self._first_row(target.delay) + rows, symbols.index(target.symbol), target))

    def _cancel(self, request: Cancel, row: int, why: tuple[RejectionReason, str] | None) -> None:
        """Let the order that is named expire at `row` of the tape."""
        for key in self._waiting:
            if self._names[key] == request.id and why is None:
                table = self._state.orders[0]
                at_row = int(np.flatnonzero((table[:, at.LIVE] != 0.0) & (table[:, at.ORDER_ID] == key))[0])
                if row < table[at_row, at.EXPIRES]:
                    table[at_row, at.EXPIRES], table[at_row, at.CAUSE] = row, at.DROP_CANCELLED
                return
        why = why or ("unknown_id", f"no order '{request.id}' waits")
        self.rejections.append(Rejection(self.index, request, *why))

    def _group_of(self, name: str) -> int:
        """The number of the group called `name`, which no order of another group has."""
        return self._groups.setdefault(name, len(self._groups) + 1)

    def _older(self, symbol: str) -> list[int]:
        """Market orders of the symbol that wait from earlier bars."""
        return [
            key
            for key, waiting in self._waiting.items()
            if waiting.submitted < self.index and waiting.order.symbol == symbol and waiting.order.kind == "market"
        ]

    def _supersede(self, keys: list[int]) -> None:
        table = self._state.orders[0]
        for key in keys:
            left = float(table[(table[:, at.LIVE] != 0.0) & (table[:, at.ORDER_ID] == key), at.AMOUNT][0])
            detail = f"by a decision at bar {self.index}; {left:.8g} not executed"
            self.rejections.append(Rejection(self.index, self._waiting.pop(key).order, "superseded", detail, left))
            table[(table[:, at.LIVE] != 0.0) & (table[:, at.ORDER_ID] == key), at.LIVE] = 0.0
            self._state.accounts[0, at.WAITING] -= 1.0

    def _drop_targets(self, symbol: str) -> bool:
        """Forget what exposure was still to be reached; whether there was any."""
        if symbol not in self.market.symbols:
            return False
        column = self.market.symbols.index(symbol)
        position = self._state.positions[0, column]
        kept = [entry for entry in self._targets if entry[1] != column]
        begun = not math.isnan(position[at.WANTED])
        if len(kept) == len(self._targets) and not begun:
            return False
        detail = f"by a decision at bar {self.index}"
        for _, of, target in self._targets:
            if of == column:
                self.rejections.append(Rejection(self.index, target, "superseded", detail))
        if begun:
            self.rejections.append(self._unreached(column, "superseded", detail))
        self._targets = kept
        position[at.WANTED] = np.nan
        return True

    def _row(self, delay: int, thinking_ms: int) -> int:
        """Row of the tape, counted from the market's first bar, into which a request of now falls."""
        return self._first_row(delay) + late_rows(self.costs.latency_ms + thinking_ms, self._interval)[0]

    def _first_row(self, delay: int) -> int:
        """The same of a request that takes no milliseconds."""
        return (self.index + 1 + delay + self.costs.latency_bars) * self._per_bar

    def step(self, bars: int = 1) -> int:
        """Advance by `bars`, at most to `stop`, where orders that still wait are rejected. Returns the bars taken."""
        count = min(self.index + bars, self.stop) - self.index
        begin = (self.index + 1 - self._tape_first) * self._per_bar
        end = begin + count * self._per_bar
        before = (self._tape_first - self._first) * self._per_bar  # rows of the curves
        equity, notional = self._equity[:, before:], self._notional[:, before:]
        targets = self._due_targets(begin, end)
        if self._whole is not None and self._waiting:
            self._meet_whole_bars(self._whole, begin, end)
        needed = at.log_rows(self._state)
        if needed > len(self._log.rows):
            self._log = at.new_log(needed)
        row = begin
        while row < end:
            due = targets[:, row - begin :] if targets.shape[1] else targets
            row = kernel.advance(
                self._tape, self._terms, self._state, self._log, row, end, self._tape_first * self._per_bar,
                needed, due, equity, notional,
            )  # fmt: skip
            if self._log.used[0]:
                self._read_log()
        self.index += count
        if self.index == self.stop:
            self._end_of_window()
        return count

    @staticmethod
    def _without_finer(market: Market, finer: Market | None, first: int, stop: int) -> BoolArray | None:
        """(stop - first, S): which bars of a market with finer ones have none; None where there are none at all."""
        return None if finer is None else whole_bars(market, finer, first, stop)

    def _meet_whole_bars(self, whole: BoolArray, begin: int, end: int) -> None:
        """Let orders that reach the venue inside a bar without finer ones meet that bar, as late as they are in it: all
        of it stands in its first row of the tape, which is over for them otherwise. `begin` and `end` are rows."""
        offset = self._tape_first * self._per_bar
        for order in self._state.orders[0]:
            if order[at.LIVE] == 0.0:
                continue
            cancelled = order[at.CAUSE] == at.DROP_CANCELLED and order[at.EXPIRES] < np.inf
            for field in (at.ACTIVE, at.EXPIRES) if cancelled else (at.ACTIVE,):
                row = int(order[field]) - offset
                bar, rows = divmod(row, self._per_bar)
                if begin <= row < end and whole[bar, int(order[at.SYMBOL])]:
                    order[field] = offset + bar * self._per_bar
                    if field == at.ACTIVE:  # the share of a way is the root of that of the time
                        order[at.ORDER_LATE] = math.sqrt((rows + order[at.ORDER_LATE] ** 2) / self._per_bar)

    def _end_of_window(self) -> None:
        detail = f"bar {self.stop} is the last"
        left = {int(row[at.ORDER_ID]): float(row[at.AMOUNT]) for row in self._state.orders[0] if row[at.LIVE] != 0.0}
        for key, waiting in self._waiting.items():
            rest = f"{detail}; {left[key]:.8g} not executed"
            self.rejections.append(Rejection(self.index, waiting.order, "window_end", rest, left[key]))
        for _, _, target in self._targets:
            self.rejections.append(Rejection(self.index, target, "window_end", detail))
        for column in np.flatnonzero(~np.isnan(self._state.positions[0, :, at.WANTED])).tolist():
            self.rejections.append(self._unreached(column, "window_end", detail))
        self._waiting, self._targets = {}, []
        self._state.positions[0, :, at.WANTED] = np.nan

    def _unreached(self, column: int, reason: RejectionReason, detail: str) -> Rejection:
        """A record of an exposure that is wanted since an earlier bar and not reached yet, at the last prices."""
        position, equity = self._state.positions[0, column], float(self._state.accounts[0, at.EQUITY])
        wanted, mark, held = float(position[at.WANTED]), float(position[at.MARK]), float(position[at.QUANTITY])
        return unreached(self.index, self.market.symbols[column], wanted, equity, mark, held, reason, detail)

    def _due_targets(self, begin: int, end: int) -> NDArray[np.float64]:
        """(1, rows, S): the targets that become active in these rows of the tape; no rows without any."""
        if not self._targets:
            return kernel.NO_TARGETS
        offset = self._tape_first * self._per_bar + begin
        due = [entry for entry in self._targets if entry[0] - offset < end - begin]
        if not due:
            return kernel.NO_TARGETS
        targets = np.full((1, end - begin, len(self.market.symbols)), np.nan)
        for row, column, target in due:
            targets[0, row - offset, column] = target.exposure
        self._targets = [entry for entry in self._targets if entry not in due]
        return targets

    def account(self) -> AccountView:
        """The account at the close of bar `index`."""
        symbols = self.market.symbols
        cash, equity, peak = self._state.accounts[0, : at.PEAK + 1].tolist()
        rows = self._state.positions[0].tolist()
        positions, exposure, marks = {}, {}, {}
        entry: dict[str, float | None] = dict.fromkeys(symbols)
        stop: dict[str, float | None] = dict.fromkeys(symbols)
        target: dict[str, float | None] = dict.fromkeys(symbols)
        for symbol, row in zip(symbols, rows, strict=True):
            quantity, mark = row[at.QUANTITY], row[at.MARK]
            positions[symbol] = quantity
            marks[symbol] = mark
            exposure[symbol] = 0.0
            if quantity != 0.0:
                exposure[symbol] = quantity * mark / equity
                entry[symbol] = row[at.ENTRY]
                stop[symbol] = None if math.isnan(row[at.STOP]) else row[at.STOP]
                target[symbol] = None if math.isnan(row[at.TARGET]) else row[at.TARGET]
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
            liquidated=bool(self._state.accounts[0, at.ENDED]),
            rules=self.venue.rules,
            time_stops=tuple(s for s, row in zip(symbols, rows, strict=True) if row[at.EXPIRY] < math.inf),
            traded=self._traded,
            taker_fee=float(self._state.accounts[0, at.TAKER_FEE]),
        )

    def equity_curve(self) -> NDArray[np.float64]:
        """(bars so far + 1,): the starting cash, then the equity at the close of each bar."""
        done = (self.index + 1 - self._first) * self._per_bar
        return np.concatenate([[self.initial_cash], self._equity[0, self._per_bar - 1 : done : self._per_bar]])

    def exposure_curve(self) -> NDArray[np.float64]:
        """(bars so far + 1, S): signed notional over equity at each close; 0 where the equity is gone."""
        done = (self.index + 1 - self._first) * self._per_bar
        rows = slice(self._per_bar - 1, done, self._per_bar)
        equity, notional = self._equity[0, rows, None], self._notional[0, rows]
        exposure = np.divide(notional, equity, out=np.zeros_like(notional), where=equity > 0.0)
        return np.concatenate([np.zeros((1, notional.shape[1])), exposure])

    def paid(self) -> dict[str, float]:
        """Costs so far in quote currency. `spread` and `impact` are already in the fill prices; `funding` and
        `borrow` are interest; `liquidation` are the fees of liquidations, minus what the insurance paid."""
        account = self._state.accounts[0]
        return {
            "fees": float(account[at.FEES]),
            "spread": float(account[at.SPREAD]),
            "impact": float(account[at.IMPACT_PAID]),
            "funding": float(account[at.FUNDING_PAID]),
            "borrow": float(account[at.BORROW_PAID]),
            "liquidation": float(account[at.LIQUIDATION_PAID] - account[at.INSURED]),
        }

    def _pending(self) -> Iterator[Order]:
        table = self._state.orders[0]
        left = {int(row[at.ORDER_ID]): row for row in table[table[:, at.LIVE] != 0.0]}
        for key, waiting in self._waiting.items():
            row = left[key]
            delay = max(0, int(row[at.ACTIVE]) // self._per_bar - self.index - 1)
            yield replace(waiting.order, quantity=float(row[at.AMOUNT]), delay=delay, id=self._names[key])

    def _live_names(self) -> set[str]:
        return {self._names[key] for key in self._waiting}

    def _add_row(self, row: NDArray[np.float64]) -> None:
        """Append a live order behind those that wait, in order of submission."""
        table = self._state.orders[0]
        live = table[table[:, at.LIVE] != 0.0]
        rows = table.shape[0]
        while rows < len(live) + 1:
            rows *= 2
        fresh = np.zeros((1, rows, at.ORDER_FIELDS))
        fresh[0, : len(live)] = live
        fresh[0, len(live)] = row
        self._state = self._state._replace(orders=fresh)
        self._state.accounts[0, at.WAITING] = len(live) + 1

    def _read_log(self) -> None:
        rows = self._log.rows[: int(self._log.used[0])]
        orders = {key: waiting.order for key, waiting in self._waiting.items()}
        for record in read_log(rows, self.market, self._origin, self._per_bar, self._names, orders):
            if isinstance(record, Rejection):
                self.rejections.append(record)
            else:
                self.ledger.append(record)
                if isinstance(record, Fill):
                    self._traded += abs(record.quantity) * record.price
        table = self._state.orders[0]
        live = set(table[table[:, at.LIVE] != 0.0, at.ORDER_ID].astype(int).tolist())
        self._waiting = {key: waiting for key, waiting in self._waiting.items() if key in live}


class LiveExchange(Exchange):
    """One account from the close of the last bar of `market` on. `extend` takes each further bar; `finish` ends it.

    Everything else is the exchange of a backtest: on a market that had all the bars from the start, the same requests
    at the same closes give the same fills. Funding that comes after its bar is not settled; the terms' rate for
    settlements that are missing stands for it. A symbol without a bar for two days counts as delisted at once, which a
    backtest knows only of one that never comes back.
    """

    def __init__(
        self,
        market: Market,
        cash: float = 10_000.0,
        costs: Costs | None = None,
        max_leverage: float = 1.0,
        venue: Venue | None = None,
    ) -> None:
        """Raises `DataError` as `Exchange` does, for symbols whose kind is not stated, and for a venue with mark prices
        or finer bars, which would have to grow too."""
        if venue is not None and (venue.mark is not None or venue.finer is not None):
            raise DataError("a live account has no mark prices and no finer bars: leave both out.")
        unknown = [symbol for symbol in market.symbols if symbol not in market.kinds]
        if unknown:
            raise DataError(f"nothing states whether {', '.join(unknown)} are spot or perpetual.")
        super().__init__(market, len(market) - 1, cash, costs, max_leverage, len(market) - 1, venue)
        self.stop = _OPEN_END
        self._make_room(_CURVE_ROWS * self._per_bar)

    def extend(self, market: Market) -> None:
        """Take the next bar, the last one of `market`. Raises `DataError` unless it follows."""
        last = len(market) - 1
        if self.index + 1 != last or self.stop != _OPEN_END:
            raise DataError(f"the account stands at bar {self.index}, the market's last bar is {last}.")
        self.market = market
        self._tape, _ = market_tape(market, last, len(market), self.costs, self.venue)
        self._tape_first = last
        if not market.present[-1].all():
            self._delisted = delisted_bars(market)
        elif (self._delisted != at.NEVER).any():
            self._delisted = np.full(len(market.symbols), at.NEVER, np.int64)
        if (self.index + 1 - self._first) * self._per_bar == self._equity.shape[1]:
            self._make_room(2 * self._equity.shape[1])
        self.step()

    def finish(self) -> None:
        """End here: what waits is rejected."""
        if self.stop == _OPEN_END:
            self.stop = self.index
            self._end_of_window()

    def _make_room(self, rows: int) -> None:
        used = self._equity.shape[1]
        equity, notional = np.empty((1, rows)), np.empty((1, rows, len(self.market.symbols)))
        equity[:, :used], notional[:, :used] = self._equity, self._notional
        self._equity, self._notional = equity, notional
