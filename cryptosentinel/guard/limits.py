"""The guard's limits and the record of one intervention."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Literal

from simulator.errors import DataError

OnLoss = Literal["flatten", "freeze"]
_PAUSES = ("daily_loss_pause_hours", "drawdown_pause_hours")


@dataclass(frozen=True)
class GuardLimits:
    """Infinity is no limit.

    Attributes:
        max_exposure, max_gross_exposure, max_net_exposure: of one symbol, summed as absolute values (which is the
            leverage) and summed with their signs; fractions of the equity.
        max_orders, max_order_rate: orders of one review, and of the last `rate_hours`. Of the rate as many are kept
            back as there are positions to close; it must leave room for one order that opens and one that closes.
        max_drawdown, daily_loss: past these `on_loss` happens. The day is that of UTC.
        on_loss: "flatten" closes all positions and stays flat for a while; "freeze" lets positions only shrink for as
            long as the loss stands.
        daily_loss_pause_hours: after a day's loss the account stays flat for so long, and at least until the UTC day is
            over. drawdown_pause_hours: the same after a drawdown, which is then measured from the equity at the end of
            the pause; infinity: to the end of the run.
        shutdown_drawdown: past this all is closed, and nothing opens any more, whatever the equity does.
        max_stale_bars: without a bar for so long a symbol's position may only shrink.
        price_band: limit, trigger, trail, stop and target may be this far from the last close, as a fraction of it.
        max_order_notional, max_symbol_notional: of one order and of one symbol's position, in quote currency.
        max_daily_turnover: notional traded in 24 hours, as a multiple of the equity, closing what is held included.
    """

    max_exposure: float
    max_gross_exposure: float
    max_orders: int
    max_drawdown: float
    daily_loss: float
    max_stale_bars: int
    max_net_exposure: float
    max_order_rate: float
    rate_hours: float
    shutdown_drawdown: float
    price_band: float
    max_order_notional: float
    max_symbol_notional: float
    on_loss: OnLoss
    daily_loss_pause_hours: float
    drawdown_pause_hours: float
    max_daily_turnover: float

    def __post_init__(self) -> None:
        for one in fields(self):
            if one.name == "on_loss":
                if self.on_loss not in ("flatten", "freeze"):
                    raise DataError(f"the guard's on_loss is {self.on_loss!r}; give 'flatten' or 'freeze'.")
            elif not getattr(self, one.name) > 0.0:
                raise DataError(f"the guard's {one.name} is {getattr(self, one.name)}; give a positive number.")
        if self.max_order_rate < 2.0:
            raise DataError("the guard's max_order_rate is below 2: a position could not be opened and closed again.")

    def numbers(self) -> dict[str, float]:
        """The finite limits that bind now, by name, as the team reads them."""
        values = {name: value for name, value in asdict(self).items() if name != "on_loss" and math.isfinite(value)}
        return {name: value for name, value in values.items() if self.on_loss == "flatten" or name not in _PAUSES}


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
