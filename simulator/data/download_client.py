"""ccxt's clients for one exchange's public data: made, aimed at a server, and patient where an answer fails for a
passing reason. No key is ever needed or sent."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal
from urllib.parse import SplitResult, urlsplit, urlunsplit

import ccxt

from simulator.errors import UserError

MarketType = Literal["spot", "swap"]

ATTEMPTS = 6
_RETRY_DELAY = 5_000  # ms
# What ccxt's parsers raise about an answer that is JSON but of another shape.
MALFORMED = (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError)


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
    client.options |= {"maxRetriesOnFailure": ATTEMPTS - 1, "maxRetriesOnFailureDelay": _RETRY_DELAY}
    client.session.hooks["response"].append(_check_answer)
    aim(client, market, server)
    # A proxy of the environment is for the world outside, not for a server that was named.
    client.session.trust_env = not url
    return client


def _check_answer(response: Any, *_: Any, **__: Any) -> None:
    """Sees every HTTP response before ccxt does, which takes an unreadable body for an empty one, and what a failing
    server sends for a refusal."""
    if response.status_code >= 500:
        raise ccxt.ExchangeNotAvailable(f"HTTP status {response.status_code}")
    if response.ok:
        try:
            response.json()
        except ValueError:
            raise ccxt.NetworkError("an answer that is cut off or not JSON") from None


def check_exchange(exchange: str, there: Sequence[str]) -> None:
    """Raise `UserError` where `exchange` is not one of the ids `there`, and name those near it."""
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


def seconds_to_wait(header: str | None) -> float | None:
    """A Retry-After header, which holds seconds or a date; None where it has nothing usable."""
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
