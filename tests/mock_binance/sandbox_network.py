"""A mock test network: accounts and spot orders over REST in Binance's format, with signatures and failures.

It has a port of its own, as a test network has. Market orders fill at once at the last trade of a tape, on the side of
the book that they take; a fee is taken off what was received. Source of the format: https://developers.binance.com/docs
(spot: account and trading endpoints).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from simulator.live.clock import Clock
from simulator.market.market import Market
from tests.mock_binance.answers import Answers, RefusedRequest, base_and_quote, error_document
from tests.mock_binance.tape import MarketTape, decimal_text

FEE = 0.001
_PREFIX = re.compile(r"^/(api|fapi)/v\d/")
_RECEIVE_WINDOW = 60_000  # ms


class SandboxNetwork:
    """Accounts at a mock test network that plays `market` by `clock`.

    Attributes:
        balances: of each currency. orders: by the client's name, as Binance lists them. requests: count by path.
        failing: kinds of failure to answer with next, one request each: "500", "lost" (done, and not answered), "429",
            "signature".
    """

    signed = frozenset({"account", "order", "openOrders", "allOrders", "myTrades"})

    def __init__(self, market: Market, clock: Clock, key: str, secret: str) -> None:
        self._tape, self._clock = MarketTape(market), clock
        self._answers = Answers(self._tape)
        self._key, self._secret = key, secret
        self.balances: dict[str, float] = defaultdict(float, {"USDT": 1e6, "BTC": 1.0, "ETH": 10.0})
        self.orders: dict[str, dict[str, Any]] = {}
        self.requests: Counter[str] = Counter()
        self.failing: list[str] = []
        self._lock = threading.Lock()

    def answer(self, method: str, path: str, query: dict[str, str], text: str, key: str) -> tuple[int, Any]:
        """Status and document of a request; `text` is what was signed."""
        with self._lock:
            name = _PREFIX.sub("", path)
            self.requests[f"{method} {name}"] += 1
            if name == "time":
                return 200, {"serverTime": self._real()}
            signed = name in self.signed
            failure = self.failing.pop(0) if signed and self.failing else ""
            if failure in ("500", "429"):
                return int(failure), error_document(-1000, "Not now.")
            try:
                if not signed:
                    document = self._answers.answer(path, query, self._clock.now())
                    return (404, error_document(-1, "no such path")) if document is None else (200, document)
                self._check(text, key, query, failure == "signature")
                document = self._signed(method, name, query)
            except RefusedRequest as error:
                return (401 if error.code in (-1022, -2015) else 400), error_document(error.code, str(error))
            return (-1 if failure == "lost" else 200), document

    def _real(self) -> int:
        return time.time_ns() // 1_000_000

    def _check(self, text: str, key: str, query: dict[str, str], spoilt: bool) -> None:
        if key != self._key:
            raise RefusedRequest(-2015, "Invalid API-key, IP, or permissions for action.")
        unsigned, _, signature = text.rpartition("&signature=")
        expected = hmac.new(self._secret.encode(), unsigned.encode(), hashlib.sha256).hexdigest()
        if spoilt or not hmac.compare_digest(signature, expected):
            raise RefusedRequest(-1022, "Signature for this request is not valid.")
        if abs(int(query["timestamp"]) - self._real()) > _RECEIVE_WINDOW:
            raise RefusedRequest(-1021, "Timestamp for this request is outside of the recvWindow.")

    def _signed(self, method: str, name: str, query: dict[str, str]) -> Any:
        if name == "account":
            return {
                "makerCommission": 10, "takerCommission": 10, "canTrade": True, "accountType": "SPOT",
                "balances": [
                    {"asset": asset, "free": decimal_text(round(free, 8)), "locked": "0"}
                    for asset, free in self.balances.items()
                ],
            }  # fmt: skip
        if name == "openOrders":
            return [one for one in self.orders.values() if one["status"] == "NEW"]
        if name == "allOrders":
            return [one for one in self.orders.values() if one["symbol"] == query.get("symbol")]
        if name == "myTrades":
            return []
        if method == "POST":
            return self._fill(query)
        known = self.orders.get(query.get("origClientOrderId", ""))
        if known is None:
            raise RefusedRequest(-2013, "Order does not exist.")
        if method == "DELETE":
            known["status"] = "CANCELED" if known["status"] == "NEW" else known["status"]
        return known

    def _taken(self, query: dict[str, str]) -> tuple[float, float]:
        """Quantity of a market order, and the price that it takes."""
        if query["newClientOrderId"] in self.orders:
            raise RefusedRequest(-2010, "Duplicate order sent.")
        column = self._answers.column(query)
        tick = self._tape.last_tick(column, self._clock.now())
        if tick is None or query["type"] != "MARKET":
            raise RefusedRequest(-1013, "Market is closed.")
        (bid, _), (ask, _) = (side[0] for side in self._tape.book(column, tick))
        return float(query["quantity"]), ask if query["side"] == "BUY" else bid

    def _fill(self, query: dict[str, str]) -> dict[str, Any]:
        name, side = query["newClientOrderId"], query["side"]
        quantity, price = self._taken(query)
        base, quote = base_and_quote(query["symbol"])
        spent, worth = (quote, quantity * price) if side == "BUY" else (base, quantity)
        if self.balances[spent] < worth:
            raise RefusedRequest(-2010, "Account has insufficient balance for requested action.")
        self.balances[spent] -= worth
        received, gain = (base, quantity) if side == "BUY" else (quote, quantity * price)
        self.balances[received] += gain * (1.0 - FEE)
        order = {
            "symbol": query["symbol"], "orderId": len(self.orders) + 1, "clientOrderId": name, "price": "0",
            "origQty": query["quantity"], "executedQty": query["quantity"],
            "cummulativeQuoteQty": decimal_text(round(quantity * price, 8)), "status": "FILLED", "timeInForce": "GTC",
            "type": "MARKET", "side": side, "time": self._real(), "updateTime": self._real(), "isWorking": True,
        }  # fmt: skip
        self.orders[name] = order
        return order


@contextmanager
def serving_network(network: SandboxNetwork) -> Iterator[str]:
    """The address at which `network` answers for the time of a block."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer("GET")

        def do_POST(self) -> None:
            self._answer("POST")

        def do_DELETE(self) -> None:
            self._answer("DELETE")

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def _answer(self, method: str) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            text = parts.query or body
            status, document = network.answer(
                method, parts.path, dict(parse_qsl(text)), text, self.headers.get("X-MBX-APIKEY", "")
            )
            if status < 0:  # done, and the answer is lost on its way
                self.close_connection = True
                return
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, name="sandbox-network", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10.0)
