"""The Trader's tools: the order's cost now and usually, the cost of each way to send it, and the margin after it."""

from __future__ import annotations

from typing import Any

import numpy as np

from cryptosentinel.protocol.tool_calls import NoArguments
from cryptosentinel.tools.context import MISSING, ToolContext, bar_volatility, horizon_volatility
from cryptosentinel.tools.portfolio import liquidation_distance
from simulator.exchange.rules import SymbolRules, down_to

WIDE_BPS, VERY_WIDE_BPS = 10.0, 50.0  # half spreads that last


def preview(context: ToolContext, _: NoArguments) -> dict[str, Any]:
    """Half-spread now and its median over the last 120 bars (basis points of the price), with the volatility in
    percent."""
    spread = context.view.bars(context.symbol, 120).half_spread
    spread = spread[~np.isnan(spread)]
    if len(spread) == 0:
        return {"spread": "not available"}
    now, usual = float(spread[-1]) * 1e4, float(np.median(spread)) * 1e4
    sigma = horizon_volatility(context.view, context.symbol, context.horizon_bars)
    return {
        "spread": round(now, 1),
        "usual": round(usual, 1),
        "state": _state(now, usual, context.view.private),
        "volatility": "not available" if sigma is None else round(100 * sigma, 1),
    }


def _state(now: float, usual: float, lasts: bool) -> str:
    """A spread in a word. Where wide spreads last, the usual one may be wide as well."""
    if lasts:
        return "very wide" if now > VERY_WIDE_BPS else "wide" if now > WIDE_BPS else "normal"
    return "wide" if now > 2.5 * usual else "normal"


def compare_orders(context: ToolContext, _: NoArguments) -> dict[str, Any]:
    """For one, two and three slices: the expected cost in basis points of the order (half spread and square-root
    impact) and the risk of the price moving before the last one, one standard deviation; and the order's share of what
    a bar trades. Fees come on top."""
    view, state = context.view, context.account
    bars = view.bars(context.symbol, 120)
    spread = bars.half_spread[bars.present]
    sigma = bar_volatility(view, context.symbol)
    traded = (bars.volume * bars.close)[bars.present & (bars.volume > 0.0)]
    side = {"long": 1.0, "short": -1.0}.get(context.side, 0.0)
    change = abs(side * context.exposure - context.held(context.symbol)) * context.share
    if not len(spread) or sigma is None or state.equity <= 0.0:
        return {"orders": MISSING}
    result: dict[str, Any] = {"change": round(change / context.share, 3)}
    # What is traded in money knows which way the price went.
    volume = float(np.median(traded)) if len(traded) and not view.private else None
    result["of_a_bar"] = MISSING if volume is None else round(change * state.equity / volume, 4)
    half_spread = float(spread[-1])
    for slices in (1, 2, 3):
        share = 0.0 if volume is None else change * state.equity / slices / volume
        result[f"slices_{slices}"] = {
            "cost_bps": round(1e4 * (half_spread + sigma * float(np.sqrt(share))), 2),
            "risk_bps": round(1e4 * sigma * float(np.sqrt(_waiting(slices))), 1),
        }
    return result


def _waiting(slices: int) -> float:
    """Bars of variance that the unsent part is exposed to: slice k waits k bars with 1/slices of the order."""
    return sum((1.0 - k / slices) ** 2 for k in range(1, slices))


def margin(context: ToolContext, _: NoArguments) -> dict[str, Any]:
    """The account with the position: gross exposure, leverage, and the distance to liquidation in percent; and the
    orders that wait already."""
    side = {"long": 1.0, "short": -1.0}.get(context.side, 0.0)
    if context.account.equity <= 0.0:
        return {"margin": MISSING}
    weights = {symbol: value for symbol, value in context.account.exposure.items() if value != 0.0}
    weights[context.symbol] = side * context.exposure * context.share
    rules = context.account.rules.get(context.symbol, SymbolRules())
    price = context.view.last_close(context.symbol)
    notional = abs(weights[context.symbol]) * context.account.equity
    return {
        "gross": round(sum(map(abs, weights.values())) / context.share, 3),
        "leverage": round(sum(map(abs, weights.values())), 3),
        "liquidation_distance": liquidation_distance(context, weights),
        "lots": "any" if rules.lot == 0.0 or not price > 0.0 else int(down_to(notional / price, rules.lot) / rules.lot),
        "smallest_order": "any" if rules.min_notional == 0.0 else round(rules.min_notional / context.account.equity, 5),
        "orders_waiting": sum(order.symbol == context.symbol for order in context.account.pending),
    }
