"""Episodes in which somebody hostile has all the models, at an exchange that fills late, in parts, or not at all.

An episode checks what the guard promises (`cryptosentinel.guard.guard`) on what the exchange really did, and that what
the guard counts of open orders is at least what the exchange has accepted. The test's own
account of the open orders is written anew here, in the plainest form, and shares no code with the guard.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from cryptosentinel.guard.guard import Guard
from cryptosentinel.guard.limits import GuardLimits
from cryptosentinel.guard.pending import OrderSchedule
from simulator.exchange.costs import Costs
from simulator.exchange.exchange import Exchange
from simulator.exchange.exchange_records import AccountView, Fill
from simulator.exchange.orders import Order, OrderRequest
from simulator.exchange.rules import SymbolRules
from simulator.exchange.venue import Venue
from simulator.market.market import Market, MarketView
from simulator.market.timeframes import DAY_MS
from tests.markets import without_bars
from tests.standard_limits import guard_limits
from tests.team_scenes import COINS, synthetic

FIRST = 100
BARS = 14  # of an episode
RULES = ("exposure", "gross")
KINDS = ("market", "market", "market", "limit", "limit", "stop", "stop_limit", "take_profit", "trailing_stop")
_ROUNDING = 1e-6


@dataclass
class Summary:
    """What some episodes came to.

    Attributes:
        fills, partly, absent: fills, bars after which an order was filled in part, and bars without a price for a coin.
        flattened, released: how often the guard closed everything, and let go a part that it had held back.
        closest: by limit, the largest exposure after a bar over the limit, both at the prices and the equity at which
            the orders were let through; where something lay beyond the limit before, over that. Above 1 is a breach.
        breaches: in words, with the seed.
    """

    fills: int = 0
    partly: int = 0
    absent: int = 0
    flattened: int = 0
    released: int = 0
    closest: dict[str, float] = field(default_factory=lambda: dict.fromkeys(RULES, 0.0))
    breaches: list[str] = field(default_factory=list)


@cache
def jumpy(seed: int, gaps: bool) -> Market:
    """Bars of 4 hours that jump by a few percent between one another, some of them absent."""
    market = synthetic()
    random = np.random.default_rng(seed)
    shape = market.close.shape
    moves = 0.03 * random.standard_t(3, shape)
    close = 100.0 * np.exp(np.cumsum(np.clip(moves, -0.25, 0.25), axis=0))
    opens = np.vstack([close[:1], close[:-1]]) * np.exp(0.01 * random.standard_normal(shape))
    arrays: dict[str, Any] = {
        "open": opens,
        "close": close,
        "high": np.maximum(opens, close) * 1.01,
        "low": np.minimum(opens, close) * 0.99,
        "volume": 10.0 ** random.uniform(1.0, 4.0, shape),
        "half_spread": np.full(shape, 2e-4),
    }
    made = replace(market, **arrays, truth=None, funding={}, news=())
    return without_bars(made, random.random(shape) < 0.15) if gaps else made


def episode(seed: int, summary: Summary) -> None:
    """Play one episode and add it to `summary`."""
    rng = np.random.default_rng([17, seed])
    market = jumpy(int(rng.integers(8)), bool(rng.random() < 0.5))
    lot = float(rng.choice([0.0, 0.001, 0.5, 5.0]))
    rules = (
        {} if lot == 0.0 else dict.fromkeys(COINS, SymbolRules(lot=lot, min_notional=float(rng.choice([0.0, 50.0]))))
    )
    participation = [None, 0.1, 0.02][int(rng.integers(3))]
    impact = float(rng.choice([0.0, 1.0])) if participation is not None else 0.0
    costs = Costs(
        0.0,
        float(rng.choice([0.0, 0.001])),
        impact=impact,
        participation=participation,
        latency_bars=int(rng.choice([0, 0, 1, 2])),
        latency_ms=int(rng.choice([0, 0, 250, market.interval // 2, market.interval + 1])),
    )
    most_thinking = int(rng.choice([0, 0, 5_000, 2 * market.interval]))
    most_late = costs.latency_bars - (-(costs.latency_ms + most_thinking) // market.interval)
    limits = _limits(rng)
    exchange = Exchange(market, FIRST, costs=costs, max_leverage=10.0, stop=FIRST + BARS + 1, venue=Venue(rules=rules))
    guard, every = Guard(limits), int(rng.choice([1, 1, 2, 4]))
    state = _Seen(most_late)
    for number in range(BARS):
        view, account = market.view(exchange.index), exchange.account()
        if account.liquidated or account.equity <= 0.0:
            break
        where = f"seed {seed}, bar {number}"
        before = {name: worst(name, view, account) for name in RULES}
        if number % every == 0:
            asked = [_order(rng, view, account, f"{number}/{place}", lot) for place in range(int(rng.integers(1, 7)))]
            passed, clamps = guard.review(view, account, asked, (), COINS if rng.random() < 0.5 else ())
            counted = OrderSchedule(view, account)
            for one in passed:
                counted.add(one)
            requests: list[OrderRequest] = [*guard.withdrawals(account), *passed]
        else:
            requests, clamps = guard.watch(view, account)
            summary.released += sum(clamp.rule == "held_back" and clamp.allowed != 0.0 for clamp in clamps)
        for clamp in clamps:
            if clamp.rule == "guard_error":
                summary.breaches.append(f"{where}: {clamp.detail}")
        for request in requests:
            # Only what a team decided took thinking: withdrawals and what the guard does between decisions did not.
            thinks = number % every == 0 and isinstance(request, Order)
            exchange.submit(request, int(rng.integers(most_thinking + 1)) if thinks else 0)
        summary.flattened += sum(clamp.symbol == "" for clamp in clamps)
        state.look(guard, limits, view, account, where, summary)
        sent = exchange.account()
        if number % every == 0:
            counts = counted.reaches()
            for symbol, real in OrderSchedule(view, sent).reaches().items():
                if counts[symbol].low > real.low + 1e-9 or counts[symbol].high < real.high - 1e-9:
                    summary.breaches.append(f"{where}: {symbol} counts as {counts[symbol]}, accepted was {real}")
        after = {name: worst(name, view, sent) for name in RULES}
        most = {name: max(_limit(limits, name), before[name]) for name in RULES}
        for name in RULES:
            if after[name] > most[name] * (1.0 + _ROUNDING) + 1e-9:
                summary.breaches.append(f"{where}: open orders reach {name} {after[name]:.4f} of {most[name]:.4f}")
        fills = len(exchange.ledger)
        exchange.step()
        now = exchange.account()
        new = [entry for entry in exchange.ledger[fills:] if isinstance(entry, Fill)]
        summary.fills += len(new)
        left = {order.id: order.quantity for order in now.pending}
        summary.partly += sum(order.id in left and left[order.id] != order.quantity for order in sent.pending)
        summary.absent += int((~market.present[exchange.index]).sum())
        if any(fill.reason == "liquidation" for fill in new) or now.equity <= 0.0:
            break
        for name in RULES:
            got = measure(name, view, account.equity, now.positions)
            grown = got > measure(name, view, account.equity, account.positions) * (1.0 + 1e-9)
            if grown:
                summary.closest[name] = max(summary.closest[name], got / most[name])
                if got > most[name] * (1.0 + _ROUNDING) + 1e-9:
                    summary.breaches.append(f"{where}: {name} {got:.4f}, {most[name]:.4f} may be")
        state.traded(new, market, exchange, limits, where, summary)


def measure(name: str, view: MarketView, equity: float, positions: dict[str, float]) -> float:
    """How far `positions` use the limit `name`, at the closes of `view` over `equity`."""
    values = [quantity * view.last_close(symbol) if quantity else 0.0 for symbol, quantity in positions.items()]
    return _of(name, [(value / equity, value / equity) for value in values])


def worst(name: str, view: MarketView, account: AccountView) -> float:
    """The furthest that any part of the open orders, in any order, can bring the limit `name`."""
    reach = []
    for symbol, quantity in account.positions.items():
        close = view.last_close(symbol)
        held = quantity * close / account.equity if quantity else 0.0
        own = [(one, _exposure(one, close, account.equity)) for one in account.pending if one.symbol == symbol]
        can_close = bool(account.stop[symbol] or account.target[symbol] or symbol in account.time_stops)
        can_close |= any(one.stop is not None or one.target is not None or one.hold_bars for one, _ in own)
        reach.append((-_highest(-held, own, -1.0, can_close), _highest(held, own, 1.0, can_close)))
    return _of(name, reach)


def _highest(held: float, own: Sequence[tuple[Order, float]], sign: float, can_close: bool) -> float:
    """How high a position of `held` (seen from the side of `sign`) can get."""
    adds = [(one, sign * size) for one, size in own if sign * size > 0.0]
    groups: dict[str, float] = {}
    resting = 0.0
    for one, size in adds:
        if one.reduce_only or (one.kind == "market" and not one.group):
            continue
        if one.group:
            groups[one.group] = max(groups.get(one.group, 0.0), size)
        else:
            resting += size
    resting += sum(groups.values())
    market = sum(size for one, size in adds if one.kind == "market" and not one.group and not one.reduce_only)
    closes = sum(size for one, size in adds if one.reduce_only)
    begins = [held, min(held + closes, 0.0) if held < 0.0 else held]
    reached = [begin + market + resting for begin in begins]
    if can_close or resting:
        reached.append(max(held, 0.0) + resting)
    return max(reached)


def _exposure(order: Order, close: float, equity: float) -> float:
    prices = [close, *(one for one in (order.limit, order.trigger) if one is not None and not order.reduce_only)]
    return order.quantity * (close if order.kind == "market" else max(prices)) / equity


def _of(name: str, reach: Sequence[tuple[float, float]]) -> float:
    sizes = [max(high, -low) for low, high in reach]
    if name == "gross":
        return math.fsum(sizes)
    return max(sizes)


def _limit(limits: GuardLimits, name: str) -> float:
    return limits.max_exposure if name == "exposure" else limits.max_gross_exposure


def _limits(rng: np.random.Generator) -> GuardLimits:
    def maybe(low: float, high: float) -> float:
        return float(rng.uniform(low, high)) if rng.random() < 0.6 else math.inf

    return guard_limits(
        max_exposure=float(rng.uniform(0.3, 1.0)),
        max_gross_exposure=float(rng.uniform(0.5, 2.0)),
        max_daily_turnover=maybe(2.0, 20.0),
        max_drawdown=float(rng.uniform(0.1, 0.6)),
        daily_loss=float(rng.uniform(0.02, 0.3)),
    )


def _order(rng: np.random.Generator, view: MarketView, account: AccountView, name: str, lot: float) -> Order:
    symbol = COINS[int(rng.integers(len(COINS)))]
    close, held = view.last_close(symbol), account.positions[symbol]
    size = float(rng.uniform(-3.0, 3.0)) * max(account.equity, 1.0) / close
    choice = rng.random()
    kind: Any = KINDS[int(rng.integers(len(KINDS)))]
    if choice < 0.3 and held != 0.0:
        size, kind = -held, "market"  # rotations: out of this, into another
    elif choice < 0.35:
        size = float(rng.choice([1e9, -1e9, 0.0, math.nan, math.inf]))
    elif lot and choice < 0.9:
        size = math.copysign(math.floor(abs(size) / lot) * lot, size)
    level = close * (1.0 + float(rng.uniform(-0.1, 0.1)))
    needed: dict[str, Any] = {
        "market": {}, "limit": {"limit": level}, "stop": {"trigger": level}, "take_profit": {"trigger": level},
        "stop_limit": {"trigger": level, "limit": level}, "trailing_stop": {"trail": 0.05},
    }[kind]  # fmt: skip
    if rng.random() < 0.2:
        sign = math.copysign(1.0, size)
        needed |= {"stop": close * (1.0 - 0.05 * sign), "target": close * (1.0 + 0.05 * sign)}
    if kind == "limit":
        needed["in_force"] = str(rng.choice(["gtc", "gtc", "ioc", "post_only"]))
    if rng.random() < 0.3:  # an id that is in use, or one that the exchange may give itself
        name = str(rng.choice(["", "x", f"#{int(rng.integers(12))}", *(one.id for one in account.pending)]))
    return Order(
        symbol, size, delay=int(rng.choice([0, 0, 0, 1, 3])), reduce_only=bool(rng.random() < 0.2), kind=kind,
        group=str(rng.choice(["", "", "", "g"])), id=name,
        hold_bars=int(rng.integers(1, 4)) if rng.random() < 0.1 else None,
        expire_bars=int(rng.integers(1, 4)) if rng.random() < 0.1 else None, **needed,
    )  # fmt: skip


class _Seen:
    """What the time limits are checked against: positions while the account is to be flat, and what was traded."""

    def __init__(self, latency: int) -> None:
        self._latency = latency
        self._flat: dict[str, float] | None = None  # |position| that may still be held
        self._bars = 0  # since the account was to be flat
        self._trades: list[tuple[int, float]] = []

    def look(
        self, guard: Guard, limits: GuardLimits, view: MarketView, account: AccountView, where: str, summary: Summary
    ) -> None:
        state = guard.state()
        held = {symbol: abs(quantity) for symbol, quantity in account.positions.items()}
        if not state["flat_rule"]:
            self._flat, self._bars = None, 0
        elif self._flat is not None and any(held[one] > self._flat[one] * (1 + 1e-9) for one in held):
            self._bars += 1  # an order may still arrive while its withdrawal is on the way
            if self._bars > self._latency:
                summary.breaches.append(f"{where}: grew while flat")
            self._flat = held
        else:
            self._flat, self._bars = held, self._bars + (self._flat is not None)
        lost = account.drawdown >= limits.max_drawdown
        if lost and not state["flat_rule"]:
            summary.breaches.append(f"{where}: drawdown {account.drawdown:.3f} and not flat")

    def traded(
        self, fills: Sequence[Fill], market: Market, exchange: Exchange, limits: GuardLimits, where: str,
        summary: Summary,
    ) -> None:  # fmt: skip
        now = int(market.open_time[exchange.index]) + market.interval
        self._trades += [(now, abs(fill.quantity) * fill.price) for fill in fills]
        if limits.max_daily_turnover == math.inf:
            return
        equity = exchange.account().equity
        turnover = sum(worth for time, worth in self._trades if time > now - DAY_MS) / equity
        closes = [market.view(bar).last_close(symbol) for bar in range(FIRST, exchange.index + 1) for symbol in COINS]
        reached = max(float(np.nanmax(market.high[FIRST : exchange.index + 1])), *closes)
        drift = reached / min(closes) * float(exchange.equity_curve().max()) / equity
        share = turnover / limits.max_daily_turnover / drift
        if share > 1.0:
            summary.breaches.append(f"{where}: turnover {turnover:.2f} of {limits.max_daily_turnover:.2f}")
