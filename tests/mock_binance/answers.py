"""The REST answers of Binance, spot (`/api/v3`) and USD-M futures (`/fapi/v1`), made from a tape.

Source of the format: https://developers.binance.com/docs (spot: market data endpoints; derivatives: the same of USD-M
futures). Fields of accounts and orders are left out: this is market data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from simulator.market.timeframes import DAY_MS
from tests.mock_binance.tape import BarSoFar, BookLevel, MarketTape, Tick, decimal_text

_MOST = {"klines": 1000, "aggTrades": 1000, "trades": 1000, "depth": 1000, "fundingRate": 1000}
_USUAL = {"klines": 500, "aggTrades": 500, "trades": 500, "depth": 100, "fundingRate": 100}
_QUOTES = ("USDT", "USDC", "BUSD", "BTC", "EUR", "USD")
_FAR = 4_133_404_800_000  # a perpetual's date of delivery

RestQuery = Mapping[str, str]


class RefusedRequest(Exception):
    """A request that Binance refuses: `code` as its documentation of errors has it, answered with status 400."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def error_document(code: int, message: str) -> dict[str, Any]:
    """How Binance writes an error."""
    return {"code": code, "msg": message}


def base_and_quote(symbol: str) -> tuple[str, str]:
    """BTC and USDT of BTCUSDT."""
    for quote in _QUOTES:
        if symbol.endswith(quote) and len(symbol) > len(quote):
            return symbol.removesuffix(quote), quote
    return symbol, "USDT"


def kline(bar: BarSoFar, interval: int) -> list[Any]:
    """A candle as `klines` lists it."""
    turnover = decimal_text(bar.volume * bar.close)
    half = decimal_text(bar.volume / 2), decimal_text(bar.volume * bar.close / 2)
    prices = [decimal_text(value) for value in (bar.open, bar.high, bar.low, bar.close, bar.volume)]
    return [bar.open_time, *prices, bar.open_time + interval - 1, turnover, bar.trades, *half, "0"]


def levels_of(levels: list[BookLevel]) -> list[list[str]]:
    """Price and size of each level as text."""
    return [[decimal_text(price), decimal_text(size)] for price, size in levels]


class Answers:
    """Answers questions about the market of `tape`; `now` (ms) is given with each."""

    def __init__(self, tape: MarketTape) -> None:
        self.tape = tape
        self._spot: dict[str, Callable[[RestQuery, int], Any]] = {
            "ping": lambda _, now: {},
            "time": lambda _, now: {"serverTime": now},
            "exchangeInfo": lambda _, now: self._info(now, swap=False),
            "klines": self._klines,
            "aggTrades": self._aggregate_trades,
            "trades": self._trades,
            "depth": lambda query, now: self._depth(query, now, swap=False),
            "ticker/24hr": self._day,
            "ticker/price": self._price,
            "ticker/bookTicker": self._best,
        }
        self._swap: dict[str, Callable[[RestQuery, int], Any]] = self._spot | {
            "exchangeInfo": lambda _, now: self._info(now, swap=True),
            "depth": lambda query, now: self._depth(query, now, swap=True),
            "premiumIndex": self._premium,
            "fundingRate": self._funding,
            "fundingInfo": lambda _, now: [],
        }

    def answer(self, path: str, query: RestQuery, now: int) -> Any:
        """The document for a request at `now` (ms, the exchange's clock), None for an unknown path.

        Raises `RefusedRequest` for a request that Binance refuses.
        """
        for prefix, known in (("/api/v3/", self._spot), ("/fapi/v1/", self._swap)):
            if path.startswith(prefix) and path.removeprefix(prefix) in known:
                return known[path.removeprefix(prefix)](query, now)
        return None

    def column(self, query: RestQuery) -> int:
        symbol = query.get("symbol", "")
        if symbol not in self.tape.market.symbols:
            raise RefusedRequest(-1121, "Invalid symbol.")
        return self.tape.market.symbols.index(symbol)

    def day(self, column: int, now: int) -> dict[str, Any]:
        """The rolling statistics of the last 24 hours, as `ticker/24hr` has them."""
        tape = self.tape
        current = tape.bar_at(now)
        bars = list(tape.bars(column, current - DAY_MS // tape.interval, current + 1, now))
        tick = tape.last_tick(column, now)
        if not bars or tick is None:
            raise RefusedRequest(-1121, "Invalid symbol.")
        first, last = bars[0].open, bars[-1].close
        volume = sum(bar.volume for bar in bars)
        turnover = sum(bar.volume * bar.close for bar in bars)
        bids, asks = tape.book(column, tick)
        (bid, bid_size), (ask, ask_size) = bids[0], asks[0]
        return {
            "symbol": tape.market.symbols[column],
            "priceChange": decimal_text(last - first),
            "priceChangePercent": decimal_text(round(100 * (last / first - 1), 3)),
            "weightedAvgPrice": decimal_text(turnover / volume if volume else last),
            "prevClosePrice": decimal_text(first),
            "lastPrice": decimal_text(last),
            "lastQty": decimal_text(tick.size),
            "bidPrice": decimal_text(bid),
            "bidQty": decimal_text(bid_size),
            "askPrice": decimal_text(ask),
            "askQty": decimal_text(ask_size),
            "openPrice": decimal_text(first),
            "highPrice": decimal_text(max(bar.high for bar in bars)),
            "lowPrice": decimal_text(min(bar.low for bar in bars)),
            "volume": decimal_text(volume),
            "quoteVolume": decimal_text(turnover),
            "openTime": now - DAY_MS,
            "closeTime": now,
            "firstId": bars[0].first_id,
            "lastId": tick.id,
            "count": sum(bar.trades for bar in bars),
        }

    def premium(self, column: int, now: int) -> dict[str, Any]:
        """Mark price and funding of one perpetual, as `premiumIndex` has them; the mark price is the last trade's."""
        tape, symbol = self.tape, self.tape.market.symbols[column]
        tick = tape.last_tick(column, now)
        if tick is None:
            raise RefusedRequest(-1121, "Invalid symbol.")
        last, following = tape.funding(symbol, now)
        price = decimal_text(tick.price)
        return {
            "symbol": symbol,
            "markPrice": price,
            "indexPrice": price,
            "estimatedSettlePrice": price,
            "lastFundingRate": decimal_text(last.rate if last else 0.0),
            "nextFundingTime": following,
            "interestRate": "0.00010000",
            "time": now,
        }

    def _info(self, now: int, *, swap: bool) -> dict[str, Any]:
        return {
            "timezone": "UTC",
            "serverTime": now,
            "rateLimits": [
                {"rateLimitType": "REQUEST_WEIGHT", "interval": "MINUTE", "intervalNum": 1, "limit": 6000}
            ],
            "exchangeFilters": [],
            "symbols": [self._symbol(column, swap=swap) for column in range(len(self.tape.market.symbols))],
        }  # fmt: skip

    def _symbol(self, column: int, *, swap: bool) -> dict[str, Any]:
        symbol = self.tape.market.symbols[column]
        base, quote = base_and_quote(symbol)
        prices = self.tape.market.close[:, column]
        known = prices[~(prices != prices)]
        # Five figures of the price, as most of Binance's markets have.
        place = math.floor(math.log10(known[0])) - 4 if len(known) else -2
        tick_size = decimal_text(10.0**place)
        entry: dict[str, Any] = {
            "symbol": symbol,
            "status": "TRADING",
            "baseAsset": base,
            "baseAssetPrecision": 8,
            "quoteAsset": quote,
            "quotePrecision": 8,
            "orderTypes": ["LIMIT", "MARKET"],
            "filters": [
                {"filterType": "PRICE_FILTER", "minPrice": tick_size, "maxPrice": "100000000", "tickSize": tick_size},
                {"filterType": "LOT_SIZE", "minQty": "0.00001", "maxQty": "100000000", "stepSize": "0.00001"},
                {"filterType": "NOTIONAL", "minNotional": "5", "notional": "5", "applyMinToMarket": True},
            ],
        }
        if not swap:
            return entry | {"isSpotTradingAllowed": True, "isMarginTradingAllowed": False, "permissions": ["SPOT"]}
        return entry | {
            "pair": symbol,
            "contractType": "PERPETUAL",
            "deliveryDate": _FAR,
            "onboardDate": self.tape.begin,
            "marginAsset": quote,
            "contractSize": "1",
            "underlyingType": "COIN",
        }

    def _klines(self, query: RestQuery, now: int) -> list[list[Any]]:
        column, tape = self.column(query), self.tape
        if query.get("interval") != tape.market.timeframe:
            raise RefusedRequest(-1120, "Invalid interval.")
        start, stop = _number(query, "startTime"), _number(query, "endTime")
        limit = _limit(query, "klines")
        last = tape.bar_at(now) + 1
        if stop is not None:
            last = min(last, tape.bar_at(stop) + 1)
        if start is None:
            # Absent bars take no place in an answer, so it may have to reach further back.
            found: list[BarSoFar] = []
            number = last - 1
            while number >= 0 and len(found) < limit:
                found.extend(tape.bars(column, number, number + 1, now))
                number -= 1
            bars = found[::-1]
        else:
            bars = []
            for bar in tape.bars(column, tape.bar_at(start + tape.interval - 1), last, now):
                bars.append(bar)
                if len(bars) == limit:
                    break
        return [kline(bar, tape.interval) for bar in bars]

    def _aggregate_trades(self, query: RestQuery, now: int) -> list[dict[str, Any]]:
        return [
            {
                "a": tick["id"],
                "p": tick["price"],
                "q": tick["qty"],
                "f": tick["id"],
                "l": tick["id"],
                "T": tick["time"],
                "m": tick["isBuyerMaker"],
                "M": True,
            }
            for tick in self._trades(query, now)
        ]

    def _trades(self, query: RestQuery, now: int) -> list[dict[str, Any]]:
        column, tape = self.column(query), self.tape
        limit = _limit(query, "trades")
        start, stop, since = (_number(query, name) for name in ("startTime", "endTime", "fromId"))
        until = now if stop is None else min(now, stop)
        found: list[Tick] = []
        if start is None and since is None:
            tick = tape.last_tick(column, until)
            while tick is not None and len(found) < limit:
                found.append(tick)
                tick = tape.earlier_tick(column, tick)
            found.reverse()
        else:
            first = tape.bar_at(start) if start is not None else ((since or 1) - 1) // tape.ticks
            for bar in range(max(0, first), min(tape.bar_at(until) + 1, len(tape.market))):
                done = tape.ticks_by(until, bar) if tape.is_present(column, bar) else 0
                wanted = (tape.tick(column, bar, place) for place in range(done))
                found.extend(one for one in wanted if one.time >= (start or 0) and one.id >= (since or 0))
                if len(found) >= limit:
                    break
        return [
            {
                "id": tick.id,
                "price": decimal_text(tick.price),
                "qty": decimal_text(tick.size),
                "quoteQty": decimal_text(tick.price * tick.size),
                "time": tick.time,
                "isBuyerMaker": tick.sold,
                "isBestMatch": True,
            }
            for tick in found[:limit]
        ]

    def _depth(self, query: RestQuery, now: int, *, swap: bool) -> dict[str, Any]:
        column = self.column(query)
        tick = self.tape.last_tick(column, now)
        bids, asks = self.tape.book(column, tick) if tick else ([], [])
        limit = _limit(query, "depth")
        clock = {"E": now, "T": tick.time if tick else now} if swap else {}
        sides = {"bids": levels_of(bids[:limit]), "asks": levels_of(asks[:limit])}
        return {"lastUpdateId": tick.id if tick else 0} | clock | sides

    def _day(self, query: RestQuery, now: int) -> Any:
        if "symbol" in query:
            return self.day(self.column(query), now)
        return [self.day(column, now) for column in range(len(self.tape.market.symbols))]

    def _price(self, query: RestQuery, now: int) -> dict[str, Any]:
        day = self.day(self.column(query), now)
        return {"symbol": day["symbol"], "price": day["lastPrice"], "time": now}

    def _best(self, query: RestQuery, now: int) -> dict[str, Any]:
        day = self.day(self.column(query), now)
        return {name: day[name] for name in ("symbol", "bidPrice", "bidQty", "askPrice", "askQty")}

    def _premium(self, query: RestQuery, now: int) -> Any:
        if "symbol" in query:
            return self.premium(self.column(query), now)
        return [self.premium(column, now) for column in range(len(self.tape.market.symbols))]

    def _funding(self, query: RestQuery, now: int) -> list[dict[str, Any]]:
        symbol = self.tape.market.symbols[self.column(query)]
        start, stop = _number(query, "startTime"), _number(query, "endTime")
        events = [
            event
            for event in self.tape.market.funding.get(symbol, ())
            if (start or 0) <= event.time <= min(now, now if stop is None else stop)
        ]
        limit = _limit(query, "fundingRate")
        chosen = events[:limit] if start is not None else events[-limit:]
        return [
            {"symbol": symbol, "fundingRate": decimal_text(event.rate), "fundingTime": event.time} for event in chosen
        ]


def _number(query: RestQuery, name: str) -> int | None:
    if name not in query:
        return None
    if not query[name].lstrip("-").isdigit():
        raise RefusedRequest(-1100, f"Illegal characters found in parameter '{name}'.")
    return int(query[name])


def _limit(query: RestQuery, what: str) -> int:
    asked = _number(query, "limit")
    return _USUAL[what] if asked is None else max(1, min(asked, _MOST[what]))
