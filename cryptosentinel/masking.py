"""Hides which coin and which date the team looks at.

A language model may remember that a named coin rose in a named month; that is look-ahead through the weights. Masked,
the team sees C1, C2, … and ages instead of symbols and dates. The names are exchanged at this one place, both ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime


class Mask:
    """Two-way names of the symbols of one decision. With `enabled` False both ways are the identity."""

    def __init__(self, symbols: Sequence[str], enabled: bool) -> None:
        self.enabled = enabled
        names = [f"C{number}" for number in range(1, len(symbols) + 1)] if enabled else list(symbols)
        self._to_alias = dict(zip(symbols, names, strict=True))
        self._to_symbol = dict(zip(names, symbols, strict=True))

    def alias(self, symbol: str) -> str:
        return self._to_alias[symbol]

    def symbol(self, alias: str) -> str | None:
        """The real symbol, or None where the model named one that does not exist."""
        return self._to_symbol.get(alias)

    def text(self, text: str) -> str:
        """Free text with every symbol (and its base coin, as in BTC for BTCUSDT) replaced by its alias."""
        if not self.enabled:
            return text
        for symbol, alias in self._to_alias.items():
            for name in (symbol, symbol.removesuffix("USDT").removesuffix("USD")):
                text = text.replace(name, alias)
        return text

    def date(self, milliseconds: int) -> str:
        """The date of a moment, or a dash when masked."""
        if self.enabled:
            return "-"
        return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M")
