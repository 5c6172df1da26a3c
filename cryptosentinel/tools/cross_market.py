"""MarketAnalyst's cross-market tools: other coins, the spread, funding, recorded series, the news."""

from __future__ import annotations

from typing import Any

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
    percentile_of,
)
from cryptosentinel.tools.market import tone
from simulator.arrays import FloatArray
from simulator.market.coins import base_coin
from simulator.market.timeframes import DAY_MS

BETA_BARS = 120
SETTLEMENTS = 270  # ninety days of eight-hour funding
RECORDS = 90
SERIES_SHOWN = 8
OLDEST_NEWS = 30 * DAY_MS
FOUND_SHOWN = 5
HEADLINE_CHARS = 160


class Search(Arguments):
    """Words that a headline must hold, all of them; empty: any headline."""

    words: str = Field(default="", max_length=80, description="words of a headline, all of them; left out: any")


def other_coins(context: ToolContext, _: NoArguments) -> dict[str, Any]:
    """Beta and correlation of the coin's returns to each other coin and to their mean, over the last BETA_BARS bars,
    and the last day's move of each in percent."""
    view = context.view
    others = [symbol for symbol in view.symbols if symbol != context.symbol]
    own = _returns(context, context.symbol)
    table = {symbol: _returns(context, symbol) for symbol in others}
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


def _returns(context: ToolContext, symbol: str) -> FloatArray:
    """(BETA_BARS,): log returns on the grid, NaN where unknown, as at the start of a short history."""
    returns = np.full(BETA_BARS, np.nan)
    found = np.diff(np.log(context.view.bars(symbol, BETA_BARS + 1).close))
    returns[BETA_BARS - len(found) :] = found
    return returns


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
