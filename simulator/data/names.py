"""What names of files and folders state: symbol, timeframe, venue, spot or perpetual."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from simulator.errors import DataError
from simulator.market.instruments import MarketKind
from simulator.market.timeframes import TIMEFRAMES

_ANY = "|".join((*TIMEFRAMES, "1s", "2w", "1mo", "1M", "1y"))  # those of other lengths are known, and refused
_WORDS = {"minute": "1m", "min": "1m", "hour": "1h", "hourly": "1h", "h": "1h", "60m": "1h", "d": "1d", "day": "1d",
          "daily": "1d", "week": "1w", "weekly": "1w", "w": "1w"}  # fmt: skip
_FREQTRADE = re.compile(
    rf"([A-Za-z0-9]+)_([A-Za-z0-9]+)(?:_([A-Za-z0-9]+))?-({_ANY})"
    r"(?:-(spot|futures|mark|index|premiumIndex|funding_rate|open_interest))?"
)
_BINANCE = re.compile(rf"([A-Z0-9_]+)-(?:({_ANY})|fundingRate)(?:-\d{{4}}-\d\d(?:-\d\d)?)?")
_EXCHANGES = {
    "binance", "binanceus", "bitfinex", "bitget", "bitmex", "bitstamp", "bybit", "coinbase", "deribit", "exmo", "ftx",
    "gateio", "gemini", "hitbtc", "htx", "huobi", "kraken", "kucoin", "mexc", "okcoin", "okx", "poloniex",
}  # fmt: skip
_PERPETUAL = {"perp", "perpetual", "swap", "futures", "um", "usdm"}
# Words in lower case are a symbol only where they end with a currency: `btcusdt`, but not `prices`.
_ENDING = r"usd[tcde]?|[bft]d?usd|dai|eur|gbp|jpy|krw|try|brl|aud|btc|eth|bnb"
_CURRENCY = re.compile(rf"([a-z0-9]{{2,20}}?)(?:{_ENDING})", re.IGNORECASE)
_SYMBOL = re.compile(rf"[A-Z0-9]{{2,30}}|(?i:[a-z0-9]{{2,20}}(?:{_ENDING}))")
# Folders in a tree of Binance Vision or freqtrade that name no venue.
_LAYERS = {"klines", "markpriceklines", "fundingrate", "monthly", "daily", "data", "futures", "spot", "um"}


@dataclass(frozen=True)
class NamedFile:
    """What a name states; empty or None where it states nothing. `series` is freqtrade's type of candles."""

    symbol: str = ""
    timeframe: str = ""
    venue: str = ""
    instrument: MarketKind | None = None
    series: str = ""


def named_file(path: Path, member: str) -> NamedFile:
    """What the name of `member` states, a member of the archive `path` or its own name, and then the path.

    Raises `DataError` for a symbol that is margined in its coin.
    """
    stem = member.partition(".")[0].removesuffix("-funding")
    if match := _FREQTRADE.fullmatch(stem):
        return _of_freqtrade(path, match)
    own, outer = _of_words(stem), _of_words(path.name.partition(".")[0].removesuffix("-funding"))
    symbol, timeframe = own.symbol or outer.symbol, own.timeframe or outer.timeframe
    parts = [part.lower() for part in path.resolve().parts[:-1]]
    pairs = set(pairwise(parts))
    if ("futures", "cm") in pairs:
        raise DataError("coin-margined futures cannot be used; take those of futures/um or spot")
    if ("futures", "um") in pairs:
        return NamedFile(symbol, timeframe, "binance-usdm", "perpetual")
    if {("spot", "monthly"), ("spot", "daily")} & pairs:
        return NamedFile(symbol, timeframe, "binance", "spot")
    venue = own.venue or outer.venue or _folder(path, {symbol.lower(), timeframe.lower()})
    return NamedFile(symbol, timeframe, venue, own.instrument or outer.instrument)


def _of_freqtrade(path: Path, match: re.Match[str]) -> NamedFile:
    """`BTC_USDT-1h` in the folder of an exchange is spot; `BTC_USDT_USDT-1h-futures` in its `futures` a perpetual."""
    base, quote, settle, timeframe, series = match.groups()
    folder = path.parent.resolve()
    if settle and settle != quote:
        raise DataError(f"{base}/{quote} is margined in {settle}; only perpetuals margined in their quote can be used")
    venue = (folder.parent if folder.name == "futures" else folder).name
    if settle and not venue.endswith(("futures", "usdm", "perp", "swap")):
        venue += "-futures"
    return NamedFile(base + quote, timeframe, venue, "perpetual" if settle else "spot", series or "")


def _of_words(stem: str) -> NamedFile:
    """A name of exchange, symbol and timeframe in some order, as `Binance_BTCUSDT_1h` or `BINANCE_BTCUSDT, 60`."""
    if match := _BINANCE.fullmatch(stem):
        return NamedFile(match[1], match[2] or "")
    timeframe = exchange = ""
    perpetual, left = False, []
    for word in re.findall(r"[A-Za-z0-9]+", stem):
        lower = word.lower()
        length = re.fullmatch(r"(\d+)(min|hour|day|week)", lower)
        if lower in _EXCHANGES:
            exchange = lower
        elif lower in _PERPETUAL:
            perpetual = True
        elif re.fullmatch(_ANY, word) or lower in TIMEFRAMES:
            timeframe = word if re.fullmatch(_ANY, word) else lower
        elif length or lower in _WORDS:
            timeframe = f"{length[1]}{length[2][0]}" if length else _WORDS[lower]
        elif not word.isdigit() and lower not in ("spot", "ohlcv", "candles", "klines"):
            left.append(word)
    joined = ["".join(left)] if len(left) <= 2 else []
    # A word beside the symbol, as in `BTCUSDT_data`; `bitstampUSD` names no coin.
    paired = [word for word in left if (ends := _CURRENCY.fullmatch(word)) and ends[1].lower() not in _EXCHANGES]
    symbol = next((word for word in joined if _SYMBOL.fullmatch(word)), paired[0] if len(paired) == 1 else "")
    venue = f"{exchange}-futures" if exchange and perpetual else exchange
    timeframe = {"60m": "1h"}.get(timeframe, timeframe)
    return NamedFile(symbol if _SYMBOL.fullmatch(symbol) else "", timeframe, venue, "perpetual" if perpetual else None)


def _folder(path: Path, skipped: set[str]) -> str:
    named = (part.strip("/\\") for part in path.resolve().parts[-2::-1] if part.lower() not in _LAYERS | skipped)
    return next(named, "") or "imported"
