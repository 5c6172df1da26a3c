"""Turns markets, scenarios, rules and orders into the arrays that `simulator.kernel.kernel` works on."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np

from simulator.arrays import BoolArray, FloatArray
from simulator.errors import DataError
from simulator.exchange.costs import Costs
from simulator.exchange.orders import Order
from simulator.exchange.rules import SymbolRules, maintenance_amounts
from simulator.exchange.venue import SETTLEMENT_MS, Venue, delisted_bars, kind_of, missing_settlements
from simulator.kernel import layout as at
from simulator.kernel.layout import Tape, Terms
from simulator.market.instruments import MarketKind
from simulator.market.market import Market
from simulator.market.price_paths import PricePaths
from simulator.market.timeframes import YEAR_MS, format_time

IMPACT_BARS = 48  # bars whose returns tell the volatility of the next one

_KINDS = {
    "market": at.MARKET_ORDER,
    "limit": at.LIMIT_ORDER,
    "stop": at.STOP_ORDER,
    "stop_limit": at.STOP_LIMIT_ORDER,
    "take_profit": at.TAKE_PROFIT_ORDER,
    "trailing_stop": at.TRAILING_ORDER,
}
_IN_FORCE = {"gtc": at.GTC, "ioc": at.IOC, "fok": at.FOK, "post_only": at.POST_ONLY}


def market_tape(market: Market, first: int, stop: int, costs: Costs, venue: Venue) -> tuple[Tape, int]:
    """Bars ``first .. stop - 1`` as a tape with one path, and how many of its rows make one bar of the market.

    The arrays are the market's own where nothing has to be changed. A settlement belongs to the bar that holds its
    time, the bar's close included and its open not: an order filled at the open of the next bar does not take part in
    it. Raises `DataError` for an impossible bar, one without a usable half spread, or a finer or mark-price market that
    does not fit.
    """
    per_bar = 1
    coarse, whole = market, None
    kinds = [kind_of(symbol, market, venue) for symbol in market.symbols]
    delisted = delisted_bars(market)
    listed = delisted == at.NEVER
    if venue.finer is not None:
        begin = max(0, first - IMPACT_BARS - 1)  # as much of the past as the impact of the first bars asks for
        market, per_bar = _refined(market, venue.finer, begin, stop)
        whole, from_bar, to_bar = whole_bars(coarse, venue.finer, first, stop), first, stop
        first, stop, delisted = (first - begin) * per_bar, (stop - begin) * per_bar, (delisted - begin) * per_bar
    rows = slice(first, stop)
    bars = {name: _path(getattr(market, name)[rows]) for name in ("open", "high", "low", "close", "volume")}
    if costs.fill == "close":
        bars |= _opened_at_previous_close(market, first, bars)
    spread = _path(market.half_spread[rows])
    begin = int(market.open_time[first]) if stop > first else 0
    _check(bars, spread, market.source, market.symbols, begin, market.interval)
    if np.isnan(spread).any():
        spread = np.nan_to_num(spread)
    mark = _mark(market, venue.mark, rows) or (bars["low"], bars["high"], bars["close"])
    shape = bars["open"].shape
    inside, close = np.zeros(shape), np.zeros(shape)
    end = begin + (stop - first) * market.interval
    for column, symbol in enumerate(market.symbols):
        events = market.funding.get(symbol, ())
        place = bisect_right(events, begin, key=lambda event: event.time)
        for event in events[place : bisect_right(events, end, key=lambda event: event.time)]:
            bar, rest = divmod(event.time - begin, market.interval)
            if rest == 0:
                close[0, bar - 1, column] += event.rate
            else:
                inside[0, bar, column] += event.rate
    missing = np.zeros((1, 0, 0))
    for column, symbol in enumerate(market.symbols):
        if kinds[column] != "perpetual" or costs.missing_funding_rate == 0.0:
            continue
        lacking, step = missing_settlements(market.funding.get(symbol, ()), begin, end)
        if len(lacking):
            missing = missing if missing.shape[1] else np.zeros(shape)
            places = (lacking - begin - 1) // market.interval
            np.add.at(missing[0, :, column], places, costs.missing_funding_rate * step / SETTLEMENT_MS)
    sigma = np.zeros(shape)
    if costs.impact > 0.0:
        sigma = _sigma(market, first, stop)[None]
        if whole is not None and whole.any():  # a whole bar has the volatility of whole bars
            sigma[0, ::per_bar][whole] = _sigma(coarse, from_bar, to_bar)[whole]
    tape = Tape(
        bars["open"], bars["high"], bars["low"], bars["close"], bars["volume"], spread, *mark, sigma, inside, close,
        missing, np.where(listed, at.NEVER, delisted - first),
    )  # fmt: skip
    return tape, per_bar


def paths_tape(paths: PricePaths) -> Tape:
    """Scenarios as a tape. They have no volume, so nothing is bound by it and nothing has an impact.

    Raises `DataError` for an impossible bar or one without a usable half spread.
    """
    names = ("open", "high", "low", "close")
    bars = {name: np.ascontiguousarray(getattr(paths, name)) for name in names}
    spread = np.ascontiguousarray(paths.half_spread)
    _check(bars, spread, "scenarios", (), 0, 0)
    zeros, endless = np.zeros(paths.shape), np.full(paths.shape, np.inf)
    listed = np.full(paths.shape[2], at.NEVER, np.int64)
    return Tape(
        bars["open"], bars["high"], bars["low"], bars["close"], endless, np.nan_to_num(spread), bars["low"],
        bars["high"], bars["close"], zeros, zeros, np.ascontiguousarray(paths.funding_rate),
        np.zeros((1, 0, 0)) if paths.missing_funding is None else np.ascontiguousarray(paths.missing_funding),
        listed if paths.delisted is None else paths.delisted,
    )  # fmt: skip


def terms_of(
    symbols: Sequence[str], kinds: Sequence[MarketKind | None], interval: int, costs: Costs, max_leverage: float,
    venue: Venue,
) -> Terms:  # fmt: skip
    """The arrays of what trading `symbols`, of these kinds, in bars of `interval` ms is subject to.

    A symbol whose kind is not known is charged as spot: for what is borrowed. Rules of other symbols are not used.
    Raises `DataError` for an isolated symbol that is not there.
    """
    strangers = sorted(set(venue.isolated) - set(symbols))
    if strangers:
        raise DataError(f"isolated margin is asked for {', '.join(strangers)}; the market has {', '.join(symbols)}.")
    rules = np.zeros((len(symbols), at.RULE_FIELDS))
    tiers: list[tuple[float, float, float, float]] = []
    for column, (symbol, kind) in enumerate(zip(symbols, kinds, strict=True)):
        own = venue.rules.get(symbol, SymbolRules())
        row = rules[column]
        row[at.SPOT] = kind != "perpetual"
        row[at.LOT], row[at.TICK], row[at.MIN_NOTIONAL] = own.lot, own.tick, own.min_notional
        row[at.MAKER] = np.nan if own.maker_fee is None else own.maker_fee
        row[at.TAKER] = np.nan if own.taker_fee is None else own.taker_fee
        row[at.LIQUIDATION_FEE] = own.liquidation_fee
        row[at.ISOLATED] = symbol in venue.isolated
        row[at.LEVERAGE] = venue.isolated.get(symbol, max_leverage)
        row[at.TIER_FIRST] = len(tiers)
        amounts = maintenance_amounts(own.tiers)
        tiers += [(t.floor, t.maintenance_rate, a, t.max_leverage) for t, a in zip(own.tiers, amounts, strict=True)]
        row[at.TIER_STOP] = len(tiers)
    scalars = np.zeros(at.SCALARS)
    scalars[at.SPREAD_MULTIPLIER] = costs.spread_multiplier
    scalars[at.IMPACT] = costs.impact
    scalars[at.PARTICIPATION] = costs.participation or 0.0
    scalars[at.MAX_LEVERAGE] = max_leverage
    scalars[at.BORROW] = costs.borrow_rate * interval / YEAR_MS
    scalars[at.FEE_IN_BASE] = costs.fee_currency == "base"
    scalars[at.FEE_ON_TOP] = costs.sizing == "fee_on_top"
    scalars[at.TARGET_LATE] = late_rows(costs.latency_ms, interval)[1] if costs.latency_ms else 0.0
    scalars[at.HAIRCUT] = costs.delisting_haircut
    return Terms(rules, np.array(tiers, dtype=np.float64).reshape(-1, at.TIER_FIELDS), scalars)


def late_rows(latency_ms: int, interval: int) -> tuple[int, float]:
    """Rows of `interval` ms that an order is late, and its `late_share` in the row that it then meets."""
    rows, rest = divmod(latency_ms, interval)
    return rows, late_share(rest, interval)


def late_share(milliseconds: int, interval: int) -> float:
    """How far the price may have run against an order that reaches the venue inside a bar, as a share of the way from
    the bar's open to its extreme.

    The price at that moment is not known. A random walk goes as far as the square root of the time, so it is taken to
    have gone that share of the whole way against the order, and never in its favor.
    """
    return math.sqrt(milliseconds / interval)


def order_row(
    key: int, column: int, order: Order, active: int, side: int, group: int, per_bar: int = 1, late: float = 0.0
) -> FloatArray:
    """(ORDER_FIELDS,): a live order. `active` is a row of the tape; durations are bars of `per_bar` rows each. `late`
    is its `late_share` there."""
    row = np.zeros(at.ORDER_FIELDS)
    row[at.LIVE], row[at.ORDER_ID], row[at.SYMBOL] = 1.0, key, column
    row[at.TYPE], row[at.AMOUNT] = _KINDS[order.kind], order.quantity
    for field, value in (
        (at.LIMIT, order.limit), (at.TRIGGER, order.trigger), (at.TRAIL, order.trail), (at.ORDER_STOP, order.stop),
        (at.ORDER_TARGET, order.target),
    ):  # fmt: skip
        row[field] = np.nan if value is None else value
    row[at.ACTIVE] = active
    row[at.EXPIRES] = np.inf if order.expire_bars is None else active + order.expire_bars * per_bar
    row[at.CAUSE] = at.DROP_EXPIRED
    row[at.IN_FORCE] = _IN_FORCE[order.in_force]
    row[at.REDUCE_ONLY] = order.reduce_only
    row[at.GROUP], row[at.SIDE] = group, side
    row[at.HOLD] = 0.0 if order.hold_bars is None else order.hold_bars * per_bar
    row[at.MET], row[at.ORDER_LATE] = -1.0, late
    return row


def last_closes(market: Market, index: int) -> FloatArray:
    """(S,): close of the newest present bar up to `index`; NaN before a symbol's first bar."""
    closes: FloatArray = market.close[index].copy()
    for column in np.flatnonzero(np.isnan(closes)):
        known = np.flatnonzero(market.present[: index + 1, column])
        if len(known):
            closes[column] = market.close[known[-1], column]
    return closes


def _path(array: FloatArray) -> FloatArray:
    """(1, bars, S) of (bars, S), without a copy where the memory allows it."""
    whole = np.ascontiguousarray(array)
    return (whole if whole.flags.writeable else whole.copy())[None]


def _opened_at_previous_close(market: Market, first: int, bars: dict[str, FloatArray]) -> dict[str, FloatArray]:
    """Bars that open where the one before closed, so that an order trades at the close that it was decided on."""
    before = market.close[first - 1 : first] if first else bars["open"][0, :1]
    closes = np.concatenate([before, bars["close"][0, :-1]])[None]
    opens = np.where(np.isnan(closes), bars["open"], closes)
    opens = np.where(np.isnan(bars["close"]), np.nan, opens)
    return {"open": opens, "high": np.maximum(bars["high"], opens), "low": np.minimum(bars["low"], opens)}


def whole_bars(market: Market, finer: Market, first: int, stop: int) -> BoolArray:
    """(stop - first, S): bars ``first .. stop - 1`` of `market` that have none of `finer` inside, and count as one.
    `finer` has all of its symbols."""
    covered = np.zeros((stop - first, len(market.symbols)), bool)
    place = (finer.open_time - int(market.open_time[0])) // market.interval - first
    inside = (place >= 0) & (place < stop - first)
    columns = [finer.column(symbol) for symbol in market.symbols]
    np.logical_or.at(covered, place[inside], finer.present[inside][:, columns])
    whole: BoolArray = ~covered & market.present[first:stop]
    return whole


def _refined(market: Market, finer: Market, first: int, stop: int) -> tuple[Market, int]:
    """Bars ``first .. stop - 1`` of `market` on the grid of `finer`: its finer bars where there are any, else the bar
    itself in the first place."""
    per_bar, rest = divmod(market.interval, finer.interval)
    if rest or per_bar < 2:
        raise DataError(f"{finer.timeframe} bars are not finer than {market.timeframe}, or do not divide them.")
    if set(market.symbols) - set(finer.symbols):
        raise DataError(f"the finer bars lack {', '.join(sorted(set(market.symbols) - set(finer.symbols)))}.")
    finer = finer.select(market.symbols)
    rows = slice(first, stop)
    start, count = int(market.open_time[0]) + first * market.interval, (stop - first) * per_bar
    open_time = start + finer.interval * np.arange(count, dtype=np.int64)
    place, off = np.divmod(finer.open_time - start, finer.interval)
    inside = (place >= 0) & (place < count)
    if off.any():
        raise DataError("the finer bars do not lie on the market's grid.")
    arrays: dict[str, Any] = {}
    names = ("open", "high", "low", "close", "volume", "half_spread")
    for name in names:
        arrays[name] = np.full((count, len(market.symbols)), np.nan)
        arrays[name][place[inside]] = getattr(finer, name)[inside]
    alone = whole_bars(market, finer, first, stop)
    for name in names:
        blocks = arrays[name].reshape(stop - first, per_bar, -1)
        blocks[:, 0][alone] = getattr(market, name)[rows][alone]
    refined = Market(
        symbols=market.symbols, timeframe=finer.timeframe, open_time=open_time, funding=market.funding,
        source=f"{market.source} on {finer.timeframe}", **arrays,
    )  # fmt: skip
    return refined, per_bar


def _mark(market: Market, mark: Market | None, rows: slice) -> tuple[FloatArray, FloatArray, FloatArray] | None:
    """Low, high and close of the mark price on the market's grid; None where there is none."""
    if mark is None:
        return None
    times = market.open_time[rows]
    first = int(np.searchsorted(mark.open_time, times[0])) if len(times) else 0
    there = slice(first, first + len(times))
    same = mark.timeframe == market.timeframe and np.array_equal(mark.open_time[there], times)
    if not same or set(market.symbols) - set(mark.symbols):
        raise DataError(
            f"the mark prices are {mark.timeframe} bars of {', '.join(mark.symbols)}; they must have the symbols and "
            f"the very bars of {market.source} ({market.timeframe})."
        )
    chosen = mark.select(market.symbols)
    return _path(chosen.low[there]), _path(chosen.high[there]), _path(chosen.close[there])


def _sigma(market: Market, first: int, stop: int) -> FloatArray:
    """(stop - first, S): root mean square of the log returns of the last IMPACT_BARS bars before each bar.

    Where fewer than eight are known, half the bar's own range, by Parkinson's constant, stands in.
    """
    begin = max(0, first - IMPACT_BARS - 1)
    logs = np.log(market.close[begin:stop])
    squares = np.diff(logs, axis=0, prepend=logs[:1] * np.nan) ** 2
    known = ~np.isnan(squares)
    sums = np.concatenate([np.zeros((1, logs.shape[1])), np.cumsum(np.where(known, squares, 0.0), axis=0)])
    counts = np.concatenate([np.zeros((1, logs.shape[1])), np.cumsum(known, axis=0)])
    last = np.arange(first - begin, stop - begin)
    early = np.maximum(last - IMPACT_BARS, 0)
    number = counts[last] - counts[early]
    sigma = np.sqrt(np.maximum(sums[last] - sums[early], 0.0) / np.maximum(number, 1.0))
    own = np.log(market.high[first:stop] / market.low[first:stop]) / 1.665
    return np.ascontiguousarray(np.nan_to_num(np.where(number >= 8, sigma, own)))


def _check(
    bars: dict[str, FloatArray], spread: FloatArray, source: str, symbols: Sequence[str], begin: int, interval: int
) -> None:
    """Raise `DataError` for a bar that could not have been, or that has no spread and would trade for free."""
    low, high, close = bars["low"], bars["high"], bars["close"]
    possible = (low > 0.0) & (low <= bars["open"]) & (low <= close) & (high >= bars["open"]) & (high >= close)
    possible &= high < np.inf
    if "volume" in bars:
        possible &= bars["volume"] >= 0.0
    absent = np.isnan(close)
    if not (possible | absent).all():
        _, bar, column = np.argwhere(~(possible | absent))[0].tolist()
        where = f"{symbols[column]} at {format_time(begin + bar * interval)}" if symbols else f"bar {bar}"
        values = ", ".join(f"{name} {array[0, bar, column]:.8g}" for name, array in bars.items())
        raise DataError(f"{source}: the bar of {where} is impossible ({values}); fix or remove it.")
    if not ((spread >= 0.0) & (spread < 1.0) | absent).all():
        raise DataError(
            f"{source}: a present bar has no usable half_spread; it must be a fraction from 0 to below 1. "
            "Load the data with half_spread_bps, or repair the column."
        )
