"""Masking: hides which coin and which date the team looks at.

A language model may remember that a named coin rose in a named month. That is look-ahead through the weights. With
masking the team sees C1, C2, … and ages instead of symbols and dates. Names are translated here only, both ways.
Headlines name much else that tells the month; `headlines` replaces all names in them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from cryptosentinel.conversation.headlines import masked_headline
from cryptosentinel.protocol.untrusted import clean
from simulator.market.coins import COINS, base_coin

MAX_NAME_CHARS = 24  # of a coin, as the arguments of the manager's calls have it
MAX_TEXT_CHARS = 1_000
WITHHELD = "withheld"  # what stands in the place of a headline that is not shown


class Mask:
    """Two-way names of the symbols of one decision. With `enabled` False both ways are the identity, but for symbols
    that are not a plain word: names come from an exchange, and one that is a sentence or a tag is `#1`, `#2`, …
    instead.
    """

    def __init__(self, symbols: Sequence[str], enabled: bool) -> None:
        self.enabled = enabled
        self.hides_levels = enabled  # of series that would say which coin it is, and when
        names = [
            f"C{number}" if enabled else symbol if _is_plain(symbol) else f"#{number}"
            for number, symbol in enumerate(symbols, 1)
        ]
        self._to_alias = dict(zip(symbols, names, strict=True))
        self._to_symbol = dict(zip(names, symbols, strict=True))
        self._spoken: dict[str, str] = {}
        patterns: list[str] = []
        for symbol, alias in self._to_alias.items():
            base = base_coin(symbol) if "/" in symbol else symbol.removesuffix("USDT").removesuffix("USD") or symbol
            self._spoken |= {symbol: alias, base: alias}
            patterns += [re.escape(symbol), re.escape(base)]
            if base in COINS:
                name = COINS[base][0]
                self._spoken[name.lower()] = alias
                patterns.append(f"(?i:{re.escape(name)})")
        # Whole words only (SOL is not in SOLD), the longest first (Bitcoin Cash is not Bitcoin).
        self._words = re.compile(rf"(?<!\w)(?:{'|'.join(sorted(patterns, key=len, reverse=True))})(?!\w)")

        self._by_coin = {base_coin(symbol): alias for symbol, alias in reversed(self._to_alias.items())}
        self._others = frozenset(self._by_coin.keys() - COINS.keys())

    def alias(self, symbol: str) -> str:
        return self._to_alias[symbol]

    def symbol(self, alias: str) -> str | None:
        """The real symbol, or None where the model named one that does not exist."""
        return self._to_symbol.get(alias)

    def text(self, text: str) -> str:
        """Free text, cleaned, with every symbol, its base coin (BTC of BTCUSDT) and that coin's name replaced by its
        alias. Cleaned first: a zero-width character would hide a name from the mask and not from a model."""
        text = clean(text, MAX_TEXT_CHARS)
        if not self.enabled:
            return text
        return self._words.sub(lambda word: self._spoken.get(word[0]) or self._spoken[word[0].lower()], text)

    def headline(self, text: str) -> str | None:
        """A headline as the team reads it, on one line; None where it is withheld."""
        if not self.enabled:
            return self.text(text)
        masked = masked_headline(clean(text, MAX_TEXT_CHARS), self._others)
        return None if masked.withheld else masked.text(self._by_coin)

    def label(self, name: str) -> str:
        """The name of a column or a series, whose words may be joined by `_`, with no coin's name in it."""
        if not self.hides_levels:
            return name
        spaced = name.replace("_", " ")
        return name if self.text(spaced) == clean(spaced, MAX_TEXT_CHARS) else self.text(spaced)

    def date(self, milliseconds: int) -> str:
        """The date of a moment, or a dash when masked."""
        if self.enabled:
            return "-"
        return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def _is_plain(symbol: str) -> bool:
    return symbol == clean(symbol, MAX_NAME_CHARS) and re.fullmatch(r"\w[^\s<>#]*", symbol) is not None
