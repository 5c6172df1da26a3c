"""A mock test network of perpetuals: positions in USD-M futures in Binance's format, with reduce-only orders.

Source of the format: https://developers.binance.com/docs (USD-M futures: account and trading endpoints).
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from simulator.live.clock import Clock
from simulator.market.market import Market
from tests.mock_binance.answers import RefusedRequest
from tests.mock_binance.sandbox_network import SandboxNetwork
from tests.mock_binance.tape import decimal_text

_DUST = 1e-9
_FEE = 0.0005


class FuturesNetwork(SandboxNetwork):
    """As `SandboxNetwork`, for perpetuals: market orders change a position, and the fee is taken off the USDT.

    Attributes:
        positions: of each symbol as the exchange calls it, signed base units. hedged: whether the account keeps long
            and short positions apart.
    """

    signed = frozenset({"account", "order", "openOrders", "positionRisk", "positionSide/dual", "leverageBracket"})

    def __init__(self, market: Market, clock: Clock, key: str, secret: str) -> None:
        super().__init__(market, clock, key, secret)
        self.positions: dict[str, float] = defaultdict(float)
        self.hedged = False

    def _signed(self, method: str, name: str, query: dict[str, str]) -> Any:
        if name == "account":
            balance = decimal_text(round(self.balances["USDT"], 8))
            return {"canTrade": True, "assets": [{"asset": "USDT", "walletBalance": balance}], "positions": []}
        if name == "positionSide/dual":
            return {"dualSidePosition": self.hedged}
        if name == "leverageBracket":
            return []
        if name == "positionRisk":
            return [self._position(symbol, amount) for symbol, amount in self.positions.items() if amount]
        return super()._signed(method, name, query)

    def _position(self, symbol: str, amount: float) -> dict[str, Any]:
        column = self._tape.market.symbols.index(symbol)
        tick = self._tape.last_tick(column, self._clock.now())
        price = tick.price if tick else 0.0
        return {
            "symbol": symbol, "positionSide": "BOTH", "positionAmt": decimal_text(amount), "leverage": "20",
            "entryPrice": decimal_text(price), "markPrice": decimal_text(price), "unRealizedProfit": "0",
            "liquidationPrice": "0", "isolatedMargin": "0", "notional": decimal_text(amount * price),
            "marginAsset": "USDT", "isolatedWallet": "0", "initialMargin": "0", "maintMargin": "0", "updateTime": 0,
        }  # fmt: skip

    def _fill(self, query: dict[str, str]) -> dict[str, Any]:
        quantity, price = self._taken(query)
        symbol, change = query["symbol"], quantity if query["side"] == "BUY" else -quantity
        held = self.positions[symbol]
        if query.get("reduceOnly") == "true" and (held * change >= 0.0 or abs(change) > abs(held) + _DUST):
            raise RefusedRequest(-2022, "ReduceOnly Order is rejected.")
        self.positions[symbol] = 0.0 if abs(held + change) < _DUST else held + change
        self.balances["USDT"] -= quantity * price * _FEE
        order = {
            "symbol": symbol, "orderId": len(self.orders) + 1, "clientOrderId": query["newClientOrderId"],
            "price": "0", "avgPrice": decimal_text(price), "origQty": query["quantity"],
            "executedQty": query["quantity"], "cumQuote": decimal_text(round(quantity * price, 8)), "status": "FILLED",
            "timeInForce": "GTC", "type": "MARKET", "side": query["side"], "positionSide": "BOTH",
            "reduceOnly": query.get("reduceOnly") == "true", "time": self._real(), "updateTime": self._real(),
        }  # fmt: skip
        self.orders[query["newClientOrderId"]] = order
        return order
