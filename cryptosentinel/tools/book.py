"""DeepTraderManager's tools on the whole book, where it decides on all coins at once: how the coins move together, and
what a book of several positions would be.

Exposures are signed fractions of the equity, all of which is the decision's; losses and volatilities are percent of it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from cryptosentinel.protocol.tool_calls import Arguments, NoArguments
from cryptosentinel.tools.context import MISSING, ToolContext
from cryptosentinel.tools.portfolio import LEAST_RETURNS, NORMAL_QUANTILE, RISK_BARS
from simulator.arrays import FloatArray

MOST_POSITIONS = 32  # of one answer


class BookEntry(Arguments):
    """What the book would hold of one coin."""

    symbol: str = Field(max_length=24, description="the coin")
    exposure: float = Field(ge=-10, le=10, description="fraction of equity, short below 0")


class WhatIfBook(Arguments):
    """A book to try. A coin that is not named stays as it is."""

    positions: list[BookEntry] = Field(max_length=MOST_POSITIONS)

    @model_validator(mode="after")
    def _one_each(self) -> WhatIfBook:
        names = [entry.symbol for entry in self.positions]
        if len(set(names)) != len(names):
            raise ValueError("a coin is named twice")
        return self


def correlations(context: ToolContext, _: NoArguments) -> dict[str, Any]:
    """Correlations of the coins' returns over the last `RISK_BARS` bars, each pair once, and their mean; and shares of
    the equity by inverse volatility, which fill the guard's gross limit with the same volatility of every coin.

    A pair of which fewer than `LEAST_RETURNS` returns are known is left out.
    """
    returns = _log_returns(context)
    names = [context.mask.alias(symbol) for symbol in context.symbols]
    pairs: dict[str, dict[str, float]] = {}
    for first in range(len(names)):
        for second in range(first + 1, len(names)):
            both = returns[[first, second]][:, ~np.isnan(returns[[first, second]]).any(axis=0)]
            if both.shape[1] >= LEAST_RETURNS and (both.std(axis=1) > 0.0).all():
                found = float(np.asarray(np.corrcoef(both))[0, 1])
                pairs.setdefault(names[first], {})[names[second]] = round(found, 2)
    known = [value for row in pairs.values() for value in row.values()]
    result: dict[str, Any] = {"correlation": pairs or MISSING}
    if known:
        result["mean"] = round(float(np.mean(known)), 2)
    sigmas = {
        name: float(np.nanstd(row))
        for name, row in zip(names, returns, strict=True)
        if np.sum(~np.isnan(row)) >= LEAST_RETURNS and np.nanstd(row) > 0.0
    }
    if sigmas:
        gross = min(context.limits.get("max_gross_exposure", 1.0), 10.0)
        whole = sum(1.0 / sigma for sigma in sigmas.values())
        result["equal_risk"] = {name: round(gross / sigma / whole, 2) for name, sigma in sigmas.items()}
    return result


def what_if_book(context: ToolContext, asked: WhatIfBook) -> dict[str, Any]:
    """The account with the whole book as asked: gross and net exposure, the cash that it leaves and the room below the
    guard's gross limit (negative: over it), its volatility and 95 % loss over the horizon, and each position's share of
    its variance (they sum to 1; a hedge has a negative one).

    Volatilities and correlations are those of the last `RISK_BARS` bars; a coin without a bar moved by nothing there.
    """
    weights = {symbol: context.account.exposure.get(symbol, 0.0) for symbol in context.symbols}
    for entry in asked.positions:
        symbol = context.mask.symbol(entry.symbol)
        assert symbol is not None  # names that are no coin's are refused before
        weights[symbol] = entry.exposure
    gross = sum(map(abs, weights.values()))
    result: dict[str, Any] = {
        "gross": round(gross, 3),
        "net": round(sum(weights.values()), 3),
        "cash": round(1.0 - gross, 3),
    }
    limit = context.limits.get("max_gross_exposure", math.inf)
    if math.isfinite(limit):
        result["room"] = round(limit - gross, 3)
    held = [symbol for symbol in context.symbols if weights[symbol] != 0.0]
    if not held:
        return {**result, "volatility": 0.0, "var": 0.0}
    returns = _log_returns(context)
    rows = [context.symbols.index(symbol) for symbol in held]
    own = np.array([weights[symbol] for symbol in held])
    if np.isnan(returns[rows]).all(axis=1).any():
        return {**result, "volatility": MISSING}
    moves = np.nan_to_num(returns[rows])
    if not context.view.private:  # simple returns know which way the price went, log returns' variance does not
        moves = np.expm1(moves)
    covariance = np.atleast_2d(np.cov(moves))
    variance = float(own @ covariance @ own)
    sigma = math.sqrt(max(variance, 0.0) * context.horizon_bars)
    result |= {"volatility": round(100.0 * sigma, 1), "var": round(100.0 * NORMAL_QUANTILE * sigma, 1)}
    if variance > 0.0:
        shares = own * (covariance @ own) / variance
        result["share_of_risk"] = {
            context.mask.alias(symbol): round(float(share), 2) for symbol, share in zip(held, shares, strict=True)
        }
    return result


def _log_returns(context: ToolContext) -> FloatArray:
    """(S, RISK_BARS): log returns of the decision's coins, oldest first; NaN where a bar is absent or not there yet."""
    found = np.full((len(context.symbols), RISK_BARS), np.nan)
    for row, symbol in enumerate(context.symbols):
        moves = np.diff(np.log(context.view.bars(symbol, RISK_BARS + 1).close))
        if len(moves):
            found[row, RISK_BARS - len(moves) :] = moves
    return found
