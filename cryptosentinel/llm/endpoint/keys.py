"""The key of an endpoint: read from the environment, and checked before anything is sent."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from cryptosentinel.llm.endpoint.providers import owner_of, provider_at
from cryptosentinel.llm.endpoint.urls import is_loopback
from simulator.errors import UserError

AUTOMATIC = "auto"  # the provider's own variable; at another URL none
_SECRET_CHARS = 8  # a shorter key, like the "none" that local servers ask for, is no secret


def is_secret(key: str) -> bool:
    """Whether `key` must never be shown."""
    return len(key) >= _SECRET_CHARS


def key_variable_for(chosen: str, usual: tuple[str, ...]) -> str:
    """The environment variable that holds the key; "" for an endpoint without one.

    `chosen` is the user's; with `AUTOMATIC` it is the first of the provider's `usual` ones that is set.
    """
    if chosen != AUTOMATIC:
        return chosen
    return next((name for name in usual if os.environ.get(name, "").strip()), usual[0] if usual else "")


def read_key(variable: str, url: str) -> str:
    """The key that the environment holds, "" where `variable` is "".

    Raises `UserError`, which does not show the key: it is not set, cannot be sent, or is another provider's than the
    one at `url`.
    """
    if not variable:
        return ""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise UserError(
            f"the environment variable {variable}, which should hold the endpoint's key, is not set: export it, or "
            "leave engine.key_variable empty for an endpoint without a key"
        )
    if not (key.isascii() and key.isprintable()):
        raise UserError(f"the environment variable {variable} holds signs that no key has: set it anew")
    there, owner = provider_at(url), owner_of(key)
    if there is not None and owner is not None and owner is not there:
        raise UserError(
            f"the environment variable {variable} holds a key of {owner.title}, and {url} is {there.title}'s: nothing "
            f"was sent; set {there.key_variables[0]} to a key of {there.title}, or engine.provider to {owner.name}"
        )
    # A bare "sk-" begins the keys of many servers.
    known = owner is not None and any(len(one) > 3 and key.startswith(one) for one in owner.key_prefixes)
    if owner is not None and known and urlsplit(url).scheme == "http" and not is_loopback(url):
        raise UserError(
            f"the key in {variable} looks like one of {owner.title}, and {url} would carry it unencrypted: nothing was "
            "sent; use https, or name the variable of that server's own key in engine.key_variable"
        )
    return key
