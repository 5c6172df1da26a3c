"""Alerts of a session: a line in its log, and a webhook where one is given.

The address of the webhook comes from the environment, since such addresses hold a secret; it is in no log, record or
message. Sending has a thread of its own and a bounded number of tries: no alert holds up a session.
"""

from __future__ import annotations

import http.client
import json
import os
import queue
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

from simulator.errors import UserError

WEBHOOK = "CRYPTOSENTINEL_ALERT_URL"
AlertKind = Literal[
    "guard_shutdown", "loss_stop", "guard_error", "stale_data", "implausible_data", "kill", "session_dead", "parity"
]
FIRST_WAIT = 1.0  # seconds before the second try, doubled for each further one
_TRIES, _TIMEOUT, _WAITING = 4, 10.0, 100


def webhook() -> str:
    """The address in the environment, or nothing. Raises `UserError`, without it, for one that is no address."""
    address = os.environ.get(WEBHOOK, "")
    if address and not _usable(address):
        raise UserError(f"{WEBHOOK} is no http or https address: correct it, or leave it out for no webhook")
    return address


def _usable(address: str) -> bool:
    """Whether it has a scheme, a host and, if any, a port. What Python says of another one would show its text."""
    try:
        parts = urlsplit(address)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


class Webhook:
    """Posts alerts as JSON to `address`, one after the other, each at most four times. `failed` counts those that could
    not be delivered; `close` waits for what is still to be sent, at most `patience` seconds."""

    def __init__(self, address: str, failed: Callable[[str], None] | None = None) -> None:
        self._address, self._tell = address, failed
        self._alerts: queue.Queue[Mapping[str, Any] | None] = queue.Queue(_WAITING)
        self._over = threading.Event()
        self.failed = 0
        self._thread = threading.Thread(target=self._work, name="alerts", daemon=True)
        self._thread.start()

    def send(self, alert: Mapping[str, Any]) -> None:
        """Send `alert` soon. One that finds a hundred others waiting is given up."""
        try:
            self._alerts.put_nowait(alert)
        except queue.Full:
            self._failed("too many alerts wait")

    def close(self, patience: float = 5.0) -> None:
        """Send what waits, and end."""
        try:
            self._alerts.put_nowait(None)
        except queue.Full:
            self._over.set()
        self._thread.join(patience)
        self._over.set()

    def _work(self) -> None:
        while (alert := self._alerts.get()) is not None and not self._over.is_set():
            why = ""
            for number in range(_TRIES):
                why = self._post(alert)
                if not why or self._over.wait(FIRST_WAIT * 2**number if number + 1 < _TRIES else 0.0):
                    break
            if why:
                self._failed(why)

    def _post(self, alert: Mapping[str, Any]) -> str:
        """Why it was not delivered, without the address."""
        request = urllib.request.Request(  # `webhook` has looked at the scheme
            self._address, json.dumps(alert).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT):
                return ""
        except urllib.error.HTTPError as error:
            return f"the server answered {error.code}"
        except (OSError, ValueError, http.client.HTTPException) as error:
            return type(error).__name__

    def _failed(self, why: str) -> None:
        self.failed += 1
        if self._tell is not None:
            self._tell(why)
