"""What a mock exchange says of a market, as Binance writes it: REST answers of spot (`/api/v3`) and USD-M futures
(`/fapi/v1`), and the messages of the stream of best bids and asks.

Source of the format: https://developers.binance.com/docs. A bar has four trades, at 1/8, 3/8, 5/8 and 7/8 of its
length: its open, its extremes (the low first in a rising bar) and its close. All answers follow from these trades.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from simulator.market.market import Market

TICKS = 4  # trades of a bar
_LIMITS = {"klines": (500, 1000), "depth": (100, 1000), "fundingRate": (100, 1000)}  # usual and largest
_LEVELS = 10
_FAR = 4_133_404_800_000  # a perpetual's date of delivery

RestQuery = Mapping[str, str]


class RefusedRequest(Exception):
    """A request that Binance refuses: `code` as its documentation of errors has it, answered with status 400."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def decimal_text(value: float) -> str:
    """A number as Binance writes it, without an exponent; `float` gives it back to the bit."""
    return format(Decimal(repr(float(value))), "f")


class Answers:
    """Answers questions about `market`; `now` (ms, the exchange's clock) is given with each."""

    def __init__(self, market: Market) -> None:
        self.market, self.interval = market, market.interval
        self.begin = int(market.open_time[0])
        self.end = int(market.open_time[-1]) + market.interval
        self._spot: dict[str, Callable[[RestQuery, int], Any]] = {
            "time": lambda _, now: {"serverTime": now},
            "exchangeInfo": lambda _, now: self._info(now, swap=False),
            "klines": self._klines,
            "depth": lambda query, now: self._depth(query, now, swap=False),
        }
        self._swap: dict[str, Callable[[RestQuery, int], Any]] = self._spot | {
            "exchangeInfo": lambda _, now: self._info(now, swap=True),
            "depth": lambda query, now: self._depth(query, now, swap=True),
            "fundingRate": self._funding,
        }

    def answer(self, path: str, query: RestQuery, now: int) -> Any:
        """The document for a request, None for an unknown path. Raises `RefusedRequest`."""
        for prefix, known in (("/api/v3/", self._spot), ("/fapi/v1/", self._swap)):
            if path.startswith(prefix) and path.removeprefix(prefix) in known:
                return known[path.removeprefix(prefix)](query, now)
        return None

    def best(self, stream: str, bar: int, place: int, offset: int, swap: bool) -> dict[str, Any] | None:
        """What `stream`, such as btcusdt@bookTicker, says at a trade; the exchange's clock errs by `offset` ms."""
        column = self.market.symbols.index(stream.partition("@")[0].upper())
        if not self.market.present[bar, column]:
            return None
        bids, asks = self._book(column, bar, place)
        sides = {
            "u": bar * TICKS + place + 1, "s": self.market.symbols[column],
            "b": bids[0][0], "B": bids[0][1], "a": asks[0][0], "A": asks[0][1],
        }  # fmt: skip
        time = self.tick_time(bar, place) + offset
        return {"e": "bookTicker", **sides, "T": time, "E": time} if swap else sides

    def knows(self, stream: str) -> bool:
        """Whether `stream` exists."""
        symbol, _, kind = stream.partition("@")
        return kind == "bookTicker" and symbol.upper() in self.market.symbols

    def bar_at(self, time: int) -> int:
        """The bar that `time` (ms) falls into, which may lie outside the market."""
        return (time - self.begin) // self.interval

    def tick_time(self, bar: int, place: int) -> int:
        """When a trade happens, ms."""
        return self.begin + bar * self.interval + (2 * place + 1) * self.interval // (2 * TICKS)

    def _path(self, column: int, bar: int) -> list[float]:
        """The prices of a present bar's trades."""
        market = self.market
        first, low, high, last = (
            float(values[bar, column]) for values in (market.open, market.low, market.high, market.close)
        )
        return [first, low, high, last] if last >= first else [first, high, low, last]

    def _book(self, column: int, bar: int, place: int) -> tuple[list[list[str]], list[list[str]]]:
        """Bids and asks after a trade, best first."""
        price, half = self._path(column, bar)[place], float(self.market.half_spread[bar, column])
        size = decimal_text(round(float(self.market.volume[bar, column]) / TICKS, 6))
        sides = ([], [])  # type: tuple[list[list[str]], list[list[str]]]
        for side, levels in zip((-1, 1), sides, strict=True):
            for level in range(_LEVELS):
                levels.append([decimal_text(round(price * (1 + side * half * (1 + level)), 10)), size])
        return sides

    def _column(self, query: RestQuery) -> int:
        if query.get("symbol", "") not in self.market.symbols:
            raise RefusedRequest(-1121, "Invalid symbol.")
        return self.market.symbols.index(query["symbol"])

    def _info(self, now: int, *, swap: bool) -> dict[str, Any]:
        symbols = [self._symbol(column, swap=swap) for column in range(len(self.market.symbols))]
        return {"timezone": "UTC", "serverTime": now, "rateLimits": [], "exchangeFilters": [], "symbols": symbols}

    def _symbol(self, column: int, *, swap: bool) -> dict[str, Any]:
        symbol, prices = self.market.symbols[column], self.market.close[:, column]
        first = float(prices[self.market.present[:, column]][0])
        tick = decimal_text(10.0 ** (math.floor(math.log10(first)) - 4))  # five figures of the price
        entry: dict[str, Any] = {
            "symbol": symbol, "status": "TRADING", "baseAsset": symbol.removesuffix("USDT"), "baseAssetPrecision": 8,
            "quoteAsset": "USDT", "quotePrecision": 8, "orderTypes": ["LIMIT", "MARKET"],
            "filters": [
                {"filterType": "PRICE_FILTER", "minPrice": tick, "maxPrice": "100000000", "tickSize": tick},
                {"filterType": "LOT_SIZE", "minQty": "0.00001", "maxQty": "100000000", "stepSize": "0.00001"},
                {"filterType": "NOTIONAL", "minNotional": "5", "notional": "5", "applyMinToMarket": True},
            ],
        }  # fmt: skip
        if not swap:
            return entry | {"isSpotTradingAllowed": True, "isMarginTradingAllowed": False, "permissions": ["SPOT"]}
        return entry | {
            "pair": symbol, "contractType": "PERPETUAL", "deliveryDate": _FAR, "onboardDate": self.begin,
            "marginAsset": "USDT", "contractSize": "1", "underlyingType": "COIN",
        }  # fmt: skip

    def _klines(self, query: RestQuery, now: int) -> list[list[Any]]:
        column, current = self._column(query), self.bar_at(now)
        if query.get("interval") != self.market.timeframe:
            raise RefusedRequest(-1120, "Invalid interval.")
        start, stop = _number(query, "startTime"), _number(query, "endTime")
        last = min(current, len(self.market) - 1, self.bar_at(now if stop is None else stop))
        first = 0 if start is None else max(0, self.bar_at(start + self.interval - 1))
        bars = [bar for bar in range(first, last + 1) if self.market.present[bar, column]]
        rows = [self._kline(column, bar, now) for bar in bars if self.tick_time(bar, 0) <= now]
        limit = _limit(query, "klines")
        return rows[-limit:] if start is None else rows[:limit]

    def _kline(self, column: int, bar: int, now: int) -> list[Any]:
        """A candle as it stands; the bar under way has the trades that have happened."""
        done = sum(self.tick_time(bar, place) <= now for place in range(TICKS))
        over = bar < self.bar_at(now)
        path = self._path(column, bar)[: TICKS if over else done]
        volume = float(self.market.volume[bar, column]) * (1.0 if over else done / TICKS)
        values = [decimal_text(one) for one in (path[0], max(path), min(path), path[-1], volume)]
        opened = self.begin + bar * self.interval
        turnover = decimal_text(volume * path[-1])
        half = decimal_text(volume / 2), decimal_text(volume * path[-1] / 2)
        return [opened, *values, opened + self.interval - 1, turnover, len(path), *half, "0"]

    def _depth(self, query: RestQuery, now: int, *, swap: bool) -> dict[str, Any]:
        column, limit = self._column(query), _limit(query, "depth")
        bar = min(self.bar_at(now), len(self.market) - 1)
        done = sum(self.tick_time(bar, place) <= now for place in range(TICKS))
        if not done:
            bar, done = bar - 1, TICKS
        while not self.market.present[bar, column]:
            bar, done = bar - 1, TICKS
        bids, asks = self._book(column, bar, done - 1)
        clock = {"E": now, "T": self.tick_time(bar, done - 1)} if swap else {}
        return {"lastUpdateId": bar * TICKS + done} | clock | {"bids": bids[:limit], "asks": asks[:limit]}

    def _funding(self, query: RestQuery, now: int) -> list[dict[str, Any]]:
        symbol = self.market.symbols[self._column(query)]
        start, stop, limit = _number(query, "startTime"), _number(query, "endTime"), _limit(query, "fundingRate")
        until = min(now, now if stop is None else stop)
        events = [one for one in self.market.funding.get(symbol, ()) if (start or 0) <= one.time <= until]
        chosen = events[:limit] if start is not None else events[-limit:]
        return [{"symbol": symbol, "fundingRate": decimal_text(one.rate), "fundingTime": one.time} for one in chosen]


def _number(query: RestQuery, name: str) -> int | None:
    if name not in query:
        return None
    if not query[name].lstrip("-").isdigit():
        raise RefusedRequest(-1100, f"Illegal characters found in parameter '{name}'.")
    return int(query[name])


def _limit(query: RestQuery, what: str) -> int:
    usual, most = _LIMITS[what]
    asked = _number(query, "limit")
    return usual if asked is None else max(1, min(asked, most))
