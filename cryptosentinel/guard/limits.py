"""The guard's limits and the record of one intervention."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields

from simulator.errors import DataError

# Of one review: a plan of one decision has an order and its brackets for each of a few coins.
MOST_ORDERS = 12
# Bars without which a symbol's position may only shrink: one bar is late now and then, three in a row are an outage.
STALE_BARS = 3
# Hours that an account stays flat after a day's loss, at least until the UTC day is over.
DAILY_LOSS_PAUSE_HOURS = 24


@dataclass(frozen=True)
class GuardLimits:
    """Infinity is no limit.

    Attributes:
        max_exposure, max_gross_exposure: of one symbol, and summed as absolute values, which is the leverage; fractions
            of the equity.
        max_drawdown, daily_loss: past these all positions are closed, after a day's loss for `DAILY_LOSS_PAUSE_HOURS`
            and at least until the UTC day is over, after a drawdown to the end of the run.
        max_daily_turnover: notional traded in 24 hours, as a multiple of the equity, closing what is held included.
    """

    max_exposure: float
    max_gross_exposure: float
    max_drawdown: float
    daily_loss: float
    max_daily_turnover: float

    def __post_init__(self) -> None:
        for one in fields(self):
            if not getattr(self, one.name) > 0.0:
                raise DataError(f"the guard's {one.name} is {getattr(self, one.name)}; give a positive number.")

    def numbers(self) -> dict[str, float]:
        """The finite limits that bind now, by name, as the team reads them."""
        return {name: value for name, value in asdict(self).items() if math.isfinite(value)}


@dataclass(frozen=True)
class Clamp:
    """One intervention: the rule, what was asked and what was let through, in signed base units.

    Without a symbol it tells of the whole account: that it was flattened, and until when it stays so.
    """

    rule: str
    symbol: str
    asked: float
    allowed: float
    detail: str
