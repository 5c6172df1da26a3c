"""A client for one exchange's public data through ccxt, with retries.

It keeps to the exchange's rate limit, waits and asks again where an answer fails for a passing reason, and turns
everything else into one sentence. No key is ever needed or sent.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal
from urllib.parse import SplitResult, urlsplit, urlunsplit

import ccxt

from simulator.errors import DataError, RunFailed, UserError

MarketType = Literal["spot", "swap"]

ATTEMPTS = 6
FIRST_WAIT, LONGEST_BACKOFF = 1.0, 60.0  # seconds
LONGEST_WAIT = 300.0  # seconds; an exchange that asks for more is left alone
# Refusals that another attempt will not change: no such thing, not allowed, not in this country.
_FINAL = frozenset({400, 401, 403, 404, 405, 407, 410, 451})
# What ccxt's parsers raise about an answer that is JSON but of another shape.
_MALFORMED = (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError)


def connect(exchange: str, market: MarketType, url: str = "") -> Any:
    """ccxt's object for the exchange with this id, which has not asked anything yet.

    Args:
        market: which markets will be used; others are not fetched where the exchange has them apart.
        url: server to ask instead of the exchange's own, as `http://localhost:8080`; paths stay as they are.

    Raises:
        UserError: no such exchange, or a URL that cannot be used.
    """
    check_exchange(exchange, ccxt.exchanges)
    server = server_of(url) if url else None
    client = getattr(ccxt, exchange)({"enableRateLimit": True})
    aim(client, market, server)
    # A proxy of the environment is for the world outside, not for a server that was named.
    client.session.trust_env = not url
    return client


def check_exchange(exchange: str, there: Sequence[str]) -> None:
    """Raise `UserError` where `exchange` is none of the ids `there`, and name those near it."""
    if exchange not in there:
        near = [name for name in there if name.startswith(exchange[:3])][:6]
        raise UserError(f"'{exchange}' is no exchange of ccxt; {'near: ' + ', '.join(near) if near else 'try binance'}")


def server_of(url: str) -> SplitResult:
    """The parts of an address to ask instead of an exchange's own. Raises `UserError` for one that cannot be used."""
    try:
        server = urlsplit(url)
    except ValueError as error:
        raise UserError(f"the URL cannot be read ({error}); write it like http://localhost:8080") from None
    if server.scheme not in ("http", "https") or not server.hostname:
        raise UserError("the URL must name scheme and host, as http://localhost:8080")
    if "@" in server.netloc:
        raise UserError("the URL names a user; public data needs none, so leave out what stands before the '@'")
    return server


def aim(client: Any, market: MarketType, server: SplitResult | None) -> None:
    """Let `client` (ccxt's, of either kind) fetch the markets in use only, and ask `server` where one is named."""
    fetched = client.options.get("fetchMarkets")
    if isinstance(fetched, dict) and isinstance(fetched.get("types"), list):
        wanted = [kind for kind in fetched["types"] if kind in ({"spot"} if market == "spot" else {"swap", "linear"})]
        client.options["fetchMarkets"] = {**fetched, "types": wanted or fetched["types"]}
    if server is not None:
        client.urls["api"] = _moved(client.urls["api"], server)


class NotPublic(DataError):
    """The exchange does not tell this to everyone."""


@dataclass(frozen=True)
class _Answer:
    """What the last HTTP response said; nothing where none came. `retry_after` is in seconds."""

    status: int | None = None
    retry_after: float | None = None


class Client:
    """Asks `exchange` (see `connect`) until it answers.

    Args:
        sleep: called with seconds to wait. jitter: draws the random part of the waits.
    """

    def __init__(
        self, exchange: Any, *, sleep: Callable[[float], None] = time.sleep, jitter: random.Random | None = None
    ) -> None:
        self.exchange = exchange
        self._sleep = sleep
        self._jitter = jitter or random.Random()
        self._answer = _Answer()
        exchange.session.hooks["response"].append(self._inspect)

    def ask(self, method: str, *arguments: Any) -> Any:
        """The answer of ccxt's `method`.

        Raises:
            NotPublic: it answers that only with a key, or never. DataError: it refuses, or does not know what is asked.
            RunFailed: it did not give a usable answer in `ATTEMPTS` attempts, or asks to wait for too long.
        """
        name = self.exchange.id
        reason = ""
        for attempt in range(ATTEMPTS):
            self._answer = _Answer()
            try:
                return getattr(self.exchange, method)(*arguments)
            except ccxt.NetworkError as error:
                reason = _words(error)
                if self._answer.status in _FINAL:
                    raise DataError(f"{name} refuses {method}, HTTP status {self._answer.status}: {reason}") from None
            except (ccxt.AuthenticationError, ccxt.NotSupported) as error:
                raise NotPublic(f"{name} does not show {method} without a key: {_words(error)}") from None
            except ccxt.BaseError as error:
                # A server that fails sometimes says so in a body that ccxt takes for a refusal.
                reason = _words(error)
                if self._answer.status is None or self._answer.status < 500:
                    raise DataError(f"{name} refuses {method}: {reason}") from None
            except _MALFORMED as error:
                reason = f"an answer of another shape ({type(error).__name__})"
            if attempt < ATTEMPTS - 1:
                self._wait(attempt)
        status = f", HTTP status {self._answer.status}" if self._answer.status else ""
        raise RunFailed(f"{name} gave no usable answer to {method} in {ATTEMPTS} attempts{status}: {reason}")

    def now(self) -> int:
        """The exchange's clock where it tells, else this machine's, in ms."""
        answer = self.ask("fetch_time") if self.exchange.has.get("fetchTime") is True else None
        return int(time.time() * 1000) if answer is None else int(answer)

    def _wait(self, attempt: int) -> None:
        seconds = min(LONGEST_BACKOFF, FIRST_WAIT * 2.0**attempt) * self._jitter.uniform(0.5, 1.0)
        asked = self._answer.retry_after
        if asked is not None:
            if asked > LONGEST_WAIT:
                raise RunFailed(f"{self.exchange.id} asks to wait for {asked / 60:.0f} minutes")
            seconds = max(seconds, asked)
        self._sleep(seconds)

    def _inspect(self, response: Any, *_: Any, **__: Any) -> None:
        """Sees every HTTP response before ccxt does, which keeps neither the status nor an unreadable body."""
        self._answer = _Answer(response.status_code, seconds_to_wait(response.headers.get("Retry-After")))
        if response.ok:
            try:
                response.json()
            except ValueError:
                raise ccxt.NetworkError("an answer that is cut off or not JSON") from None


def seconds_to_wait(header: str | None) -> float | None:
    """A Retry-After header, which holds seconds or a date; None where it says nothing usable."""
    if not header:
        return None
    if header.strip().isdigit():
        return float(header)
    try:
        until = parsedate_to_datetime(header)
    except ValueError:
        return None
    moment = until if until.tzinfo else until.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _moved(api: Any, target: SplitResult) -> Any:
    """`api`, ccxt's address or tree of addresses, with scheme and host of `target` and its path in front."""
    if isinstance(api, dict):
        return {name: _moved(part, target) for name, part in api.items()}
    known = urlsplit(api)
    if known.scheme in ("ws", "wss"):
        # ccxt tells spot from futures by the address of a socket, so the name of its host stays, as part of the path.
        scheme = "wss" if target.scheme == "https" else "ws"
        return urlunsplit((scheme, target.netloc, f"{target.path.rstrip('/')}/{known.hostname}{known.path}", "", ""))
    return urlunsplit((target.scheme, target.netloc, target.path.rstrip("/") + known.path, "", ""))
