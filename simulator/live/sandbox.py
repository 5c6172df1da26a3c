"""An account at an exchange's test network through ccxt, where no money is: orders by name, fills and balances.

The keys come from the environment and go nowhere but into ccxt: what fails is told without them, and without addresses'
queries, which are signed.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import ccxt

from simulator.data.download_client import MarketType, aim, check_exchange, server_of
from simulator.errors import RunFailed, UserError

KEY_VARIABLE, SECRET_VARIABLE = "CRYPTOSENTINEL_SANDBOX_KEY", "CRYPTOSENTINEL_SANDBOX_SECRET"
PASSPHRASE_VARIABLE = "CRYPTOSENTINEL_SANDBOX_PASSWORD"  # a name, for exchanges that want a passphrase
_TIMEOUT = 10_000  # ms of one request
_MOST_SKEW = 30_000  # ms
CONNECT_WAITS = (0.5, 2.0)  # seconds before each further try to connect
# ccxt logs every request with its headers, which hold the key, where a program logs at the level of debugging.
_QUIET = logging.getLogger("cryptosentinel.sandbox.ccxt")
_QUIET.setLevel(logging.WARNING)
_QUERY = re.compile(r"\?\S+")
_MALFORMED = (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError)

OrderStatus = Literal["open", "closed", "unknown"]


@dataclass(frozen=True)
class SandboxKeys:
    """What the test network knows the account by. Its `repr` shows none of it."""

    key: str
    secret: str
    password: str = ""

    def __repr__(self) -> str:
        return f"SandboxKeys({self.account})"

    @property
    def account(self) -> str:
        """A name for the account that does not tell the key."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:16]

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> SandboxKeys:
        """The keys of the environment. Raises `UserError` where there are none."""
        there = os.environ if environment is None else environment
        key, secret = there.get(KEY_VARIABLE, "").strip(), there.get(SECRET_VARIABLE, "").strip()
        if not key or not secret:
            raise UserError(
                f"the sandbox needs keys of the exchange's test network in {KEY_VARIABLE} and {SECRET_VARIABLE} (and "
                f"{PASSPHRASE_VARIABLE} where it has a passphrase): make them there and set both, or leave --broker out"
            )
        return cls(key, secret, there.get(PASSPHRASE_VARIABLE, "").strip())


@dataclass(frozen=True)
class SandboxOrder:
    """An order as the test network has it; `filled` is signed base units, `price` the average of what filled.
    "unknown": it has no such order, so it never came there."""

    name: str
    symbol: str
    status: OrderStatus
    filled: float = 0.0
    price: float | None = None


class SandboxFailure(Exception):
    """A request that failed, in words without keys; asking again later may help."""


class SandboxAccount:
    """The account of `keys` at the test network of `exchange`, for symbols as ccxt writes them: all spot, or all
    perpetuals that are settled in the currency that they are quoted in.

    Attributes:
        perpetual: whether it trades perpetuals.

    Raises `UserError` for an exchange without a test network, for other symbols, and for a URL that cannot be used.
    """

    def __init__(self, exchange: str, symbols: tuple[str, ...], keys: SandboxKeys, url: str = "") -> None:
        check_exchange(exchange, ccxt.exchanges)
        self.perpetual = ":" in symbols[0]
        for symbol in symbols:
            quote, _, settle = symbol.partition("/")[2].partition(":")
            if settle != (quote if self.perpetual else ""):
                raise UserError(
                    f"the sandbox cannot trade {', '.join(symbols)}: it takes spot, as BTC/USDT, or perpetuals that "
                    "are settled in what they are quoted in, as BTC/USDT:USDT; choose such symbols, or leave --broker "
                    "out"
                )
        market: MarketType = "swap" if self.perpetual else "spot"
        self.symbols, self._keys = symbols, keys
        quiet: Any = type(exchange, (getattr(ccxt, exchange),), {"logger": _QUIET})
        self._api: Any = quiet(
            {
                "apiKey": keys.key,
                "secret": keys.secret,
                "password": keys.password or None,
                "enableRateLimit": not url,
                "timeout": _TIMEOUT,
                "options": {
                    "defaultType": market, "fetchMarkets": {"types": ["linear" if self.perpetual else "spot"]},
                },
            }
        )  # fmt: skip
        if not self._leave_real_money():
            raise UserError(
                f"{exchange} has no test network in ccxt: choose an exchange that has one, as binance or bybit, "
                "or leave --broker out"
            )
        aim(self._api, market, server_of(url) if url else None)
        self._api.session.trust_env = not url

    def _leave_real_money(self) -> bool:
        """Let nothing be reached but a test network; whether there is one. Where ccxt knows no address of it, nothing
        must be left that could reach the exchange itself."""
        try:
            # Binance has closed the test network of its futures and has demo trading in its place.
            if self.perpetual and isinstance(self._api.urls.get("demo"), dict):
                self._api.enable_demo_trading(True)
                return True
            there = bool(self._api.urls.get("test"))
            self._api.set_sandbox_mode(there)
        except ccxt.BaseError:
            return False
        return there

    def connect(self) -> dict[str, float]:
        """Check the account and what is traded; what it holds, see `holdings`. What may pass, as an answer 500, is
        asked again a few times.

        Raises:
            UserError: keys that are refused, a symbol that is not there, clocks that differ by more than 30 seconds,
                perpetuals in an account with separate long and short positions.
            RunFailed: it cannot be reached.
        """
        name, failure = self._api.id, ""
        for wait in (*CONNECT_WAITS, None):
            try:
                return self._checked(name)
            except _RefusedError as error:
                raise UserError(
                    f"{name}'s test network refuses the keys in {KEY_VARIABLE} and {SECRET_VARIABLE} ({error}): use "
                    "keys that were made there and may trade; those of the exchange itself do not work"
                ) from None
            except SandboxFailure as error:
                failure = str(error)
                if wait is not None:
                    time.sleep(wait)
        raise RunFailed(f"{name}'s test network cannot be reached: {failure}; try later, or leave --broker out")

    def _checked(self, name: str) -> dict[str, float]:
        """What the account holds, once the clock, the symbols and the account are as they should be."""
        if self._api.has.get("fetchTime") is True:
            skew = int(self._ask("fetch_time")) - int(self._api.milliseconds())
            if abs(skew) > _MOST_SKEW:
                raise UserError(
                    f"this machine's clock is {abs(skew) / 1000:.0f} seconds from that of {name}'s test network; "
                    "set it (for instance with NTP) and start again: signed requests would be refused"
                )
        self._ask("load_markets")
        lacking = [symbol for symbol in self.symbols if symbol not in self._api.markets]
        if lacking:
            raise UserError(f"{name}'s test network has no {', '.join(lacking)}: choose other symbols")
        if self.perpetual and self._api.has.get("fetchPositionMode") is True:
            mode = self._ask("fetch_position_mode", self.symbols[0])
            if isinstance(mode, dict) and mode.get("hedged"):
                raise UserError(
                    f"the account at {name}'s test network keeps long and short positions of a symbol apart (hedge "
                    "mode), and the session's account has one of each: set it to one-way mode there"
                )
        return self.holdings()

    def held_as(self, symbol: str) -> str:
        """What `holdings` calls a symbol that is held: the coin, or the perpetual."""
        return symbol if self.perpetual else symbol.partition("/")[0]

    def holdings(self) -> dict[str, float]:
        """What the account has: the total of each currency traded, or the position in each perpetual, signed base
        units. Raises `SandboxFailure`."""
        if self.perpetual:
            return self._positions()
        answer = self._ask("fetch_balance")
        total = answer.get("total") if isinstance(answer, dict) else None
        if not isinstance(total, dict):
            raise SandboxFailure("an answer of another shape")
        traded = {part for symbol in self.symbols for part in symbol.split("/")}
        return {currency: float(total.get(currency) or 0.0) for currency in sorted(traded)}

    def _positions(self) -> dict[str, float]:
        positions = dict.fromkeys(self.symbols, 0.0)
        answer = self._ask("fetch_positions", list(self.symbols))
        try:
            for one in answer:
                if one["symbol"] in positions and one.get("contracts"):
                    side = {"long": 1.0, "short": -1.0}[one["side"]]
                    positions[one["symbol"]] += side * float(one["contracts"]) * self._contract(one["symbol"])
        except _MALFORMED as error:
            raise SandboxFailure(f"a position of another shape ({type(error).__name__})") from None
        return positions

    def _contract(self, symbol: str) -> float:
        """Base units of one contract; of spot 1."""
        return float(self._api.markets[symbol].get("contractSize") or 1.0) if self.perpetual else 1.0

    def order(self, name: str, symbol: str) -> SandboxOrder:
        """The order that was sent as `name`. Raises `SandboxFailure`."""
        try:
            answer = self._ask("fetch_order", None, symbol, {"clientOrderId": name, "origClientOrderId": name})
        except _NotThereError:
            return SandboxOrder(name, symbol, "unknown")
        return self._order(name, symbol, answer)

    def send(self, name: str, symbol: str, quantity: float, *, reduces: bool = False) -> SandboxOrder | None:
        """Send a market order of `quantity` (signed base units) under `name`; None where it is below what the exchange
        takes. One that `reduces` a perpetual's position can only do that.
        Raises `SandboxFailure`, after which it is not known whether it came there."""
        # Of a sum of floats twelve digits are meant: cut to the lot, 0.19999999999999998 would lose a whole lot.
        contracts = float(f"{abs(quantity) / self._contract(symbol):.12g}")
        try:
            amount = float(self._api.amount_to_precision(symbol, contracts))
        except ccxt.BaseError:
            return None
        side = "buy" if quantity > 0.0 else "sell"
        more = {"reduceOnly": True} if reduces and self.perpetual else {}
        answer = self._ask("create_order", symbol, "market", side, amount, None, {"clientOrderId": name, **more})
        return self._order(name, symbol, answer)

    def strangers(self, own: str) -> list[str]:
        """Open orders of the symbols whose name does not begin with `own`, in words. Raises `SandboxFailure`."""
        found = []
        for symbol in self.symbols:
            for one in self._ask("fetch_open_orders", symbol):
                if not str(one.get("clientOrderId") or "").startswith(own):
                    found.append(f"an open {one.get('side')} order of {one.get('amount')} {symbol} that is not ours")
        return found

    def _order(self, name: str, symbol: str, answer: Any) -> SandboxOrder:
        try:
            sign = 1.0 if answer["side"] == "buy" else -1.0
            filled = sign * float(answer.get("filled") or 0.0) * self._contract(symbol)
            status: OrderStatus = "open" if answer.get("status") in (None, "open") else "closed"
            price = answer.get("average")
            return SandboxOrder(name, symbol, status, filled, None if price is None else float(price))
        except _MALFORMED as error:
            raise SandboxFailure(f"an order of another shape ({type(error).__name__})") from None

    def _ask(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self._api, method)(*arguments)
        except ccxt.OrderNotFound as error:
            raise _NotThereError(self._words(method, error)) from None
        except (ccxt.AuthenticationError, ccxt.PermissionDenied) as error:
            raise _RefusedError(self._words(method, error)) from None
        except (ccxt.BaseError, OSError, *_MALFORMED) as error:
            raise SandboxFailure(self._words(method, error)) from None

    def _words(self, method: str, error: BaseException) -> str:
        words = " ".join(_QUERY.sub("", str(error) or type(error).__name__).split())
        for secret in (self._keys.key, self._keys.secret, self._keys.password):
            if secret:
                words = words.replace(secret, "...")
        return f"{method}: {words[:160]}"


class _NotThereError(SandboxFailure):
    """It has no such order."""


class _RefusedError(SandboxFailure):
    """The keys are refused."""
