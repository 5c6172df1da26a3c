"""Tickers and names of coins: to tell whom a headline is about, and to hide it.

The list is ours. It need not be complete: what it lacks is treated as a name that is not known.
"""

from __future__ import annotations

from pathlib import Path


def _listed() -> dict[str, tuple[str, ...]]:
    """The coins of `coins.txt`."""
    text = Path(__file__).with_name("coins.txt").read_text(encoding="utf-8").partition("\n")[2]
    coins: dict[str, tuple[str, ...]] = {}
    for entry in " ".join(text.split()).split(";"):
        ticker, names = entry.strip().split(" ", 1)
        coins[ticker] = (*coins.get(ticker, ()), *names.split("|"))
    return coins


COINS = _listed()  # the ticker of a coin, and its names
QUOTES = ("USDT", "USDC", "BUSD", "USD")


def base_coin(symbol: str) -> str:
    """The coin of a symbol: BTC of BTCUSDT, and of BTC/USDT and BTC/USDT:USDT as ccxt writes them."""
    if "/" in symbol:
        return symbol.partition("/")[0] or symbol
    for quote in QUOTES:
        if symbol.endswith(quote) and symbol != quote:
            return symbol.removesuffix(quote)
    return symbol
