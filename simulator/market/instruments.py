"""What kind of instrument a symbol is, and what names tell about it.

A spot coin that is sold short, or bought with more than one's own cash, has to be borrowed; a perpetual pays funding. A
bar shows neither, so the kind has to come from somewhere else: see `simulator.data.venue`.
"""

from __future__ import annotations

import re
from typing import Literal, get_args

from simulator.errors import DataError

MarketKind = Literal["spot", "perpetual"]
MARKET_KINDS: tuple[MarketKind, ...] = get_args(MarketKind)

# ccxt's unified symbols, and what venues and file names make of them: BTC_USDT_USDT, BTC-PERP, BTC-USDT-SWAP.
_PERPETUAL_SYMBOL = re.compile(
    r"[^/:]+/([^/:]+):\1|[A-Z0-9]+[_-](USDT|USDC|USD|BUSD)[_-]\2|.+[_-](PERP|PERPETUAL|SWAP)", re.IGNORECASE
)
_SPOT_SYMBOL = re.compile(r"[^/:]+/[^/:]+")
_WORDS = re.compile(r"[A-Za-z]+")
_PERPETUAL_WORDS = {"usdm", "um", "perp", "perps", "perpetual", "perpetuals", "swap", "swaps", "futures", "linear"}
_PERPETUAL_ENDS = ("usdm", "futures", "perp", "perps", "perpetual", "swap")
_OTHER_WORDS = {"coinm", "cm", "inverse", "option", "options", "delivery"}  # neither of the two kinds
# Ids under which ccxt trades spot, and collectors of spot prices.
_SPOT_NAMES = {
    "binance", "binanceus", "bitstamp", "coinbase", "coingecko", "cryptocompare", "gemini", "kraken", "poloniex",
    "yahoo",
}  # fmt: skip


def check_kind(where: str, kind: object) -> MarketKind:
    """`kind`, once it is known to be one. Raises `DataError` that begins with `where`."""
    for known in MARKET_KINDS:
        if kind == known:
            return known
    raise DataError(f"{where} is {kind!r}; a symbol is 'spot' or 'perpetual'.")


def kind_of_symbol(symbol: str) -> MarketKind | None:
    """The kind that the form of a symbol states, as BTC/USDT:USDT does; None for a plain one such as BTCUSDT."""
    if _PERPETUAL_SYMBOL.fullmatch(symbol):
        return "perpetual"
    return "spot" if _SPOT_SYMBOL.fullmatch(symbol) else None


def kind_of_folder(name: str) -> MarketKind | None:
    """The kind that a folder's name states, as binance-usdm and binance-spot do; None where it states none."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if any(word in _OTHER_WORDS for word in words):
        return None
    if any(word in _PERPETUAL_WORDS or word.endswith(_PERPETUAL_ENDS) for word in words):
        return "perpetual"
    return "spot" if "spot" in words else None


def kind_of_venue(name: str) -> MarketKind | None:
    """The kind that a venue trades under its bare name, as binance does; None for names that are not known, and for
    those that say more (see `kind_of_folder`)."""
    words = [word.lower() for word in _WORDS.findall(name)]
    bare = words and words[0] in _SPOT_NAMES and not any(word in _OTHER_WORDS for word in words)
    return "spot" if bare else None
