"""Locks on files: the one of a folder's holder, and the one by which a user of the folder shows that it is alive.

Both are `flock`: the kernel drops them when the process dies, so a crash leaves nothing to clean up. A forked process
gives up the locks that it inherited, because only the process that took a lock may keep it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import re
import weakref
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from backend.store.errors import StoreError

LOCK_FILE = "lock"
_USERS = "users"  # folder of the lock files of those who have the store open


class FolderHeld(StoreError):
    """Another process, `holder` in words, holds the folder."""

    def __init__(self, folder: Path, holder: str) -> None:
        super().__init__(
            f"store {folder} is in use by {holder}, and that one does not answer other programs: wait if it is still "
            "opening the store, else end it"
        )
        self.holder = holder


class _FileLock:
    """An open file and the `flock` on it."""

    def __init__(self, path: Path) -> None:
        """Raises BlockingIOError where another process has the lock, any other OSError where there can be none."""
        self.descriptor: int | None = None
        try:
            # A link is not followed: it could lead to a file that is not ours to write.
            self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _LOCKS.add(self)
        except BaseException:  # also an interrupt: nobody else could give it back
            self.release()
            raise

    def __del__(self) -> None:
        """An interrupt may come between the end of the constructor and its assignment."""
        self.release()

    def release(self) -> None:
        """Give the lock back; a second call does nothing."""
        descriptor, self.descriptor = self.descriptor, None
        if descriptor is not None:
            os.close(descriptor)


_LOCKS: weakref.WeakSet[_FileLock] = weakref.WeakSet()


def _give_up_inherited() -> None:
    for lock in tuple(_LOCKS):
        lock.release()  # the lock itself stays with the process that took it


os.register_at_fork(after_in_child=_give_up_inherited)


class FolderLock:
    """Holds `folder/lock` from construction until `release`.

    Raises `FolderHeld` if another user of the folder holds it, in this process too, and `StoreError` if the folder
    cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, path = folder, folder / LOCK_FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = _FileLock(path)
        except BlockingIOError:
            raise FolderHeld(folder, _holder(path)) from None
        except OSError as error:
            raise _cannot_lock(folder, path, error) from error

    def release(self) -> None:
        """Give the lock back; a second call does nothing. The file stays: removing it could race with an opener."""
        self._lock.release()

    def sign(self) -> None:
        """Write into the file who holds the folder. Raises `StoreError`."""
        note = f"{os.getpid()} {datetime.now(UTC):%Y-%m-%d %H:%M:%S}".encode()
        assert self._lock.descriptor is not None
        try:
            os.ftruncate(self._lock.descriptor, 0)
            os.pwrite(self._lock.descriptor, note, 0)
        except OSError as error:
            raise StoreError(f"store {self._folder}: cannot write ({error.strerror}); free some space") from error


class UserLock:
    """Shows until `release`, or until this process dies, that the user `name` of a folder is alive."""

    def __init__(self, folder: Path, name: str) -> None:
        users = folder / _USERS
        try:
            users.mkdir(exist_ok=True)
            # Under its own name only once it is locked, so that nobody takes it for the lock of a dead process.
            self._lock = _FileLock(users / f".{name}")
            os.rename(users / f".{name}", users / name)
        except OSError as error:
            raise _cannot_lock(folder, users, error) from error
        self._path = users / name

    def release(self) -> None:
        """The user is gone; a second call does nothing."""
        if self._lock.descriptor is not None:
            with suppress(OSError):
                self._path.unlink()
            self._lock.release()


def user_alive(folder: Path, name: str) -> bool:
    """Whether the user of that name has the folder open. The file of one that died is removed."""
    path = folder / _USERS / name
    if not path.exists():
        return False
    try:
        lock = _FileLock(path)
    except BlockingIOError:
        return True
    except OSError:
        return path.exists()  # it may have ended just now; where the lock cannot be tried, the user counts as alive
    with suppress(OSError):
        path.unlink()
    lock.release()
    return False


def _holder(path: Path) -> str:
    """Who wrote the lock file. The note may be absent when the holder is just starting."""
    with suppress(OSError):
        if found := re.fullmatch(rb"(\d{1,9}) ([\d :-]{19})", path.read_bytes()[:99]):
            who = "this very process" if int(found[1]) == os.getpid() else f"process {int(found[1])}"
            return f"{who}, which opened it at {found[2].decode()} UTC"
    return "another process"


def _cannot_lock(folder: Path, path: Path, error: OSError) -> StoreError:
    if error.errno == errno.ELOOP:
        return StoreError(f"{path} is a link, which this program does not follow: find out who put it there, remove it")
    if isinstance(error, PermissionError) and path.exists():
        return StoreError(
            f"store {folder}: its lock belongs to {_owner(path)}, and this program runs as {_name(os.geteuid())}: only "
            "programs of that user can use it. Choose a folder of your own"
        )
    if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
        return StoreError(
            f"store {folder}: its file system cannot lock files ({error.strerror}); choose a folder on a local disk"
        )
    return StoreError(
        f"store {folder}: cannot use this folder ({error.strerror}); choose one that can be written, or copy it there"
    )


def _owner(path: Path) -> str:
    return _name(path.lstat().st_uid)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
