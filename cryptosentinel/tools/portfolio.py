"""Tools on risk: losses of a position, what the account holds and may hold, what a proposal would make of it; and of a
portfolio how the coins move together, and what a book of several positions would be.

Exposures are fractions of the decision's equity, as in every brief and answer of the team: of the part of the account's
equity that the decision may use (`ToolContext.share`). Losses are percent of the account's equity, because that is what
a limit of the account is about.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from cryptosentinel.protocol.tool_calls import Arguments, NoArguments
from cryptosentinel.tools.context import (
    MISSING,
    ToolContext,
    horizon_volatility,
    last_day,
    log_returns,
    returns_on_bars,
)
from cryptosentinel.tools.market import DECAY, ewma_volatility
from simulator.arrays import FloatArray
from simulator.exchange.rules import SymbolRules, maintenance_amounts
from simulator.market.timeframes import DAY_MS

MOST_POSITIONS = 32  # of one answer
RISK_BARS = 240
LEAST_RETURNS = 60
LEVEL = 0.95
NORMAL_QUANTILE, NORMAL_SHORTFALL = 1.645, 2.063  # of a normal loss at LEVEL: its quantile, and the mean beyond it
_OF_EQUITY = ("max_exposure", "max_gross_exposure")  # limits that are exposures
_LOSSES = ("max_drawdown", "daily_loss")  # limits that are given as fractions


class WhatIf(Arguments):
    """A position to try: the signed exposure the coin would have; empty: the one that was proposed."""

    exposure: float | None = Field(default=None, ge=-10, le=10, description="short below 0; left out: as proposed")


def _proposed(context: ToolContext) -> float:
    side = {"long": 1.0, "short": -1.0}.get(context.side, 0.0)
    return side * context.exposure


def _weights(context: ToolContext, exposure: float) -> dict[str, float]:
    """Signed fractions of the whole equity, with the coin in question at `exposure`."""
    weights = {symbol: value for symbol, value in context.account.exposure.items() if value != 0.0}
    weights[context.symbol] = exposure * context.share
    return weights


def _returns(context: ToolContext, weights: dict[str, float]) -> FloatArray:
    """(RISK_BARS,): returns that a book of `weights` would have had on the past bars; a coin without a bar has moved
    by nothing there."""
    total = np.zeros(RISK_BARS)
    for weight, moves in zip(weights.values(), returns_on_bars(context.view, [*weights], RISK_BARS), strict=True):
        total += weight * np.expm1(np.nan_to_num(moves))
    return total


def account(context: ToolContext, _: NoArguments) -> dict[str, Any]:
    """What the account holds: exposure of each coin with its open profit in percent of the equity, gross and net
    exposure, drawdown, and the move of the last day at the prices of then."""
    state = context.account
    if state.liquidated or state.equity <= 0.0:
        return {"account": "liquidated"}
    held = {}
    for symbol, quantity in state.positions.items():
        if quantity != 0.0:
            entry = state.entry_price[symbol]
            profit = 0.0 if entry is None else 100.0 * quantity * (state.mark[symbol] - entry) / state.equity
            row: dict[str, Any] = {"exposure": round(context.held(symbol), 3)}
            if not context.view.private:  # there, the price's direction is MarketAnalyst's to know
                row["profit"] = round(profit, 2)
            for name, levels in (("stop", state.stop), ("target", state.target)):
                level = levels[symbol]
                if level is not None:
                    row[name] = round(100.0 * (level / state.mark[symbol] - 1.0), 2)
            held[context.mask.alias(symbol)] = row
    values = [context.held(symbol) for symbol in state.positions]
    span, bars = last_day(context.view)
    return {
        "held": held or "nothing",
        "gross": round(sum(map(abs, values)), 3),
        "net": round(sum(values), 3),
        "drawdown": round(100.0 * state.drawdown, 2),
        span: MISSING
        if context.view.private
        else round(100.0 * float(np.sum(_returns(context, dict(state.exposure))[-bars:])), 2),
        "orders_waiting": len(state.pending),
    }


def loss_quantiles(context: ToolContext, asked: WhatIf) -> dict[str, Any]:
    """Losses of the whole account over the horizon at 95 %, in percent of the equity, with the position as proposed:
    value at risk and expected shortfall, from history and from exponentially weighted volatility; and the proposal's
    share of that risk."""
    exposure = _proposed(context) if asked.exposure is None else asked.exposure
    weights = _weights(context, exposure)
    few = len(log_returns(context.view, context.symbol, RISK_BARS)) < LEAST_RETURNS
    if few or context.view.private:  # there, losses of one side would tell which way the price went
        return {"var": MISSING}
    book = _returns(context, weights)
    horizon = context.horizon_bars
    sums = np.convolve(book, np.ones(horizon), mode="valid") if horizon <= RISK_BARS // 4 else book * math.sqrt(horizon)
    losses = np.sort(-sums)
    worst = losses[math.ceil(LEVEL * len(losses)) - 1 :]
    sigma = ewma_volatility(book) * math.sqrt(horizon)
    own = _returns(context, {context.symbol: weights[context.symbol]})
    variance = float(np.var(book))
    share = float(np.cov(own, book)[0, 1]) / variance if variance > 0.0 else 0.0
    return {
        "exposure": round(exposure, 3),
        "var": round(100.0 * max(0.0, float(worst[0])), 2),
        "shortfall": round(100.0 * max(0.0, float(np.mean(worst))), 2),
        "ewma_var": round(100.0 * NORMAL_QUANTILE * sigma, 2),
        "ewma_shortfall": round(100.0 * NORMAL_SHORTFALL * sigma, 2),
        "share_of_risk": round(share, 2),
        "decay": DECAY,
    }


def what_if(context: ToolContext, asked: WhatIf) -> dict[str, Any]:
    """The account with the position as proposed: gross and net exposure and the leverage of the whole, how far the
    coin may go against it until liquidation, the position over what a bar trades, and its funding a day."""
    exposure = _proposed(context) if asked.exposure is None else asked.exposure
    weights = _weights(context, exposure)
    own, state = weights[context.symbol], context.account
    result: dict[str, Any] = {
        "exposure": round(exposure, 3),
        "gross": round(sum(map(abs, weights.values())) / context.share, 3),
        "net": round(sum(weights.values()) / context.share, 3),
        "leverage": round(sum(map(abs, weights.values())), 3),
        "liquidation_distance": liquidation_distance(context, weights),
    }
    bars = context.view.bars(context.symbol, 120)
    traded = (bars.volume * bars.close)[bars.present & (bars.volume > 0.0)]
    notional = abs(own) * state.equity
    known = len(traded) and not context.view.private  # what is traded in money knows which way the price went
    result["of_a_bar"] = round(notional / float(np.median(traded)), 4) if known else MISSING
    events = context.view.funding(context.symbol, 9)
    recent = len(events) > 1 and context.view.now - events[-1].time <= 3 * DAY_MS
    if recent and not context.view.private:
        a_day = DAY_MS * (len(events) - 1) / (events[-1].time - events[0].time)
        rate = float(np.mean([event.rate for event in events]))
        result["funding_a_day"] = round(-100.0 * own * rate * a_day, 4)
    else:
        result["funding_a_day"] = MISSING
    return result


def liquidation_distance(context: ToolContext, weights: dict[str, float]) -> float | str:
    """Percent that the coin may move against its position, all others standing still, until the equity meets the
    maintenance margin; "none" where no move of less than 100 % does."""
    own = weights[context.symbol]
    if own == 0.0:
        return "none"
    equity = context.account.equity
    needed = sum(
        _maintenance(context, symbol, abs(w) * equity) for symbol, w in weights.items() if symbol != context.symbol
    )
    low, high = 0.0, 1.0

    def covered(move: float) -> bool:
        notional = abs(own) * equity * (1.0 - math.copysign(move, own))
        return equity - abs(own) * equity * move > needed + _maintenance(context, context.symbol, notional)

    if covered(1.0):
        return "none"
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if covered(middle) else (low, middle)
    return round(100.0 * low, 2)


def _maintenance(context: ToolContext, symbol: str, notional: float) -> float:
    tiers = context.account.rules.get(symbol, SymbolRules()).tiers
    found = 0.0
    for tier, amount in zip(tiers, maintenance_amounts(tiers), strict=True):
        if notional >= tier.floor:
            found = notional * tier.maintenance_rate - amount
    return found


def limits(context: ToolContext, _: NoArguments) -> dict[str, Any]:
    """DeepTraderManager's: the account as `account` gives it, the guard's limits, and the room that they leave: for
    each coin of the decision the largest exposure, for all the gross exposure, and what may be lost before positions
    may only shrink, in percent of the equity's peak. A limit that is none is left out.

    All exposures, the guard's limits of them included, are in the one unit that `unit` names; limits of losses and
    prices are percent, as their names say.
    """
    result = account(context, NoArguments())
    if "held" not in result:
        return result
    known = {name: value for name, value in context.limits.items() if math.isfinite(value)}
    shown = {}
    for name, value in known.items():
        if name in _OF_EQUITY:
            shown[name] = round(value / context.share, 4)
        elif name in _LOSSES:
            shown[f"{name}_percent"] = round(100.0 * value, 2)
        else:
            shown[name] = round(value, 4)
    gross = sum(map(abs, context.account.exposure.values()))
    room = max(0.0, known.get("max_gross_exposure", math.inf) - gross)
    coins = {}
    for symbol in context.symbols:
        most = min(known.get("max_exposure", math.inf), room + abs(context.account.exposure.get(symbol, 0.0)))
        if math.isfinite(most):
            coins[context.mask.alias(symbol)] = round(most / context.share, 3)
    left: dict[str, Any] = {"exposure": coins or "any"}
    if math.isfinite(room):
        left["gross"] = round(room / context.share, 3)
    if "max_drawdown" in known:
        left["drawdown_percent"] = round(100.0 * max(0.0, known["max_drawdown"] - context.account.drawdown), 2)
    unit = "exposures are fractions of the decision's equity"
    if context.share != 1.0:
        unit += f", which is {context.share:.4g} of the account's"
    return {"unit": unit, **result, "limits": shown, "left": left}


def risk(context: ToolContext, _: NoArguments) -> dict[str, Any]:
    """Volatility over the horizon and the 95 % loss quantiles of the proposed side in percent of the position: the
    normal one, and the historical one over the last 240 bars. In a market of private knowledge, in place of the latter,
    whether the coin is crowded."""
    sigma = horizon_volatility(context.view, context.symbol, context.horizon_bars)
    result: dict[str, Any] = {"drawdown": round(100 * context.account.drawdown, 1)}
    if sigma is None:
        return {**result, "volatility": "not available"}
    result["volatility"] = round(100 * sigma, 1)
    result["var"] = round(100 * 1.645 * sigma, 1)
    crowded = context.view.crowded(context.symbol)
    if crowded is not None:  # and the losses of one side would know which way the price went
        return {**result, "crowding": "high" if crowded else "low"}
    close = context.view.bars(context.symbol, 240 + context.horizon_bars).close
    moves = close[context.horizon_bars :] / close[: -context.horizon_bars] - 1.0
    moves = moves[~np.isnan(moves)]
    if len(moves) >= 60:
        losses = -moves if context.side == "long" else moves
        result["historical"] = round(100 * max(0.0, float(np.quantile(losses, 0.95))), 1)
    return result


class RiskOf(Arguments):
    """The side of the position, for a caller that was not asked about one."""

    side: Literal["long", "short"] = "long"


def risk_of(context: ToolContext, asked: RiskOf) -> dict[str, Any]:
    """`risk` of a position on the side that is named."""
    return risk(replace(context, side=asked.side), NoArguments())


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
    returns = returns_on_bars(context.view, context.symbols, RISK_BARS)
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
    returns = returns_on_bars(context.view, context.symbols, RISK_BARS)
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
