"""A tool of one's own for a role that is there already.

    cryptosentinel backtest --team model -s engine.kind=ollama -s engine.model=qwen3:8b \\
        -s team.tools=market_analyst=own_tool:TOOL

MarketAnalyst may look up how busy the last day was. A tool sees what was known at the close, and nothing else. Models
that are told their tools in full prompts may call it at once; the teacher of the warm start calls none but the shipped
tools.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

import cryptosentinel as cs


class Days(cs.Arguments):
    """How far back to compare with."""

    days: int = Field(10, ge=2, le=60, description="days to compare the last one with")


def activity(context: cs.ToolContext, arguments: Days) -> dict[str, Any]:
    """The last day's mean volume over that of the days before it."""
    day = max(1, 86_400_000 // context.view.interval)
    volume = context.view.bars(context.symbol, (arguments.days + 1) * day).volume
    before = volume[:-day]
    if len(before) < arguments.days * day or not np.isfinite(volume).all() or not before.mean():
        return {"activity": "not available"}
    return {"activity": round(float(volume[-day:].mean() / before.mean()), 2)}


TOOL = cs.Tool("get_activity", "The last day's volume over the mean of the days before it.", Days, activity)
