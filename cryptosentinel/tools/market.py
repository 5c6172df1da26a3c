"""The MarketAnalyst's tools: trend, news, funding. What is missing is said to be missing."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from cryptosentinel.conversation.masking import WITHHELD
from cryptosentinel.protocol.tool_calls import NoArguments
from cryptosentinel.protocol.untrusted import clean
from cryptosentinel.tools.context import ToolContext
from simulator.market.drift_filter import FILTER_BARS, drift_belief, pooled_drift_belief
from simulator.market.timeframes import DAY_MS

# Beliefs in a drift from which the trend is called one, and a strong one.
CLEAR_DRIFT = 0.15
STRONG_DRIFT = 0.4
NEWS_COUNT = 6
NEWS_SHOWN = 2
NEWS_MAX_AGE = 8 * DAY_MS
NEWS_CHARS = 80
FUNDING_MAX_AGE = 3 * DAY_MS
TONE_CHARS = 400  # of a headline that decide its tone
NEWS_HALF_LIFE = DAY_MS  # of the weight of a confirmed headline
FADED = 0.1  # weight of the headlines below which they are forgotten: one of three days and eight hours
# The tone of a headline by the words in it: crude, but code, and the same for everybody who asks.
_POSITIVE = re.compile(
    r"\b(?:rall\w*|surg\w*|soar\w*|jump\w*|gain\w*|bull\w*|inflow\w*|adopt\w*|adds|beats?|clears|custody|partner\w*|"
    r"approv\w*|upgrade\w*|strong\w*|grow\w*|rises?|rising|buy\w*|accumulat\w*|demand|optimis\w*|success\w*|boost\w*|"
    r"support\w*|launch\w*)\b",
    re.IGNORECASE,
)
_NEGATIVE = re.compile(
    r"\b(?:crash\w*|plung\w*|drop\w*|fall\w*|fell|bear\w*|hack\w*|exploit\w*|outflow\w*|lawsuit|bans?|banned|sell\w*|weak\w*|"
    r"fear\w*|liquidat\w*|fraud\w*|delay\w*|declin\w*|slump\w*|loss\w*|probe\w*|warn\w*|outage\w*|reject\w*|halt\w*|"
    r"closes|sue[sd]?)\b",
    re.IGNORECASE,
)


def trend(context: ToolContext, _: NoArguments) -> dict[str, Any]:
    """Which way the price drifts, from -1 (surely down) to 1 (surely up) by `simulator.market.drift_filter`, as a word
    and a number; with `pooled_trend` from the returns of all coins, by `pooled_drift_belief`."""
    view = context.view
    others = [one for one in view.symbols if one != context.symbol] if context.pooled_trend else []
    returns = [np.diff(np.log(view.bars(one, FILTER_BARS + 1).close)) for one in (context.symbol, *others)]
    drift = pooled_drift_belief(np.column_stack(returns), 0) if others else drift_belief(returns[0])
    if np.isnan(drift):
        return {"trend": "not available"}
    return {"trend": _word(drift), "drift": round(drift, 1) + 0.0}  # no -0.0


def _word(drift: float) -> str:
    if abs(drift) < CLEAR_DRIFT:
        return "mixed"
    size = "strong " if abs(drift) >= STRONG_DRIFT else ""
    return f"{size}up" if drift > 0 else f"{size}down"


def news(context: ToolContext, _: NoArguments) -> dict[str, Any]:
    """The tone of the last eight days (good headlines less bad ones) and the newest headlines with their age in days.

    Where it is known which headlines were confirmed when they came, and which were rumours, the tone is of the
    confirmed ones alone, and one counts half as much as another that is `NEWS_HALF_LIFE` younger.
    """
    view = context.view
    items = [item for item in view.news(context.symbol, NEWS_COUNT, NEWS_MAX_AGE) if clean(item.text, TONE_CHARS)]
    if not items:
        return {"tone": "not available"}
    newest = [
        {
            "age": (view.now - item.known_at) // DAY_MS,
            "text": (context.mask.headline(item.text) or WITHHELD)[:NEWS_CHARS],
        }
        for item in items[-NEWS_SHOWN:]
    ]
    tones = [tone(clean(item.text, TONE_CHARS)) for item in items]
    confirmed = view.confirmed(context.symbol)
    if confirmed is None:
        balance = sum(tones)
        return {"tone": _tone(balance, 1, 3), "balance": balance, "news": newest}
    faded = sum(
        0.5 ** ((view.now - item.known_at) / NEWS_HALF_LIFE) * one
        for item, one in zip(items, tones, strict=True)
        if view.confirmed(context.symbol, published=item.time)
    )
    press = "confirmed" if confirmed else "rumours"
    return {"tone": _tone(faded, FADED, 0.5), "press": press, "balance": round(faded, 1) + 0.0, "news": newest}


def tone(text: str) -> int:
    """+1, 0 or -1 by which kind of word a headline has more of."""
    balance = len(_POSITIVE.findall(text)) - len(_NEGATIVE.findall(text))
    return (balance > 0) - (balance < 0)


def _tone(balance: float, clear: float, very: float) -> str:
    """The word for a balance of good and bad headlines."""
    if abs(balance) < clear:
        return "mixed"
    return f"{'very ' if abs(balance) >= very else ''}{'good' if balance > 0 else 'bad'}"


def funding(context: ToolContext, _: NoArguments) -> dict[str, Any]:
    """The mean of the last nine funding rates (three days) in basis points, and whether longs or shorts pay."""
    events = context.view.funding(context.symbol, 9)
    if not events or context.view.now - events[-1].time > FUNDING_MAX_AGE:
        return {"funding": "not available"}
    rate = float(np.mean([event.rate for event in events])) * 1e4
    payer = "longs pay" if rate > 0.5 else "shorts pay" if rate < -0.5 else "balanced"
    return {"funding_bps": round(rate, 1), "funding": payer}
