"""Masking: hides which coin and which date the team looks at.

A language model may remember that a named coin rose in a named month. That is look-ahead through the weights. With
masking the team sees C1, C2, … and ages instead of symbols and dates. Names are translated here only, both ways.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from cryptosentinel.protocol.untrusted import clean

# Names that headlines use. Tickers are looked for as they are written (LINK, not link), names in any case.
_NAMES = {
    "ADA": "Cardano", "AVAX": "Avalanche", "BCH": "Bitcoin Cash", "BNB": "Binance Coin", "BTC": "Bitcoin",
    "DOGE": "Dogecoin", "DOT": "Polkadot", "ETH": "Ethereum", "LINK": "Chainlink", "LTC": "Litecoin",
    "NEAR": "Near Protocol", "SOL": "Solana", "TRX": "Tron", "XLM": "Stellar Lumens", "XRP": "Ripple",
}  # fmt: skip


MAX_NAME_CHARS = 24  # of a coin, as the arguments of the manager's calls have it
MAX_TEXT_CHARS = 1_000


class Mask:
    """Two-way names of the symbols of one decision. With `enabled` False both ways are the identity, but for symbols
    that are no plain word: names come from an exchange, and one that is a sentence or a tag is `#1`, `#2`, … instead.
    """

    def __init__(self, symbols: Sequence[str], enabled: bool) -> None:
        self.enabled = enabled
        names = [
            f"C{number}" if enabled else symbol if _is_plain(symbol) else f"#{number}"
            for number, symbol in enumerate(symbols, 1)
        ]
        self._to_alias = dict(zip(symbols, names, strict=True))
        self._to_symbol = dict(zip(names, symbols, strict=True))
        self._spoken: dict[str, str] = {}
        patterns: list[str] = []
        for symbol, alias in self._to_alias.items():
            base = symbol.removesuffix("USDT").removesuffix("USD") or symbol
            self._spoken |= {symbol: alias, base: alias}
            patterns += [re.escape(symbol), re.escape(base)]
            if base in _NAMES:
                self._spoken[_NAMES[base].lower()] = alias
                patterns.append(f"(?i:{_NAMES[base]})")
        # Whole words only (SOL is not in SOLD), the longest first (Bitcoin Cash is not Bitcoin).
        self._words = re.compile(rf"(?<!\w)(?:{'|'.join(sorted(patterns, key=len, reverse=True))})(?!\w)")

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

    def date(self, milliseconds: int) -> str:
        """The date of a moment, or a dash when masked."""
        if self.enabled:
            return "-"
        return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def _is_plain(symbol: str) -> bool:
    return symbol == clean(symbol, MAX_NAME_CHARS) and re.fullmatch(r"\w[^\s<>#]*", symbol) is not None
