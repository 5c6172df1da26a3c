"""Baselines that every team is measured against. Each sees only the `MarketView` and its own account.

Exposure is signed notional over equity; the strategies share it among the symbols, equally where nothing else is said,
so that together they hold at most `exposure`. A symbol without a price is left alone until it has one.

| family | strategies |
| --- | --- |
| `holding` | `Flat`, `Hold`, `AlwaysShort`, `EqualWeight`, `VolatilityTarget` |
| `signals` | trend: `SmaCross`, `EmaCross`, `DonchianBreakout` |
| | reversion: `RsiReversion` |
| `reference` | `MatchedRandom`, `Oracle`: what luck and what full knowledge would have earned |
"""

from simulator.strategies.holding import AlwaysShort, EqualWeight, Flat, Hold, VolatilityTarget
from simulator.strategies.reference import MatchedRandom, Oracle
from simulator.strategies.signals import DonchianBreakout, EmaCross, RsiReversion, SmaCross

__all__ = [
    "AlwaysShort",
    "DonchianBreakout",
    "EmaCross",
    "EqualWeight",
    "Flat",
    "Hold",
    "MatchedRandom",
    "Oracle",
    "RsiReversion",
    "SmaCross",
    "VolatilityTarget",
]
