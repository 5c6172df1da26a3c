"""The MarketAnalyst's tools: trend, news, funding. What is missing is said to be missing."""

from __future__ import annotations

from typing import Any

import numpy as np

from cryptosentinel.tools.context import DAY_MS, ToolContext, bar_volatility

TREND_BARS = (6, 18, 60)
NEWS_COUNT = 3
NEWS_MAX_AGE = 8 * DAY_MS
NEWS_CHARS = 80


def trend(context: ToolContext) -> dict[str, Any]:
    """Returns over the last 6, 18 and 60 bars in units of their own volatility, and a word for their weighted sum."""
    sigma = bar_volatility(context.view, context.symbol)
    close = context.view.bars(context.symbol, max(TREND_BARS) + 1).close
    if not sigma or len(close) <= max(TREND_BARS):
        return {"trend": "not available"}
    result: dict[str, Any] = {}
    scores = []
    for bars in TREND_BARS:
        first, last = close[-1 - bars], close[-1]
        if np.isnan(first) or np.isnan(last):
            result[f"z{bars}"] = "not available"
            continue
        score = float(np.log(last / first)) / (sigma * float(np.sqrt(bars)))
        scores.append(score)
        result[f"z{bars}"] = round(score, 1)
    result["trend"] = _word(float(np.mean(scores))) if scores else "not available"
    return result


def _word(score: float) -> str:
    if score > 1.2:
        return "strong up"
    if score > 0.4:
        return "up"
    if score < -1.2:
        return "strong down"
    if score < -0.4:
        return "down"
    return "mixed"


def news(context: ToolContext) -> dict[str, Any]:
    """The newest headlines about the coin or the market, oldest first, each with its age in days."""
    items = context.view.news(context.symbol, NEWS_COUNT, NEWS_MAX_AGE)
    if not items:
        return {"news": "not available"}
    now = context.view.now
    return {
        "news": [
            {"age": (now - item.known_at) // DAY_MS, "text": context.mask.text(item.text)[:NEWS_CHARS]}
            for item in items
        ]
    }


def funding(context: ToolContext) -> dict[str, Any]:
    """The mean of the last nine funding rates (three days) in basis points, and whether longs or shorts pay."""
    events = context.view.funding(context.symbol, 9)
    if not events or context.view.now - events[-1].time > 3 * DAY_MS:
        return {"funding": "not available"}
    rate = float(np.mean([event.rate for event in events])) * 1e4
    payer = "longs pay" if rate > 0.5 else "shorts pay" if rate < -0.5 else "balanced"
    return {"funding_bps": round(rate, 1), "funding": payer}
