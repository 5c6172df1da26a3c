"""Defaults of a synthetic market that its recipe and the configuration share. They are apart from the recipe, so that
reading a configuration loads no compiler."""

from __future__ import annotations

from typing import Final, Literal

TIMEFRAME: Final = "4h"
EDGE = True
DRIFT_RATIO = 0.3
NEWS_ACCURACY = 0.75
KIND: Final = "trend"
Knowledge = Literal["trend", "private"]  # who knows what: see `simulator.synthetic.private`
DAILY_VOLATILITY = 0.025
PRIVATE_VOLATILITY = 0.02  # of a private market: its spreads and jumps are to matter beside the usual moves
