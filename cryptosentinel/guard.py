"""Hard limits in plain code. Every order passes here after all models have spoken, and none can pass it.

The guard only ever shrinks: it lessens or drops orders and logs each clamp with its rule. It fails closed: where a
number that it needs is missing, the order is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from simulator.exchange import AccountView, Order
from simulator.market import MarketView

DAY_MS = 86_400_000


@dataclass(frozen=True)
class GuardLimits:
    """All as fractions of equity, but for the counts. Past `max_drawdown` or `daily_loss` positions may only shrink."""

    max_exposure: float = 1.0
    max_gross_exposure: float = 1.0
    max_orders: int = 12
    max_drawdown: float = 0.5
    daily_loss: float = 0.2
    max_stale_bars: int = 3


@dataclass(frozen=True)
class Clamp:
    """One intervention: the rule, what was asked and what was let through, in signed base units."""

    rule: str
    symbol: str
    asked: float
    allowed: float
    detail: str


class Guard:
    """Reviews the orders of one account. Keeps the equity at the start of each day for the daily loss."""

    def __init__(self, limits: GuardLimits) -> None:
        self.limits = limits
        self._day = -1
        self._day_equity = math.nan

    def review(
        self, view: MarketView, account: AccountView, orders: Sequence[Order], sent: Sequence[Order] = ()
    ) -> tuple[list[Order], list[Clamp]]:
        """The orders that may be sent, and what was changed about the others. `sent` passed at this bar before."""
        self._observe(view.now, account.equity)
        passed: list[Order] = []
        clamps: list[Clamp] = []
        if not math.isfinite(account.equity) or account.equity <= 0:
            return [], [_clamp("no_equity", order, 0.0, f"equity is {account.equity}") for order in orders]
        frozen = self._only_shrink(account)
        # Exposures as they will be once the orders let through so far are filled.
        held = {symbol: self._exposure(view, account, symbol) for symbol in view.symbols}
        for order in sent:
            held[order.symbol] += order.quantity * view.last_close(order.symbol) / account.equity
        for number, order in enumerate(orders):
            if number >= self.limits.max_orders:
                clamps.append(_clamp("max_orders", order, 0.0, f"at most {self.limits.max_orders} orders a decision"))
                continue
            quantity, new_clamps = self._review_one(view, account, order, held, frozen)
            clamps += new_clamps
            if quantity != 0.0:
                held[order.symbol] += quantity * view.last_close(order.symbol) / account.equity
                passed.append(order if quantity == order.quantity else replace(order, quantity=quantity))
        return passed, clamps

    def _review_one(
        self, view: MarketView, account: AccountView, order: Order, held: dict[str, float], frozen: str | None
    ) -> tuple[float, list[Clamp]]:
        if order.symbol not in held:
            return 0.0, [_clamp("unknown_symbol", order, 0.0, f"there are {', '.join(held)}")]
        price = view.last_close(order.symbol)
        if not math.isfinite(order.quantity) or not math.isfinite(price) or price <= 0:
            return 0.0, [_clamp("not_a_number", order, 0.0, f"quantity {order.quantity} at price {price}")]
        before = held[order.symbol]
        if not math.isfinite(before):
            return 0.0, [_clamp("not_a_number", order, 0.0, f"exposure held is {before}")]
        rule = frozen
        if rule is None and not view.bars(order.symbol, self.limits.max_stale_bars).present.any():
            rule = "stale_data"
        asked = before + order.quantity * price / account.equity
        others = sum(abs(value) for symbol, value in held.items() if symbol != order.symbol)
        limit, limit_rule = self.limits.max_exposure, "max_exposure"
        if self.limits.max_gross_exposure - others < limit:
            limit, limit_rule = max(0.0, self.limits.max_gross_exposure - others), "max_gross_exposure"
        if rule is not None:
            low, high = min(0.0, before), max(0.0, before)
        else:
            # A position that already lies beyond the limit (the price moved) may stay, it may not grow.
            low, high = min(-limit, before), max(limit, before)
            rule = limit_rule
        allowed = min(max(asked, low), high)
        if abs(allowed - asked) <= 1e-12 * max(1.0, abs(asked)):
            return order.quantity, []
        quantity = (allowed - before) * account.equity / price
        return quantity, [_clamp(rule, order, quantity, f"exposure {asked:+.3f} asked, {allowed:+.3f} allowed")]

    def _only_shrink(self, account: AccountView) -> str | None:
        if account.drawdown >= self.limits.max_drawdown:
            return "max_drawdown"
        if account.equity <= self._day_equity * (1.0 - self.limits.daily_loss):
            return "daily_loss"
        return None

    def _observe(self, now: int, equity: float) -> None:
        day = now // DAY_MS
        if day != self._day:
            self._day, self._day_equity = day, equity

    @staticmethod
    def _exposure(view: MarketView, account: AccountView, symbol: str) -> float:
        quantity = account.positions.get(symbol, 0.0)
        return 0.0 if quantity == 0.0 else quantity * view.last_close(symbol) / account.equity


def _clamp(rule: str, order: Order, allowed: float, detail: str) -> Clamp:
    return Clamp(rule, order.symbol, order.quantity, allowed, detail)
