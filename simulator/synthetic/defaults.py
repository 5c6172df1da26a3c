"""Defaults of a synthetic market that its recipe and the configuration share. They are apart from the recipe, so that
reading a configuration loads no compiler."""

from __future__ import annotations

from typing import Final

TIMEFRAME: Final = "4h"
EDGE = True
DRIFT_RATIO = 0.3
NEWS_ACCURACY = 0.75
