"""Trading costs and the conventions of a fill, each a named setting. Engines with equal settings agree to the cent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from simulator.errors import DataError


@dataclass(frozen=True)
class Costs:
    """What trading costs.

    Attributes:
        taker_fee, maker_fee: fractions of the traded notional, on the fill price. A maker rebate is negative. A
            symbol's own rules go before.
        spread_multiplier: scales the market's half spread; 0 trades at the mid price.
        impact: coefficient Y of the square-root law ``Y sigma sqrt(quantity / volume)``; 0 for none, 1 is usual. It
            needs `participation`, which bounds the root.
        participation: largest share of a bar's volume that the account may trade; what is left waits. None: any.
        borrow_rate: interest a year on what is borrowed to trade spot: coins sold short, and cash beyond the account's
            own. Also of symbols of which nobody states whether they are spot.
        missing_funding_rate: what both sides of a perpetual pay at each settlement, every eight hours, that the data
            lacks.
        latency_bars: bars that an order or a cancel takes to reach the venue, beyond the next open.
        latency_ms: milliseconds beyond that. The order meets the finer bar that trades then, or the bar itself, at a
            price that has run against it, see `simulator.exchange.tape.late_share`.
        delisting_haircut: what a position loses of its last price when its symbol is delisted; a short one pays as much
            more.
        fill: "next_open" trades at the open after the decision; "close" at the close of the decision itself, which is
            too optimistic and only meant for comparisons with engines that do so.
        fee_currency: "quote", or "base" where the coins bought are lessened by the fee.
        sizing: what must fit the leverage cap: the position with its costs ("fee_inside"), or without its fee, which
            then comes on top ("fee_on_top").
    """

    taker_fee: float = 0.0005
    spread_multiplier: float = 1.0
    maker_fee: float = 0.0002
    impact: float = 0.0
    participation: float | None = None
    borrow_rate: float = 0.1
    latency_bars: int = 0
    latency_ms: int = 0
    missing_funding_rate: float = 0.0001
    delisting_haircut: float = 0.5
    fill: Literal["next_open", "close"] = "next_open"
    fee_currency: Literal["quote", "base"] = "quote"
    sizing: Literal["fee_inside", "fee_on_top"] = "fee_inside"

    def __post_init__(self) -> None:
        if not 0.0 <= self.taker_fee < 1.0:
            raise DataError(f"taker_fee is {self.taker_fee}; give a fraction from 0 to below 1, as 0.0005 for 5 bps.")
        if not -0.01 < self.maker_fee < 1.0:
            raise DataError(f"maker_fee is {self.maker_fee}; give a fraction above -0.01 (a rebate) and below 1.")
        for name in ("spread_multiplier", "impact", "borrow_rate", "missing_funding_rate"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise DataError(f"{name} is {value}; give a finite number from 0 up.")
        if self.participation is not None and not 0.0 < self.participation <= 1.0:
            raise DataError(f"participation is {self.participation}; give a share above 0 and up to 1, or None.")
        if self.impact > 0.0 and self.participation is None:
            raise DataError("impact needs participation: without a largest share of the volume it has no bound.")
        if self.latency_bars < 0 or self.latency_ms < 0:
            raise DataError(f"latency is {self.latency_bars} bars and {self.latency_ms} ms; give 0 or more.")
        if not 0.0 <= self.delisting_haircut < 1.0:
            raise DataError(f"delisting_haircut is {self.delisting_haircut}; give a share from 0 to below 1.")
        choices = {"fill": ("next_open", "close"), "fee_currency": ("quote", "base")}
        choices["sizing"] = ("fee_inside", "fee_on_top")
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise DataError(f"{name} is '{getattr(self, name)}'; use one of {', '.join(allowed)}.")


def check_leverage(max_leverage: float) -> None:
    """Raise `DataError` unless the cap is a positive finite number."""
    if not (math.isfinite(max_leverage) and max_leverage > 0.0):
        raise DataError(f"max_leverage is {max_leverage}; give a positive number, 1 for no borrowing.")
