"""A venue apart from its costs: rules of the symbols, isolated margin, finer bars, mark prices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from simulator.errors import DataError
from simulator.exchange.rules import SymbolRules
from simulator.market.market import Market


@dataclass(frozen=True)
class Venue:
    """Where an account trades.

    Attributes:
        rules: of symbols, see `simulator.exchange.rules`; a symbol without any may be traded in any quantity at any
        price.
        isolated: leverage of the symbols that are margined apart. The others share the account's equity (cross).
        finer: the same symbols in finer bars. Where they exist they decide what happened first inside a bar.
        mark: mark-price bars of the same symbols and timeframe as the bars that fills are decided on. Accounts are
            valued and liquidated on them; None: on the trade price.
    """

    rules: Mapping[str, SymbolRules] = field(default_factory=dict)
    isolated: Mapping[str, float] = field(default_factory=dict)
    finer: Market | None = None
    mark: Market | None = None

    def __post_init__(self) -> None:
        for symbol, leverage in self.isolated.items():
            if not (math.isfinite(leverage) and leverage > 0.0):
                raise DataError(f"{symbol}: the isolated leverage is {leverage}; give a positive number.")
            if symbol in self.rules and self.rules[symbol].kind == "spot":
                raise DataError(f"{symbol} is a spot symbol; only perpetuals can be margined apart.")
