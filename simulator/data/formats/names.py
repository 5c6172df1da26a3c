"""What names of files and folders say: symbol, timeframe, venue, spot or perpetual."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from simulator.errors import DataError
from simulator.market.instruments import MarketKind
from simulator.market.timeframes import TIMEFRAMES

# Bars of other lengths that these sources have.
_OTHER = ("1s", "3m", "6h", "3d", "2w", "1mo", "1M", "1y")
_ANY = "|".join((*TIMEFRAMES, *_OTHER))
_WORDS = {
    "minute": "1m", "1min": "1m", "5min": "5m", "15min": "15m", "30min": "30m", "60m": "1h", "60min": "1h",
    "hour": "1h", "hourly": "1h", "h": "1h", "1hour": "1h", "4hour": "4h", "d": "1d",
    "day": "1d", "daily": "1d", "1day": "1d", "week": "1w", "weekly": "1w", "w": "1w", "1week": "1w",
}  # fmt: skip
_FREQTRADE = re.compile(
    rf"([A-Za-z0-9]+)_([A-Za-z0-9]+)(?:_([A-Za-z0-9]+))?-({_ANY})"
    r"(?:-(spot|futures|mark|index|premiumIndex|funding_rate|open_interest))?"
)
_BINANCE = re.compile(rf"([A-Z0-9_]+)-(?:({_ANY})|fundingRate)(?:-\d{{4}}-\d\d(?:-\d\d)?)?")
_EXCHANGES = {
    "binance", "binanceus", "bitfinex", "bitget", "bitmex", "bitstamp", "bittrex", "bybit", "cexio", "coinbase",
    "deribit", "exmo", "ftx", "gateio", "gemini", "hitbtc", "htx", "huobi", "itbit", "kraken", "kucoin", "mexc",
    "okcoin", "okx", "poloniex",
}  # fmt: skip
_PERPETUAL_WORDS = {"perp", "perpetual", "swap", "futures", "um", "usdm"}
# Words in lower case are a symbol only where they end with a currency: `btcusdt`, but not `prices`.
_SYMBOL = re.compile(
    r"[A-Z0-9]{2,30}|(?i:[a-z0-9]{2,20}(usd[tcde]?|[bft]d?usd|dai|eur|gbp|jpy|krw|try|brl|aud|btc|eth|bnb))"
)
# Folders in a tree of Binance Vision or freqtrade that name no venue.
_LAYERS = {"klines", "markpriceklines", "fundingrate", "monthly", "daily", "data", "futures", "spot", "um"}


@dataclass(frozen=True)
class NamedFile:
    """What a name says; empty or None where it says nothing. `series` is freqtrade's type of candles."""

    symbol: str = ""
    timeframe: str = ""
    venue: str = ""
    instrument: MarketKind | None = None
    series: str = ""


def known_timeframe(name: str) -> str:
    """`name`, once it is one of the project's. Raises `DataError` for bars of another length."""
    if name not in TIMEFRAMES:
        raise DataError(f"bars of {name} are not used here; take one of {', '.join(TIMEFRAMES)}")
    return name


def freqtrade_name(path: Path, name: str) -> NamedFile | None:
    """What freqtrade's name of a file says; None for another name.

    `BTC_USDT-1h` in the folder of an exchange is spot; `BTC_USDT_USDT-1h-futures` in its folder `futures` a perpetual.
    Raises `DataError` for a symbol that is margined in its coin.
    """
    match = _FREQTRADE.fullmatch(name.partition(".")[0])
    if not match:
        return None
    base, quote, settle, timeframe, series = match.groups()
    folder = path.parent.resolve()
    if settle and settle != quote:
        raise DataError(f"{base}/{quote} is margined in {settle}; only perpetuals margined in their quote can be used")
    venue = (folder.parent if folder.name == "futures" else folder).name
    perpetual = settle is not None
    if perpetual and not venue.endswith(("futures", "usdm", "perp", "swap")):
        venue += "-futures"
    return NamedFile(base + quote, timeframe, venue, "perpetual" if perpetual else "spot", series or "")


def binance_name(path: Path, name: str) -> NamedFile:
    """What the name and the folders of a file of Binance Vision say. Raises `DataError` for coin-margined futures."""
    match = _BINANCE.fullmatch(name.partition(".")[0])
    found = _plain_name(name) if match is None else NamedFile(match[1], match[2] or "")
    parts = [part.lower() for part in path.resolve().parts[:-1]]
    skipped = {found.symbol.lower(), found.timeframe.lower()}
    for market, venue in (("um", "binance-usdm"), ("cm", ""), ("spot", "binance")):
        if _follow(parts, ("futures", market)) or (market == "spot" and _follow(parts, ("spot", "monthly", "daily"))):
            if not venue:
                raise DataError("coin-margined futures cannot be used; take those of futures/um or spot")
            kind: MarketKind = "spot" if market == "spot" else "perpetual"
            return NamedFile(found.symbol, found.timeframe, venue, kind)
    return NamedFile(found.symbol, found.timeframe, _folder(path, skipped))


def named_file(path: Path, name: str) -> NamedFile:
    """What the name of a file says that is called after exchange, symbol and timeframe in some order, as
    `Binance_BTCUSDT_1h`; without an exchange its venue is its folder."""
    found = _plain_name(name)
    return found if found.venue else replace(found, venue=_folder(path, set()))


def _plain_name(name: str) -> NamedFile:
    words = [word for word in re.split(r"[^A-Za-z0-9]+", name.partition(".")[0]) if word]
    timeframe = exchange = ""
    perpetual = False
    left = []
    for word in words:
        lower = word.lower()
        if lower in _EXCHANGES:
            exchange = lower
        elif lower in _PERPETUAL_WORDS:
            perpetual = True
        elif word in TIMEFRAMES or word in _OTHER or lower in TIMEFRAMES:
            timeframe = lower if lower in TIMEFRAMES and word not in _OTHER else word
        elif lower in _WORDS:
            timeframe = _WORDS[lower]
        elif not word.isdigit() and lower not in ("spot", "ohlcv", "candles", "klines"):
            left.append(word)
    symbol = "".join(left) if len(left) <= 2 else ""
    venue = exchange and (f"{exchange}-futures" if perpetual else exchange)
    kind: MarketKind | None = "perpetual" if perpetual else None
    return NamedFile(symbol if _SYMBOL.fullmatch(symbol) else "", timeframe, venue, kind)


def _follow(parts: Sequence[str], words: tuple[str, ...]) -> bool:
    """Whether the first of `words` is a folder, and one of the others the folder in it."""
    return any(one == words[0] and other in words[1:] for one, other in pairwise(parts))


def _folder(path: Path, skipped: set[str]) -> str:
    for folder in path.resolve().parts[-2::-1]:
        if folder.lower() not in _LAYERS | skipped:
            return folder.strip("/\\") or "imported"
    return "imported"
