"""The RiskAnalyst's tool: loss quantiles of the proposed position, and the drawdown of the account."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np

from cryptosentinel.protocol.tool_calls import Arguments, NoArguments
from cryptosentinel.tools.context import ToolContext, horizon_volatility


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
