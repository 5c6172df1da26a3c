"""MarketAnalyst's tools on prices: bars and indicators of several timeframes, and volatility.

Prices are rescaled so that the last close is 100: a model then sees shapes, and cannot know the coin by its price.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from pydantic import Field

from cryptosentinel.protocol.tool_calls import Arguments, NoArguments
from cryptosentinel.tools.context import (
    MISSING,
    ToolContext,
    age_hours,
    log_returns,
    percentile_of,
)
from simulator.arrays import FloatArray
from simulator.market import indicators
from simulator.market.market import Bars
from simulator.market.timeframes import DAY_MS, TIMEFRAMES, YEAR_MS

Timeframe = Literal["", "5m", "15m", "30m", "1h", "2h", "4h", "8h", "12h", "1d", "1w"]
LEAST_BARS = 60  # that an indicator needs at least
DECAY = 0.94  # of the exponentially weighted variance (RiskMetrics 1996)
HISTORY = 240  # bars that "usual" means


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
