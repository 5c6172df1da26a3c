"""The MarketAnalyst's tools: trend, news, funding. What is missing is said to be missing."""

from __future__ import annotations

from typing import Any

import numpy as np

from cryptosentinel.protocol import NoArguments
from cryptosentinel.tools.context import DAY_MS, ToolContext, bar_volatility
from cryptosentinel.tools.sentiment import tone
from cryptosentinel.untrusted import clean

TREND_BARS = (6, 18, 60)
NEWS_COUNT = 6
NEWS_SHOWN = 2
NEWS_MAX_AGE = 8 * DAY_MS
NEWS_CHARS = 80
TONE_CHARS = 400  # of a headline that its tone is told by


def trend(context: ToolContext, _: NoArguments) -> dict[str, Any]:
    """The mean of the returns over 6, 18 and 60 bars, each in units of its own volatility, as a number and a word."""
    sigma = bar_volatility(context.view, context.symbol)
    close = context.view.bars(context.symbol, max(TREND_BARS) + 1).close
    if not sigma or len(close) <= max(TREND_BARS):
        return {"trend": "not available"}
    scores = [float(np.log(close[-1] / close[-1 - bars])) / (sigma * float(np.sqrt(bars))) for bars in TREND_BARS]
    known = [score for score in scores if not np.isnan(score)]
    if not known:
        return {"trend": "not available"}
    score = float(np.mean(known))
    return {"trend": _word(score), "z": round(score, 1)}


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


def news(context: ToolContext, _: NoArguments) -> dict[str, Any]:
    """The tone of the last eight days (good headlines less bad ones) and the newest headlines with their age in
    days."""
    items = context.view.news(context.symbol, NEWS_COUNT, NEWS_MAX_AGE)
    if not items:
        return {"tone": "not available"}
    now = context.view.now
    newest = [
        {"age": (now - item.known_at) // DAY_MS, "text": context.mask.text(item.text)[:NEWS_CHARS]}
        for item in items[-NEWS_SHOWN:]
    ]
    balance = sum(tone(clean(item.text, TONE_CHARS)) for item in items)
    size = "very " if abs(balance) >= 3 else ""
    word = "mixed" if balance == 0 else f"{size}good" if balance > 0 else f"{size}bad"
    return {"tone": word, "balance": balance, "news": newest}


def funding(context: ToolContext, _: NoArguments) -> dict[str, Any]:
    """The mean of the last nine funding rates (three days) in basis points, and whether longs or shorts pay."""
    events = context.view.funding(context.symbol, 9)
    if not events or context.view.now - events[-1].time > 3 * DAY_MS:
        return {"funding": "not available"}
    rate = float(np.mean([event.rate for event in events])) * 1e4
    payer = "longs pay" if rate > 0.5 else "shorts pay" if rate < -0.5 else "balanced"
    return {"funding_bps": round(rate, 1), "funding": payer}
