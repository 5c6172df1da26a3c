"""A local server that answers as Binance does over REST, and as Bybit does for bars, and fails by a script.

Answers are generated from `History`, or served as they were recorded. A script says which of the next requests fail and
how; once it is used up, every answer is sound.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

from tests import local_server
from tests.local_server import QuietHandler

HOUR = 3_600_000
START = 1_700_006_400_000  # 2023-11-15 00:00
FUNDING_INTERVAL = 8 * HOUR
Candle = tuple[int, float, float, float, float, float]

Fault = Literal[
    "sound",
    "429",  # with Retry-After
    "418",
    "500",
    "503",
    "slow",  # longer than the client waits
    "cut",  # the connection ends in mid-answer
    "closed",  # the connection ends without an answer
    "truncated",  # a whole answer of half a JSON document
    "page",  # a proxy's web page with status 200
    "doubled",  # the following: a sound status, and odd candles
    "missing",
    "shuffled",
    "empty",
]
CANDLE_FAULTS = ("doubled", "missing", "shuffled", "empty")
STATUS_FAULTS = {"429": 429, "418": 418, "500": 500, "503": 503}


def candle(place: int, interval: int = HOUR, level: float = 100.0) -> Candle:
    """Candle number `place` after `START`, whose values hang on its place and `level` alone."""
    open_ = level * (1 + 0.1 * math.sin(place / 5))
    close = level * (1 + 0.1 * math.sin((place + 1) / 5))
    return (
        START + place * interval,
        round(open_, 4),
        round(max(open_, close) * 1.01, 4),
        round(min(open_, close) * 0.99, 4),
        round(close, 4),
        round(10 + place % 7 + level / 1000, 3),
    )


@dataclass
class History:
    """What the exchange knows.

    Attributes:
        candles: by symbol, in order of time; the last may be unfinished. now: the exchange's clock, ms.
        page: most records of an answer, whatever is asked for.
        ignores_since: every answer is the latest page.
        windowed: an answer covers as many hours from its start as candles were asked for, and may hold nothing.
    """

    candles: dict[str, list[Candle]]
    now: int
    page: int = 10
    ignores_since: bool = False
    windowed: bool = False
    funding: dict[str, list[tuple[int, float]]] = field(default_factory=dict)


def history(symbols: Sequence[str] = ("BTCUSDT",), bars: int = 45, absent: Sequence[int] = (), **more: Any) -> History:
    """Hourly candles of some symbols, the last one unfinished, without those at the places `absent`."""
    candles = {
        symbol: [candle(place, level=100.0 * (1 + number)) for place in range(bars) if place not in absent]
        for number, symbol in enumerate(symbols)
    }
    now = START + (bars - 1) * HOUR + HOUR // 2
    funding = {
        symbol: [(START + k * FUNDING_INTERVAL, round(0.0001 * math.cos(k), 8)) for k in range(bars // 8 + 1)]
        for symbol in symbols
    }
    return History(candles, now, funding=funding, **more)


def exchange_info(symbols: Sequence[str], *, swap: bool) -> dict[str, Any]:
    """Metadata of symbols that are quoted in USDT."""
    entries = []
    for symbol in symbols:
        base = symbol.removesuffix("USDT")
        entry: dict[str, Any] = {
            "symbol": symbol,
            "status": "TRADING",
            "baseAsset": base,
            "quoteAsset": "USDT",
            "isSpotTradingAllowed": not swap,
            "permissions": ["SPOT"],
            "filters": [
                {"filterType": "PRICE_FILTER", "minPrice": "0.01", "maxPrice": "1000000", "tickSize": "0.01"},
                {"filterType": "LOT_SIZE", "minQty": "0.001", "maxQty": "9000", "stepSize": "0.001"},
                {"filterType": "MIN_NOTIONAL", "minNotional": "10", "notional": "5"},
            ],
        }
        if swap:
            entry |= {
                "contractType": "PERPETUAL",
                "marginAsset": "USDT",
                "deliveryDate": 4133404800000,
                "onboardDate": START,
                "contractSize": "1",
            }
        entries.append(entry)
    return {"timezone": "UTC", "symbols": entries}


class MockExchange:
    """The server. `requests` are the paths asked for so far, `script` the faults of the next answers.

    Attributes:
        recorded: path -> document to serve as it is.
    """

    def __init__(self, known: History) -> None:
        self.history = known
        self.script: list[Fault] = []
        self.recorded: dict[str, Any] = {}
        self.requests: list[str] = []
        self.retry_after = "1"
        self.url = ""
        self.ended = threading.Event()

    def answer(self, path: str, query: dict[str, str]) -> Any:
        """The document for a request, None for an unknown path."""
        if path in self.recorded:
            return self.recorded[path]
        known = self.history
        if path in ("/api/v3/exchangeInfo", "/fapi/v1/exchangeInfo"):
            return exchange_info(tuple(known.candles), swap=path.startswith("/fapi"))
        if path in ("/api/v3/time", "/fapi/v1/time"):
            return {"serverTime": known.now}
        if path in ("/api/v3/klines", "/fapi/v1/klines"):
            rows = self._candles(query["symbol"], query.get("startTime"), query.get("limit"))
            return [[one[0], *map(str, one[1:]), one[0] + HOUR - 1, "0", 1, "0", "0", "0"] for one in rows]
        if path == "/fapi/v1/fundingRate":
            events = known.funding[query["symbol"]]
            if "startTime" in query and not known.ignores_since:
                events = [event for event in events if event[0] >= int(query["startTime"])][: known.page]
            return [
                {"symbol": query["symbol"], "fundingTime": when, "fundingRate": str(rate)}
                for when, rate in events[-known.page :]
            ]
        return self._bybit(path, query)

    def _bybit(self, path: str, query: dict[str, str]) -> Any:
        result: dict[str, Any]
        if path == "/v5/market/time":
            result = {"timeSecond": str(self.history.now // 1000), "timeNano": str(self.history.now * 1_000_000)}
        elif path == "/v5/market/instruments-info":
            result = {
                "category": "spot",
                "list": [
                    {
                        "symbol": symbol,
                        "baseCoin": symbol.removesuffix("USDT"),
                        "quoteCoin": "USDT",
                        "status": "Trading",
                        "lotSizeFilter": {
                            "basePrecision": "0.000001",
                            "quotePrecision": "0.01",
                            "minOrderQty": "0.00005",
                            "maxOrderQty": "70",
                            "minOrderAmt": "5",
                        },
                        "priceFilter": {"tickSize": "0.01"},
                    }
                    for symbol in self.history.candles
                ],
            }
        elif path == "/v5/market/kline":
            rows = self._candles(query["symbol"], query.get("start"), query.get("limit"))
            # Bybit gives the newest first.
            result = {"list": [[str(one[0]), *map(str, one[1:]), "0"] for one in reversed(rows)]}
        else:
            return None
        return {"retCode": 0, "retMsg": "OK", "result": result, "time": self.history.now}

    def _candles(self, symbol: str, start: str | None, limit: str | None) -> list[Candle]:
        known = self.history
        rows = known.candles[symbol]
        size = min(known.page, int(limit or known.page))
        if start is None or known.ignores_since:
            return rows[-size:]
        since = int(start)
        if known.windowed:
            return [one for one in rows if since <= one[0] < since + int(limit or size) * HOUR][:size]
        return [one for one in rows if one[0] >= since][:size]


def _spoilt(rows: list[Any], fault: str) -> list[Any]:
    if fault == "doubled":
        return [one for row in rows for one in (row, row)]
    if fault == "missing":
        return [row for place, row in enumerate(rows) if place % 3 != 1]
    if fault == "shuffled":
        return rows[::2] + rows[1::2]
    return []


def _handler(exchange: MockExchange) -> type[QuietHandler]:
    class Handler(QuietHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            exchange.requests.append(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            fault = exchange.script.pop(0) if exchange.script else "sound"
            document = exchange.answer(parts.path, query)
            if document is None:
                self.answer(404, b'{"msg": "no such path"}')
                return
            if fault in CANDLE_FAULTS and isinstance(document, list):
                document = _spoilt(document, fault)
            body = json.dumps(document).encode()
            if fault in STATUS_FAULTS:
                waits = {"Retry-After": exchange.retry_after} if fault in ("429", "418") else {}
                self.answer(STATUS_FAULTS[fault], b'{"code": -1, "msg": "not now"}', headers=waits)
            elif fault == "slow":
                exchange.ended.wait(0.6)
                self.close_connection = True
            elif fault == "closed":
                self.close_connection = True
            elif fault == "cut":
                self.answer(200, body[: len(body) // 2], length=len(body))
            elif fault == "truncated":
                self.answer(200, body[: len(body) // 2])
            elif fault == "page":
                self.answer(200, b"<html>busy</html>", "text/html")
            else:
                self.answer(200, body)

    return Handler


@contextmanager
def serving(known: History) -> Iterator[MockExchange]:
    """The exchange at a free port of this machine, for the time of a block."""
    exchange = MockExchange(known)
    with local_server.serving(_handler(exchange), exchange.ended) as exchange.url:
        yield exchange
