"""What a venue allows for a symbol: price and quantity steps, smallest orders, fees, leverage and margin tiers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.errors import DataError
from simulator.market.instruments import MarketKind, check_kind


@dataclass(frozen=True)
class MarginTier:
    """A bracket of position notional, from `floor` (quote currency) to the next tier's floor.

    Attributes:
        maintenance_rate: share of the notional above `floor` that the equity must cover.
        max_leverage: most leverage of a position whose notional lies in this tier.
    """

    floor: float
    maintenance_rate: float
    max_leverage: float


@dataclass(frozen=True)
class SymbolRules:
    """The venue's rules for one symbol. The defaults restrict nothing.

    Attributes:
        kind: "spot" pays for what is borrowed and no funding; "perpetual" is linear, margined in quote currency, and
            pays funding. None: the rules do not say, see `simulator.exchange.venue.kind_of`.
        tick, lot: steps of price and quantity; 0 for any. What takes liquidity is filled on the tick, rounded against
            the trader.
        min_quantity, max_quantity: of one order, in base units.
        min_notional: of one order, in quote currency; orders that only reduce a position are exempt.
        maker_fee, taker_fee: fractions of the notional; None: those of the account.
        tiers: margin tiers by rising floor, the first at 0; none: no maintenance margin and no leverage limit but the
            account's own.
        liquidation_fee: fraction of the notional that a liquidation costs beside the taker fee.

    Raises:
        DataError: a value that no venue could mean.
    """

    kind: MarketKind | None = None
    tick: float = 0.0
    lot: float = 0.0
    min_quantity: float = 0.0
    max_quantity: float = math.inf
    min_notional: float = 0.0
    maker_fee: float | None = None
    taker_fee: float | None = None
    tiers: tuple[MarginTier, ...] = ()
    liquidation_fee: float = 0.0

    def __post_init__(self) -> None:
        if self.kind is not None:
            check_kind("kind", self.kind)
        for name in ("tick", "lot", "min_quantity", "min_notional", "liquidation_fee"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise DataError(f"{name} is {value}; give a finite number from 0 up.")
        if not self.max_quantity > max(0.0, self.min_quantity):
            raise DataError(f"max_quantity is {self.max_quantity}; it must be above min_quantity {self.min_quantity}.")
        for name in ("maker_fee", "taker_fee"):
            fee = getattr(self, name)
            if fee is not None and not -0.01 < fee < 1.0:
                raise DataError(f"{name} is {fee}; give a fraction below 1 (a rebate is negative, above -0.01).")
        _check_tiers(self.tiers)


def maintenance_amounts(tiers: Sequence[MarginTier]) -> list[float]:
    """What is taken off ``notional * maintenance_rate`` in each tier, so that the maintenance margin has no jumps.

    ``amount[i] = amount[i-1] + floor[i] * (rate[i] - rate[i-1])``, the "maintenance amount" of the venues' tables.
    """
    amounts: list[float] = []
    for number, tier in enumerate(tiers):
        before = amounts[-1] - tier.floor * tiers[number - 1].maintenance_rate if amounts else 0.0
        amounts.append(before + tier.floor * tier.maintenance_rate if amounts else 0.0)
    return amounts


def _check_tiers(tiers: Sequence[MarginTier]) -> None:
    if tiers and tiers[0].floor != 0.0:
        raise DataError(f"the first margin tier starts at {tiers[0].floor}; it must start at 0.")
    for number, tier in enumerate(tiers):
        if not (0.0 <= tier.maintenance_rate < 1.0 and math.isfinite(tier.max_leverage) and tier.max_leverage > 0.0):
            raise DataError(f"margin tier {number} is {tier}; rates are from 0 to below 1, leverage is positive.")
        if number and not (
            tier.floor > tiers[number - 1].floor and tier.maintenance_rate >= tiers[number - 1].maintenance_rate
        ):
            raise DataError(f"margin tier {number} is {tier}; floors must rise and rates must not fall.")


def down_to(value: float, step: float) -> float:
    """The largest multiple of `step` up to `value` (from 0 up), give or take the rounding of decimal fractions."""
    return value if step == 0.0 else math.floor(value / step + 1e-6) * step
