"""MarketAnalyst's tools: trend, news and funding; bars and indicators of several timeframes, and volatility; other
coins, the order book, recorded series, and a search of the news.

Prices of bars are rescaled so that the last close is 100: a model then sees shapes, and cannot know the coin by its
price. What is missing is said to be missing.
"""

from __future__ import annotations

import math
import re
from typing import Any, Literal

import numpy as np
from pydantic import Field

from cryptosentinel.conversation.masking import WITHHELD
from cryptosentinel.protocol.tool_calls import Arguments, NoArguments
from cryptosentinel.protocol.untrusted import clean
from cryptosentinel.tools.context import (
    MISSING,
    ToolContext,
    age_hours,
    last_day,
    log_returns,
    percentile_of,
    returns_on_bars,
)
from simulator.arrays import FloatArray
from simulator.market import indicators
from simulator.market.coins import base_coin
from simulator.market.drift_filter import FILTER_BARS, drift_belief, pooled_drift_belief
from simulator.market.market import Bars
from simulator.market.timeframes import DAY_MS, TIMEFRAMES, YEAR_MS

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
Timeframe = Literal["", "5m", "15m", "30m", "1h", "2h", "4h", "8h", "12h", "1d", "1w"]
LEAST_BARS = 60  # that an indicator needs at least
DECAY = 0.94  # of the exponentially weighted variance (RiskMetrics 1996)
HISTORY = 240  # bars that "usual" means
BETA_BARS = 120
SETTLEMENTS = 270  # ninety days of eight-hour funding
RECORDS = 90
SERIES_SHOWN = 8
OLDEST_NEWS = 30 * DAY_MS
FOUND_SHOWN = 5
HEADLINE_CHARS = 160

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


class BarsOf(Arguments):
    """Which bars: a timeframe (empty: that of the decision) and how many."""

    timeframe: Timeframe = ""
    count: int = Field(default=12, ge=1, le=48, description="how many, the newest ones")


class IndicatorsOf(Arguments):
    """A timeframe; empty: that of the decision."""

    timeframe: Timeframe = ""


def _bars(context: ToolContext, timeframe: str, count: int) -> Bars | None:
    """The last bars of a timeframe; None where the data has no such bars."""
    wanted = timeframe or context.view.timeframe
    if TIMEFRAMES[wanted] % context.view.interval:
        return None
    return context.view.bars(context.symbol, count, wanted)


def recent_bars(context: ToolContext, asked: BarsOf) -> dict[str, Any]:
    """Bars, oldest first: [open, high, low, close] with the last close at 100, volumes over their mean, and the age of
    the newest close in hours."""
    found = _bars(context, asked.timeframe, asked.count)
    if found is None or not found.present.any():
        return {"bars": MISSING}
    scale = 100.0 / found.close[found.present][-1]
    prices = np.round(np.column_stack([found.open, found.high, found.low, found.close]) * scale, 2).tolist()
    mean = float(np.mean(found.volume[found.present]))
    interval = TIMEFRAMES[asked.timeframe or context.view.timeframe]
    last = int(found.open_time[found.present][-1]) + interval
    volumes = [None if not there or mean <= 0.0 else round(float(v / mean), 2) for v, there in _pairs(found)]
    return {
        "timeframe": asked.timeframe or context.view.timeframe,
        "age_h": age_hours(context, last),
        "ohlc": [row if there else MISSING for row, there in zip(prices, found.present, strict=True)],
        "volume": volumes,
    }  # fmt: skip


def _pairs(found: Bars) -> zip[tuple[float, bool]]:
    return zip(found.volume.tolist(), found.present.tolist(), strict=True)


def indicator_values(context: ToolContext, asked: IndicatorsOf) -> dict[str, Any]:
    """RSI, MACD histogram and ATR in percent of the price, place in the Bollinger bands and in the Donchian channel
    (0 lower, 1 upper edge), distance to two averages in percent."""
    found = _bars(context, asked.timeframe, HISTORY)
    if found is None or int(found.present.sum()) < LEAST_BARS:
        return {"indicators": MISSING}
    close = found.close[found.present]
    last = float(close[-1])
    bands = indicators.bollinger(found.close)
    channel = indicators.donchian(found.high, found.low)
    values = {
        "rsi": indicators.rsi(found.close),
        "macd": 100.0 * indicators.macd(found.close).histogram / last,
        "atr": 100.0 * indicators.atr(found.high, found.low, found.close) / last,
        "bollinger": _place(last, bands.lower, bands.upper),
        "donchian": _place(last, channel.lower, channel.upper),
        "above_sma20": 100.0 * (last / indicators.sma(found.close, 20) - 1.0),
        "above_sma50": 100.0 * (last / indicators.sma(found.close, 50) - 1.0),
    }
    result = {name: round(value, 2) if math.isfinite(value) else MISSING for name, value in values.items()}
    return {"timeframe": asked.timeframe or context.view.timeframe, **result}


def _place(value: float, lower: float, upper: float) -> float:
    return (value - lower) / (upper - lower) if upper > lower else math.nan


def volatility_summary(context: ToolContext, _: NoArguments) -> dict[str, Any]:
    """Annual volatility of the last day, week and month, the exponentially weighted forecast over the horizon (percent,
    not annual), and what percent of the past was calmer."""
    view = context.view
    returns = log_returns(view, context.symbol, HISTORY)
    if len(returns) < LEAST_BARS:
        return {"volatility": MISSING}
    annual = math.sqrt(YEAR_MS / view.interval)
    result: dict[str, Any] = {}
    for name, days in (("day", 1), ("week", 7), ("month", 30)):
        if days * DAY_MS < view.interval:
            result[name] = MISSING
            continue
        part = log_returns(view, context.symbol, max(2, days * DAY_MS // view.interval))
        result[name] = round(100.0 * annual * float(np.sqrt(np.mean(part**2))), 1) if len(part) >= 2 else MISSING
    forecast = ewma_volatility(returns)
    result["forecast"] = round(100.0 * forecast * math.sqrt(context.horizon_bars), 2)
    windows = np.sqrt(np.convolve(returns**2, np.ones(24) / 24.0, mode="valid"))
    result["percentile"] = percentile_of(float(windows[-1]), windows)
    return result


def ewma_volatility(returns: FloatArray) -> float:
    """Volatility of the next bar from the last returns (oldest first), with weights DECAY^age."""
    weights = DECAY ** np.arange(len(returns))[::-1]
    return float(np.sqrt(np.sum(weights * returns**2) / np.sum(weights)))


class Search(Arguments):
    """Words that a headline must hold, all of them; empty: any headline."""

    words: str = Field(default="", max_length=80, description="words of a headline, all of them; left out: any")


def other_coins(context: ToolContext, _: NoArguments) -> dict[str, Any]:
    """Beta and correlation of the coin's returns to each other coin and to their mean, over the last BETA_BARS bars,
    and the last day's move of each in percent."""
    view = context.view
    others = [symbol for symbol in view.symbols if symbol != context.symbol]
    own, *rest = returns_on_bars(view, [context.symbol, *others], BETA_BARS)
    table = dict(zip(others, rest, strict=True))
    span, bars = last_day(view)
    result: dict[str, Any] = {}
    for symbol, returns in table.items():
        beta, correlation = _beta(own, returns)
        close = view.bars(symbol, bars + 1).close
        move = 100.0 * float(close[-1] / close[0] - 1.0) if len(close) > bars else float("nan")
        result[context.mask.alias(symbol)] = {
            "beta": _rounded(beta, 2), "correlation": _rounded(correlation, 2), span: _rounded(move, 1)
        }  # fmt: skip
    if not result:
        return {"others": MISSING}
    stacked = np.array(list(table.values()))
    known = ~np.isnan(stacked)
    counts = known.sum(axis=0)
    mean = np.where(counts > 0, np.where(known, stacked, 0.0).sum(axis=0) / np.maximum(counts, 1), np.nan)
    beta, correlation = _beta(own, mean)
    return {"market": {"beta": _rounded(beta, 2), "correlation": _rounded(correlation, 2)}, "others": result}


def _beta(own: FloatArray, other: FloatArray) -> tuple[float, float]:
    """Slope of `own` on `other` and their correlation; NaN from fewer than 30 common returns."""
    both = ~np.isnan(own) & ~np.isnan(other)
    if int(both.sum()) < 30 or np.std(own[both]) == 0.0 or np.std(other[both]) == 0.0:
        return float("nan"), float("nan")
    covariance = np.cov(own[both], other[both])
    return float(covariance[0, 1] / covariance[1, 1]), float(np.corrcoef(own[both], other[both])[0, 1])


def spread(context: ToolContext, _: NoArguments) -> dict[str, Any]:
    """The bid-ask spread of the newest bar and the usual one of the last 120, in basis points."""
    if context.view.private:  # there, the spread is Trader's to know
        return {"spread_bps": MISSING, "usual_bps": MISSING}
    bars = context.view.bars(context.symbol, 120)
    known = bars.half_spread[bars.present]
    return {
        "spread_bps": round(2e4 * float(known[-1]), 2) if len(known) else MISSING,
        "usual_bps": round(2e4 * float(np.median(known)), 2) if len(known) else MISSING,
    }


def funding_history(context: ToolContext, _: NoArguments) -> dict[str, Any]:
    """The newest funding rate in basis points, its age, where it lies among those of ninety days, what a long earns
    over the horizon at the mean of the last nine (basis points, negative where longs pay), and the basis and open
    interest where the data has them."""
    view = context.view
    events = view.funding(context.symbol, SETTLEMENTS)
    result: dict[str, Any] = {"funding": MISSING}
    if events and view.now - events[-1].time <= 3 * DAY_MS:
        rates = np.array([event.rate for event in events])
        result = {
            "funding_bps": round(1e4 * float(rates[-1]), 2),
            "age_h": age_hours(context, events[-1].time),
            "percentile": percentile_of(float(rates[-1]), rates),
        }
        if len(events) > 1:
            every = (events[-1].time - events[0].time) / (len(events) - 1)
            settlements = context.horizon_bars * view.interval / every
            result["long_carry_bps"] = round(-1e4 * float(np.mean(rates[-9:])) * settlements, 2)
    for kind in ("basis", "open_interest"):
        result[kind] = _series(context, f"{kind}/{base_coin(context.symbol)}").get("value", MISSING)
    return result


def series(context: ToolContext, _: NoArguments) -> dict[str, Any]:
    """On-chain metrics of the coin and measures of sentiment: the newest value, its change over seven records in
    percent, where it lies among the last ninety, and its age."""
    base = base_coin(context.symbol)
    result: dict[str, Any] = {}
    for name in context.view.series_names:
        kind, subject = name.split("/", 1) if "/" in name else ("", name)
        if kind == "sentiment" or (kind == "onchain" and subject.split("/")[0].split("-")[0] == base):
            for column, row in _series(context, name).items():
                if len(result) < SERIES_SHOWN:
                    label = context.mask.label(f"{kind} {column}" if kind == "onchain" else f"{subject} {column}")
                    result[clean(label, 60)] = row
    return result or {"series": MISSING}


def _series(context: ToolContext, name: str) -> dict[str, Any]:
    """Of each column of a series; empty where it is not there, or not known yet.

    Where levels are hidden, on-chain metrics and open interest come as multiples of their median over the last ninety
    records: a market value or a number of addresses would say which coin it is, and when.
    """
    if name not in context.view.series_names:
        return {}
    found = context.view.series(name, RECORDS)
    hidden = context.mask.hides_levels and name.split("/")[0] in ("onchain", "open_interest")
    result = {}
    for column, values in found.columns.items():
        row: dict[str, Any] = {
            **(_of_median(values) if hidden else {"value": _short(float(values[-1]))}),
            "percentile": percentile_of(float(values[-1]), values),
            "age_h": age_hours(context, int(found.known_at[-1])),
        }
        if len(values) > 7 and values[-8] != 0.0:
            row["change"] = round(100.0 * float(values[-1] / values[-8] - 1.0), 1)
        result[column] = row
    return result


def _of_median(values: FloatArray) -> dict[str, Any]:
    middle = float(np.median(values))
    return {"of_median": _short(float(values[-1]) / middle) if middle != 0.0 else MISSING}


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def search_news(context: ToolContext, asked: Search) -> dict[str, Any]:
    """Headlines of the last thirty days that hold all the words, newest last, each with its age in hours and tone. One
    that is withheld holds no word."""
    words = asked.words.lower().split()
    items = context.view.news(context.symbol, 500, OLDEST_NEWS)
    # The masked text is searched: a model that asks for a coin's name must not learn from the answer which one it is.
    read = [(item, clean(context.mask.headline(item.text) or "", HEADLINE_CHARS)) for item in items]
    found = [(item, text) for item, text in read if all(word in text.lower() for word in words)]
    if not found:
        return {"found": 0, "searched": len(items)}
    return {
        "found": len(found),
        "searched": len(items),
        "news": [
            {
                "age_h": age_hours(context, item.known_at),
                "tone": tone(text or clean(item.text, HEADLINE_CHARS)),
                "text": text or WITHHELD,
            }
            for item, text in found[-FOUND_SHOWN:]
        ],
    }


def _rounded(value: float, digits: int) -> float | str:
    return MISSING if np.isnan(value) else round(value, digits)
