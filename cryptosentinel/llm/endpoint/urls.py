"""What the URL of an endpoint may be, and whether it names this machine. The settings need it, and no HTTP client."""

from __future__ import annotations

from urllib.parse import urlsplit

from simulator.errors import UserError

LOOPBACK = ("localhost", "127.0.0.1", "::1")


def check_url(url: str) -> str:
    """`url` as the base of an endpoint, without a slash at its end. Raises `UserError` for one that cannot be used."""
    form = "write it like http://localhost:11434/v1"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise UserError(f"the endpoint's URL must name scheme and host: {form}")
    # These could hold a secret, and the URL is shown.
    if "@" in parts.netloc:
        raise UserError(f"the endpoint's URL names a user or a password: leave out what stands before the '@', {form}")
    if parts.query or parts.fragment:
        raise UserError(f"the endpoint's URL has something behind '?' or '#': leave it out, {form}")
    return url.rstrip("/")


def is_loopback(url: str) -> bool:
    """Whether `url` names this very machine."""
    try:
        return urlsplit(url).hostname in LOOPBACK
    except ValueError:
        return False
