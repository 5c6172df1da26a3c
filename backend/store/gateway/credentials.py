"""Who may use a gateway, and what each may do there.

A gateway always wants a sign-in. Each launch makes random accounts, which reach the user's own programs in a file that
nobody else can read (`address.py`). An operator may name one more in the environment, for programs elsewhere.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field

from backend.store.errors import StoreError

USER_VARIABLE = "CRYPTOSENTINEL_STORE_USER"
PASSWORD_VARIABLE = "CRYPTOSENTINEL_STORE_PASSWORD"
SHORTEST_PASSWORD = 12  # characters, where other machines can reach the gateway


@dataclass(frozen=True)
class GatewayAccount:
    """A user and a password. `reads_only`: nothing that changes the store is carried out for it."""

    user: str
    password: str = field(repr=False)
    reads_only: bool = False


def random_account(user: str, reads_only: bool = False) -> GatewayAccount:
    """An account for one launch, with a password of 256 random bits."""
    return GatewayAccount(user, secrets.token_urlsafe(32), reads_only)


def environment_account() -> GatewayAccount | None:
    """The account in the environment, None where there is none. Raises `StoreError` for half of one."""
    user, password = os.environ.get(USER_VARIABLE, ""), os.environ.get(PASSWORD_VARIABLE, "")
    if not user and not password:
        return None
    if not user or not password:
        raise StoreError(f"{USER_VARIABLE} and {PASSWORD_VARIABLE} go together: set both or neither")
    return GatewayAccount(user, password)
