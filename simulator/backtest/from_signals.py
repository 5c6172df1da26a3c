"""Backtests from precomputed signals: target exposures bar by bar, run through the kernel in one call.

A signal belongs to the close of its bar and trades at the next open. This module makes that shift, so that no caller
can forget it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simulator.arrays import FloatArray
from simulator.errors import DataError
from simulator.exchange.costs import Costs, check_leverage
from simulator.exchange.exchange_records import Fill, Rejection, read_log, unreached
from simulator.exchange.tape import last_closes, market_tape, terms_of
from simulator.exchange.venue import Venue, kind_of
from simulator.kernel import kernel
from simulator.kernel import layout as at
from simulator.market.market import Market

_LOG_ROWS = 16_384


@dataclass(frozen=True)
class SignalRun:
    """What came of the signals.

    Attributes:
        equity: (T,) at each close; `equity[0]` is the starting cash. quantity: (S,) held at the end. cash: at the end.
        costs: money paid, as `Exchange.paid` names it. events: the kernel's log, see `simulator.kernel.layout`.
        waiting: (S,) exposures that were still to be reached at the end, NaN for none.
    """

    market: Market
    equity: FloatArray
    quantity: FloatArray
    cash: float
    costs: dict[str, float]
    events: FloatArray
    waiting: FloatArray

    @cached_property
    def fills(self) -> list[Fill]:
        """Every fill, oldest first."""
        start = int(self.market.open_time[0])
        rows = self.events[np.isin(self.events[:, at.KIND], at.FILL_KINDS)]
        return [record for record in read_log(rows, self.market, start, 1, {}, {}) if isinstance(record, Fill)]

    @cached_property
    def rejections(self) -> list[Rejection]:
        """What was not reached, oldest first. A signal that a later one replaced while it waited has no record."""
        start = int(self.market.open_time[0])
        dropped = self.events[self.events[:, at.KIND] >= at.DROP_LEVERAGE]
        records = [one for one in read_log(dropped, self.market, start, 1, {}, {}) if isinstance(one, Rejection)]
        last = len(self.market) - 1
        marks = last_closes(self.market, last)
        for column, symbol in enumerate(self.market.symbols):
            wanted = float(self.waiting[column])
            if not math.isnan(wanted):
                account = wanted, float(self.equity[-1]), float(marks[column]), float(self.quantity[column])
                records.append(unreached(last, symbol, *account, "window_end", f"bar {last} is the last"))
        return records


def run_signals(
    market: Market,
    exposure: FloatArray,
    cash: float = 10_000.0,
    costs: Costs | None = None,
    max_leverage: float = 1.0,
    venue: Venue | None = None,
) -> SignalRun:
    """Bring the account to `exposure[i]` at the open of bar i + 1, sized there, for every bar i of the market.

    Args:
        exposure: (T, S) or, for one symbol, (T,): signed notional over equity, NaN to change nothing. The last bar's is
            lost: no open follows it.

    Raises:
        DataError: a shape that does not fit, an exposure that is infinite or beyond the cap, or finer bars (signals
            of the market's bars run on those; use an `Exchange` for paths inside them).
    """
    costs, venue = costs or Costs(), venue or Venue()
    check_leverage(max_leverage)
    bars, symbols = len(market), len(market.symbols)
    signals = exposure.reshape(bars, 1) if exposure.shape == (bars,) and symbols == 1 else exposure
    if signals.shape != (bars, symbols):
        raise DataError(f"the signals have shape {exposure.shape}; the market needs {(bars, symbols)}.")
    if venue.finer is not None or costs.latency_bars or costs.latency_ms >= market.interval:
        raise DataError("signals take neither finer bars nor a latency of bars; submit Target requests to an Exchange.")
    beyond = np.nanmax(np.abs(signals), initial=0.0)
    if not beyond <= max_leverage * (1.0 + 1e-9):
        raise DataError(f"a signal asks for an exposure of {beyond}; at most {max_leverage:g} is allowed.")
    if not cash > 0.0:
        raise DataError(f"the starting cash is {cash}; give a positive amount.")
    tape, _ = market_tape(market, 1, bars, costs, venue)
    kinds = [kind_of(symbol, market, venue) for symbol in market.symbols]
    terms = terms_of(market.symbols, kinds, market.interval, costs, max_leverage, venue)
    state = at.new_state(1, symbols, 1, cash)
    state.accounts[0, at.MAKER_FEE], state.accounts[0, at.TAKER_FEE] = costs.maker_fee, costs.taker_fee
    state.positions[0, :, at.MARK] = last_closes(market, 0)
    equity = np.empty((1, bars))
    equity[0, 0] = cash
    log, pieces, row = at.new_log(_LOG_ROWS + at.log_rows(state)), [], 0
    targets = np.ascontiguousarray(signals[:-1], dtype=np.float64)[None]
    while row < bars - 1:
        row = kernel.advance(
            tape, terms, state, log, row, bars - 1, 1, at.log_rows(state), targets[:, row:], equity[:, 1:],
            kernel.NO_NOTIONAL,
        )  # fmt: skip
        pieces.append(log.rows[: int(log.used[0])].copy())
    paid = state.accounts[0]
    return SignalRun(
        market=market,
        equity=equity[0],
        quantity=state.positions[0, :, at.QUANTITY].copy(),
        cash=float(paid[at.CASH]),
        costs={
            "fees": float(paid[at.FEES]),
            "spread": float(paid[at.SPREAD]),
            "impact": float(paid[at.IMPACT_PAID]),
            "funding": float(paid[at.FUNDING_PAID]),
            "borrow": float(paid[at.BORROW_PAID]),
            "liquidation": float(paid[at.LIQUIDATION_PAID] - paid[at.INSURED]),
        },
        events=np.concatenate(pieces) if pieces else np.empty((0, at.LOG_FIELDS)),
        waiting=state.positions[0, :, at.WANTED].copy(),
    )
