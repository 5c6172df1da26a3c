"""A program's way to the gateway of the process that holds the store."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from websockets.sync.client import connect
from websockets.typing import Subprotocol

from backend.store.errors import StoreError
from backend.store.gateway.answers import decoded_answer
from backend.store.gateway.cbor_writer import encoded
from backend.store.gateway.credentials import GatewayAccount
from backend.store.gateway.rpc_messages import NOT_OFFERED, short_id

_OPEN = 10.0  # seconds in which a gateway must answer
_ALIVE = 30.0  # seconds between two signs of life, and in which one must come


class SignInRefused(Exception):
    """The gateway does not take the sign-in: it is not the one that these accounts are for."""


class GatewayClient:
    """A connection that has signed in and uses one database.

    Every method raises OSError, `WebSocketException` or ValueError if the gateway goes away, and is of no use then.
    """

    def __init__(self, url: str, account: GatewayAccount, namespace: str, database: str) -> None:
        self._number = 0
        self._reads_only = account.reads_only
        # No proxy: the environment's is for other machines.
        opening = connect(
            f"{url}/rpc", subprotocols=[Subprotocol("cbor")], compression=None, max_size=None, proxy=None,
            open_timeout=_OPEN, ping_interval=_ALIVE, ping_timeout=_ALIVE, close_timeout=1.0,
        )  # fmt: skip
        self._open = ExitStack()
        self._socket = self._open.enter_context(opening)
        try:
            for method, parameters in (
                ("signin", [{"user": account.user, "pass": account.password}]),
                ("use", [namespace, database]),
            ):
                if "error" in (answer := self.call(method, parameters)):
                    raise SignInRefused(str(answer["error"].get("message")))
        except BaseException:
            self.close()
            raise

    def query_raw(self, text: str, parameters: dict[str, Any], /) -> dict[str, Any]:
        """The answer to statements, with the result of each or an error."""
        return self.call("query", [text, parameters])

    def query_encoded(self, text: str, parameters: dict[str, Any], /) -> bytes:
        """The same answer as the database encoded it."""
        return self._exchange("query", [text, parameters])

    def snapshot(self) -> str | None:
        """The text of a snapshot of the database's files; None where this account may not ask for one, or a former
        program holds the store. Raises `StoreError` in the holder's words where it cannot."""
        if not self._reads_only:
            return None
        answer = self.call("snapshot", [])
        if "error" not in answer:
            return str(answer["result"])
        if NOT_OFFERED in (reason := str(answer["error"].get("message"))):
            return None
        raise StoreError(reason)

    def close(self) -> None:
        """Leave; a second call does nothing."""
        self._open.close()

    def call(self, method: str, parameters: list[Any]) -> dict[str, Any]:
        """The answer to any request, with its result or an error."""
        answer = decoded_answer(self._exchange(method, parameters))
        return answer if isinstance(answer, dict) else {}

    def _exchange(self, method: str, parameters: list[Any]) -> bytes:
        self._number += 1
        wanted = str(self._number)
        self._socket.send(encoded({"id": wanted, "method": method, "params": parameters}))
        while True:
            received = self._socket.recv()
            answer = received if isinstance(received, bytes) else received.encode()
            if short_id(answer) == wanted:
                return answer
            response = decoded_answer(answer)
            if isinstance(response, dict) and response.get("id") in (wanted, None):
                return answer
