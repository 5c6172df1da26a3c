"""Tickers and names of coins: to tell whom a headline is about, and to hide it.

The list is ours. It need not be complete: what it lacks is treated as a name that is not known.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


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


# Whom a headline of a recorded collection is about, by the tags that its source gave it:
#
# | columns | a value |
# | --- | --- |
# | `asset`, `symbol`, `coin`, `ticker`, `currency`, and their plurals | is a coin, whether it is known here or not |
# | `subject`, `topic`, `category`, `tag`, and their plurals | is a coin where it names one, else a topic |
#
# A value is one tag, a list of tags, or tags with commas between. A row without a tag of a coin is about the whole
# market. A row with some is about those coins of the market, and nobody's news where the market has none of them.
# `altcoin` as a topic says that it is another coin than Bitcoin, but not which: such a row is about those that its text
# names.

_COIN_COLUMNS = (
    "asset", "assets", "symbol", "symbols", "coin", "coins", "ticker", "tickers", "currency", "currencies",
)  # fmt: skip
_TOPIC_COLUMNS = ("subject", "subjects", "topic", "topics", "category", "categories", "tag", "tags")
_SEPARATORS = re.compile(r"[,;|]")
_UNNAMED = ("altcoin", "altcoins")
_BY_NAME = {name.lower(): ticker for ticker, names in COINS.items() for name in names}


def about(table: pa.Table, texts: Sequence[str], symbols: Sequence[str]) -> list[list[str | None]]:
    """Whom each row is about: `[None]` for the whole market, some of `symbols`, or nobody (an empty list)."""
    there = set(table.column_names)
    coin_columns = [table.column(name).to_pylist() for name in _COIN_COLUMNS if name in there]
    topic_columns = [table.column(name).to_pylist() for name in _TOPIC_COLUMNS if name in there]
    traded: dict[str, list[str]] = {}
    for symbol in symbols:
        for name in {symbol, base_coin(symbol)}:
            traded.setdefault(name, []).append(symbol)
    found: list[list[str | None]] = []
    for row, text in enumerate(texts):
        tagged = [tag for column in coin_columns for tag in _tags(column[row])]
        topics = [tag for column in topic_columns for tag in _tags(column[row])]
        coins = [tag if tag in traded else _coin(tag) or tag for tag in tagged] + [
            coin for coin in map(_coin, topics) if coin
        ]
        unnamed = any(topic.lower() in _UNNAMED for topic in topics)
        if unnamed:
            coins += [base for base in traded if base != "BTC" and names(base, text)]
        if coins or unnamed:
            found.append(list(dict.fromkeys(symbol for coin in coins for symbol in traded.get(coin, ()))))
        else:
            found.append([None])
    return found


def names(base: str, text: str) -> bool:
    """Whether `text` names the coin: by its ticker as it is written, or by a name that begins with a capital."""
    return _pattern(base).search(text) is not None


@lru_cache(maxsize=1024)
def _pattern(base: str) -> re.Pattern[str]:
    words = [re.escape(base)]
    for name in COINS.get(base, ()):
        words += [re.escape(name), re.escape(name.upper())]
    return re.compile(rf"(?<!\w)(?:{'|'.join(words)})(?!\w)")


def _tags(value: Any) -> list[str]:
    """The tags in a value of a column."""
    values = value if isinstance(value, list) else [] if value is None else [value]
    parts = (part.strip().lstrip("$#") for one in values if one is not None for part in _SEPARATORS.split(str(one)))
    return [part for part in parts if part]


def _coin(tag: str) -> str | None:
    """The ticker of the coin that a tag names: by a ticker in capitals, or a name in any case."""
    return tag if tag in COINS else _BY_NAME.get(tag.lower())
