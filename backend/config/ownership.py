"""Which stored runs are this user's own: a mark on the record that only this user's key can make.

A store may be somebody else's, and a run may come out of an import. What their records say is data. A run that this
user made carries a signature (HMAC-SHA256) of its id and of all that its document says: the configuration, and where
its teams came from. It is made with a random key in a file that only this user can read; such a run goes on with all
of its settings. An export leaves the signature out. The gate's verdict bears one of its own.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

SIGNATURE = "signature"  # in the document of a record
_RUN = "run"
_KEY_BYTES = 32


def signed(run: str, document: Mapping[str, Any], kind: str = _RUN) -> dict[str, Any]:
    """The document of a run's record with this user's signature; without one where the key cannot be kept. Another
    `kind` is that of another record of the run, whose document is then not taken for that of the run."""
    plain = unsigned(document)
    signature = sign([kind, run, plain])
    return {**plain, SIGNATURE: signature} if signature else plain


def unsigned(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document without a signature."""
    return {name: value for name, value in document.items() if name != SIGNATURE}


def is_own(run: str, document: Mapping[str, Any], kind: str = _RUN) -> bool:
    """Whether this user has signed this very document of the run, as one of this `kind`."""
    return is_signed([kind, run, unsigned(document)], document.get(SIGNATURE))


def sign(value: Any) -> str:
    """This user's signature of a value of JSON; empty where the key cannot be kept."""
    key = _key(make=True)
    return "" if key is None else _signature(key, value)


def is_signed(value: Any, signature: object) -> bool:
    """Whether this user has signed this very value."""
    key = _key(make=False)
    if key is None or not isinstance(signature, str) or not signature.isascii():
        return False
    return hmac.compare_digest(signature, _signature(key, value))


def digest_of(config: Mapping[str, Any]) -> str:
    """SHA-256 of a configuration, by which a process tells another one which configuration it may use."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def key_file() -> Path:
    """Where this user's key is: in XDG_STATE_HOME, or in ~/.local/state."""
    top = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(top) / "cryptosentinel" / "key"


def _signature(key: bytes, value: Any) -> str:
    """Of the value as it comes back from a file or a database: with lists for tuples, and texts for keys."""
    plain = json.loads(json.dumps(value, default=_plain_number))
    return hmac.new(key, json.dumps(plain, sort_keys=True).encode(), hashlib.sha256).hexdigest()


def _plain_number(value: Any) -> Any:
    """A number of numpy as Python's. Raises TypeError for all else that JSON has no form for."""
    if callable(item := getattr(value, "item", None)):
        return item()
    raise TypeError(f"a value of type {type(value).__name__}")


def _key(*, make: bool) -> bytes | None:
    """The key; None where there is none, or where others could have read or written it."""
    path = key_file()
    with suppress(OSError):
        if make and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
            try:
                with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                    file.write(secrets.token_bytes(_KEY_BYTES))
                os.link(partial, path)  # of several processes the first one wins
            except FileExistsError:
                pass
            finally:
                partial.unlink(missing_ok=True)
        about = path.stat()
        if about.st_uid != os.getuid() or about.st_mode & 0o077:
            return None
        key = path.read_bytes()
        return key if len(key) == _KEY_BYTES else None
    return None
