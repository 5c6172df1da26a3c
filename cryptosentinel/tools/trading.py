"""The Trader's tool: what the order costs now, and what it costs usually."""

from __future__ import annotations

from typing import Any

import numpy as np

from cryptosentinel.tools.context import ToolContext, horizon_volatility


def preview(context: ToolContext) -> dict[str, Any]:
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
        "state": "wide" if now > 2.5 * usual else "normal",
        "volatility": "not available" if sigma is None else round(100 * sigma, 1),
    }
