"""Where the gateway of a folder listens, and how to sign in: a file beside the lock that only its user can read.

It holds for one launch, which is named in the lock as well: what a killed holder left behind is not taken for the
address of the next one, and its passwords are worth nothing.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from backend.store.errors import StoreError
from backend.store.gateway.credentials import GatewayAccount
from simulator.files import DISK_FULL

FILE = "gateway.json"
_LONGEST = 4096  # bytes


@dataclass(frozen=True)
class Address:
    """The gateway at `url`, for the launch of that name; `writer` may do everything there, `reader` may only read."""

    launch: str
    url: str
    writer: GatewayAccount
    reader: GatewayAccount


def publish(folder: Path, address: Address) -> None:
    """Write the address into the folder, readable by this user alone from the first moment on.

    Raises `StoreError` where something else lies in its place, or it cannot be written.
    """
    path = folder / FILE
    try:
        _refuse_foreign(path, os.lstat(path))
    except FileNotFoundError:
        pass
    except OSError as error:
        raise _unusable(path, error) from error
    for left in folder.glob(f".{FILE}-*"):  # of a process that was killed while it published
        with suppress(OSError):
            left.unlink()
    unfinished = folder / f".{FILE}-{secrets.token_hex(8)}"
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(asdict(address), file)
            os.replace(unfinished, path)  # of a link it would replace the link, not what that names
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _unusable(path, error) from error


def withdraw(folder: Path) -> None:
    """Remove the address, where there is one of ours."""
    path = folder / FILE
    with suppress(OSError, StoreError):
        _refuse_foreign(path, os.lstat(path))
        path.unlink()


def find(folder: Path, launch: str) -> Address | None:
    """The address of a launch; None where there is none, or that of another launch.

    Raises `StoreError` for a file that this user did not write or that others can read or have planted, and for that
    of another user.
    """
    path = folder / FILE
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise StoreError(
            f"store {folder} is in use by a program of {_owner_of(path)}, which serves it to programs of that user "
            "only: wait until that one ends, or let that user serve it with `cryptosentinel serve store`"
        ) from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _foreign(path, "a link") from error
        raise _unusable(path, error) from error
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        _refuse_foreign(path, status)
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise StoreError(
                f"{path} can be read by others, so what it holds is no secret any more: end the program that holds "
                "the store and start it again"
            )
        return _parsed(file.read(_LONGEST), launch)


def _parsed(content: bytes, launch: str) -> Address | None:
    try:
        found = json.loads(content)
        writer, reader = GatewayAccount(**found["writer"]), GatewayAccount(**found["reader"])
        address = Address(str(found["launch"]), str(found["url"]), writer, reader)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return address if address.launch == launch else None


def _refuse_foreign(path: Path, status: os.stat_result) -> None:
    """Raise `StoreError` unless it is a file of its own that belongs to this user."""
    if stat.S_ISLNK(status.st_mode):
        raise _foreign(path, "a link")
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        raise _foreign(path, "no file of its own")
    if status.st_uid != os.geteuid():
        raise _foreign(path, "a file of another user")


def _foreign(path: Path, what: str) -> StoreError:
    return StoreError(
        f"{path} is {what}, not what this program writes there, so it is neither read nor replaced: find out who put "
        "it there, and remove it"
    )


def _owner_of(path: Path) -> str:
    try:
        return path.owner()
    except (OSError, KeyError):
        return "another user"


def _unusable(path: Path, error: OSError) -> StoreError:
    advice = "free some space" if error.errno in DISK_FULL else "choose a store in a folder of your own"
    return StoreError(f"{path} cannot be used ({error.strerror or error}); {advice}")
