"""The door of the page: an ASGI middleware before everything that Streamlit serves.

A user of the page can run programs as its user, so every request but the health check needs the token that
`cryptosentinel ui` prints. It comes once, as `?token=` of an address, and becomes a cookie that scripts cannot read.
Requests of other origins are refused, and so is showing the page in a frame of another one. Nothing here logs or
writes an address, because it may hold the token.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

HEALTH = "/_stcore/health"  # contains nothing but "ok"; supervisors ask it
COOKIE = "cryptosentinel_page"  # followed by the port: cookies are shared by all ports of a host
NO_TOKEN = "This page needs its token: open the whole address that `cryptosentinel ui` printed, with ?token=..."
_HEADERS = {
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_VIOLATION = 1008  # close code of a WebSocket that is refused


class Door:
    """Refuses requests without the token, from other origins and to other hosts.

    Args:
        app: what is behind the door.
        token: the token of the address; empty: anyone may come in who reaches the port.
        host: the address that the server listens on. Where it is of this machine alone, only names of this machine
            are served, so that no name of someone else's that leads here (DNS rebinding) is.
    """

    def __init__(self, app: App, token: str, host: str) -> None:
        self._app = app
        self._token = token.encode()
        self._pass = hmac.digest(self._token, b"cookie of the page", "sha256").hex() if token else ""
        self._local = is_local(host)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        answer = self._answer(scope)
        if answer is None:
            await self._app(scope, receive, _guarded(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _VIOLATION})
        else:
            await answer(scope, receive, _guarded(send))

    def _answer(self, scope: Message) -> Response | None:
        """The door's own answer to a request; None for one that may pass."""
        request = HTTPConnection(scope)
        if scope["type"] == "http" and scope["path"] == HEALTH:
            return None
        refusal = self._refusal(request.headers)
        if refusal:
            return PlainTextResponse(refusal, 403)
        if not self._pass:
            return None
        cookie = f"{COOKIE}_{(scope.get('server') or ('', 0))[1]}"
        asked = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        tokens = [value for name, value in asked if name == "token"]
        if tokens and scope["type"] == "http":
            if not _same(tokens[0], self._token):
                return PlainTextResponse(NO_TOKEN, 403)
            # The token leaves the address, so that neither the page, its history nor a bookmark holds it.
            rest = urlencode([(name, value) for name, value in asked if name != "token"])
            answer = RedirectResponse(f"{_own_path(scope['path'])}{'?' if rest else ''}{rest}", 303)
            answer.set_cookie(cookie, self._pass, httponly=True, samesite="lax", path="/")
            return answer
        if not _same(request.cookies.get(cookie, ""), self._pass.encode()):
            return PlainTextResponse(NO_TOKEN, 403)
        return None

    def _refusal(self, headers: Headers) -> str:
        """Why a request is refused whatever its token; empty where it is not."""
        host, origin = headers.get("host", ""), headers.get("origin")
        try:
            named = urlsplit(f"//{host}").hostname or ""
            foreign = origin is not None and urlsplit(origin).netloc != host
        except ValueError:
            return "The request has a host or an origin that is not an address."
        if self._local and not is_local(named):
            return "This page is served to this machine alone: open it as http://localhost"
        if foreign:
            return "Requests of other pages are refused."
        if headers.get("sec-fetch-site", "none") in ("same-origin", "none"):
            return ""
        # A link may lead here; what another page loads, sends or frames by itself may not.
        whole = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        return "" if whole and origin is None else "Requests of other pages are refused."


def is_local(host: str) -> bool:
    """Whether a host name or address is of this machine alone."""
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _same(given: str, expected: bytes) -> bool:
    """Compared in a time that does not depend on where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected)


def _own_path(path: str) -> str:
    """A path for a redirect, which never leads to another host as `//host` would."""
    return f"/{path.lstrip('/')}"


def _guarded(send: Send) -> Send:
    """`send` whose answers forbid frames and leave the address to nobody."""

    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(_HEADERS)
        await send(message)

    return guarded
