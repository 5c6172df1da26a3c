"""The value of a decision over scenarios: the account and its orders, run through every price path at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.arrays import FloatArray
from simulator.errors import DataError
from simulator.exchange.costs import Costs, check_leverage
from simulator.exchange.exchange_records import AccountView
from simulator.exchange.orders import Order, bracket_side, objection, resulting_position
from simulator.exchange.tape import late_rows, market_tape, order_row, paths_tape, terms_of
from simulator.exchange.venue import Venue, kind_of
from simulator.kernel import kernel
from simulator.kernel import layout as at
from simulator.market.instruments import MarketKind
from simulator.market.market import Market
from simulator.market.price_paths import PricePaths


@dataclass(frozen=True)
class ScenarioOutcome:
    """What became of the account on each path, as fractions of its equity at the start. All (paths,) but the last.

    Attributes:
        net_return: change of equity, what is still held valued at the last close.
        fees, spread, funding: costs paid (funding negative: received). `funding` holds the interest on what is
            borrowed.
        shortfall: (paths, S) what the orders' fills cost against the last close before the decision, as a fraction of
            the traded notional, spread included and fees not; positive is a cost; NaN where nothing filled.
    """

    net_return: FloatArray
    fees: FloatArray
    spread: FloatArray
    funding: FloatArray
    shortfall: FloatArray


def simulate_scenarios(
    paths: PricePaths,
    account: AccountView,
    orders: Sequence[Order],
    symbols: Sequence[str],
    costs: Costs | None = None,
    max_leverage: float = 1.0,
) -> ScenarioOutcome:
    """Submit `orders` at the start of every path, as an `Exchange` would, and let the paths run out.

    Pending orders of the account live on unless a new order for their symbol replaces them. An order that the exchange
    would reject has no effect.

    Args:
        symbols: what the last axis of `paths` means; every symbol of the account must be there.

    Raises:
        DataError: symbols that do not fit, a bad leverage cap, an account without equity, or a latency in milliseconds
            on bars of an unknown length.
    """
    count, bars, columns = paths.shape
    if len(symbols) != columns or set(symbols) != set(account.positions):
        raise DataError(
            f"the scenarios have {columns} columns for symbols {list(symbols)}, "
            f"the account has {list(account.positions)}; give both for the same symbols."
        )
    if not account.equity > 0.0:
        raise DataError(f"the account's equity is {account.equity}; nothing can be simulated from there.")
    check_leverage(max_leverage)
    costs = costs or Costs()
    if costs.latency_ms and not paths.interval:
        raise DataError("a latency in milliseconds needs PricePaths.interval, the length of a bar; give it.")
    rows, late = late_rows(costs.latency_ms, paths.interval) if costs.latency_ms else (0, 0.0)
    accepted = _accepted(account, orders)
    state = at.new_state(count, columns, max(1, len(accepted)), account.cash)
    state.accounts[:, [at.EQUITY, at.PEAK]] = account.equity
    state.accounts[:, at.MAKER_FEE], state.accounts[:, at.TAKER_FEE] = costs.maker_fee, costs.taker_fee
    state.accounts[:, at.WAITING] = len(accepted)
    for column, symbol in enumerate(symbols):
        state.positions[:, column, : at.MARK + 1] = (
            account.positions[symbol],
            _or_nan(account.entry_price[symbol]),
            _or_nan(account.stop[symbol]),
            _or_nan(account.target[symbol]),
            account.mark[symbol],
        )
    position_of = {symbol: column for column, symbol in enumerate(symbols)}
    groups: dict[str, int] = {"": 0}
    for key, (order, side) in enumerate(accepted):
        group = groups.setdefault(order.group, len(groups))
        active = order.delay + costs.latency_bars + rows
        column = position_of[order.symbol]
        state.orders[:, key] = order_row(key, column, order, active, side, group, late=late)
    perpetual: MarketKind = "perpetual"
    kinds = paths.kinds or (perpetual,) * columns
    terms = terms_of(symbols, kinds, paths.interval, costs, max_leverage, Venue())
    kernel.advance(
        paths_tape(paths), terms, state, at.new_log(0), 0, bars, 0, 0, kernel.NO_TARGETS, kernel.NO_EQUITY,
        kernel.NO_NOTIONAL,
    )  # fmt: skip
    return _outcome(state, account, symbols)


def recorded_path(market: Market, index: int, bars: int, costs: Costs | None = None) -> PricePaths:
    """The one path that history took after the close of bar `index`: (1, bars, S).

    Settlements inside a bar (bars longer than the funding interval) are booked at its close. `costs` have the rate of
    those that the data lacks. Raises `DataError` where history ends before.
    """
    if bars < 1 or not 0 <= index < len(market) - bars:
        raise DataError(
            f"{market.source} has no {bars} bars after bar {index}: it has bars 0..{len(market) - 1}; "
            "decide earlier or look less far ahead."
        )
    tape, _ = market_tape(market, index + 1, index + 1 + bars, costs or Costs(), Venue())
    return PricePaths(
        open=tape.open,
        high=tape.high,
        low=tape.low,
        close=tape.close,
        half_spread=tape.half_spread,
        funding_rate=tape.funding_inside + tape.funding_close,
        interval=market.interval,
        kinds=tuple(kind_of(symbol, market, Venue()) for symbol in market.symbols),
        missing_funding=tape.missing if tape.missing.shape[1] else None,
        delisted=tape.delisted,
    )


def _accepted(account: AccountView, orders: Sequence[Order]) -> list[tuple[Order, int]]:
    """Orders that the exchange would keep, each with the side that its bracket is meant for, oldest first."""
    usable: list[tuple[Order, int]] = []
    older = list(zip(account.pending, account.pending_sides, strict=True))
    for order in orders:
        replaced = [pair for pair in older if pair[0].symbol != order.symbol or pair[0].kind != "market"]
        if order.kind == "market" and order.quantity == 0.0:  # only withdraws what waits
            older = replaced
            continue
        stays = replaced if order.kind == "market" else older
        before = [other for other, _ in stays + usable]
        position = resulting_position(order, account.positions.get(order.symbol, 0.0), before)
        if objection(order, account.mark, position, account.liquidated) is None:
            usable.append((order, bracket_side(order, position)))
            older = stays
    return older + usable


def _outcome(state: kernel.KernelState, account: AccountView, symbols: Sequence[str]) -> ScenarioOutcome:
    start = account.equity
    ends, positions = state.accounts, state.positions
    arrival = np.array([account.mark[symbol] for symbol in symbols])
    traded = positions[:, :, at.ORDERED_ABS] * arrival
    cost = positions[:, :, at.ORDERED_VALUE] - positions[:, :, at.ORDERED] * arrival
    net = ends[:, at.EQUITY] / start - 1.0
    fees, spread = ends[:, at.FEES] / start, ends[:, at.SPREAD] / start
    funding = (ends[:, at.FUNDING_PAID] + ends[:, at.BORROW_PAID]) / start
    return ScenarioOutcome(
        net_return=net,
        fees=fees,
        spread=spread,
        funding=funding,
        shortfall=np.divide(cost, traded, out=np.full_like(cost, np.nan), where=traded > 0.0),
    )


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value
