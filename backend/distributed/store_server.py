"""Serves the store of a folder at a port of the operator's choice, until it is told to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from backend.store.gateway.credentials import USER_VARIABLE, environment_account
from backend.store.gateway.host import Listen
from backend.store.store import Store

_LOOK = 0.5  # seconds between two looks whether the gateway has ended by itself


def serve_store(folder: Path, host: str, port: int, say: Callable[[str], None]) -> None:
    """Serve the store in `folder` (made if absent) until SIGINT or SIGTERM.

    Clients elsewhere sign in with the account in this process's environment (CRYPTOSENTINEL_STORE_USER and _PASSWORD),
    those who name the folder with the random one of this launch. Raises `StoreError` for a folder or a port in use, a
    store that cannot be opened, or a host of others' without an account; `RunFailed` if the database cannot go on.
    """
    listen = Listen(host, port, environment_account())
    stop = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        stop.set()

    former = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with Store.open(folder, listen=listen, say=say) as store:
            elsewhere = f"with {USER_VARIABLE}" if listen.account else "with no account that others know"
            say(f"store {folder}: listening on {store.address} {elsewhere}; your programs here name the folder")
            while not stop.is_set() and not store.serve(0.0):
                stop.wait(_LOOK)
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
    say(f"store {folder}: stopped, everything is written")
