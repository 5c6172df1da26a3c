"""Files and folders that are whole or as they were, whenever the program or the machine ends."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_UNFINISHED = ".tmp"
_FORMER = ".former.tmp"


def write_whole(path: Path, text: str) -> None:
    """Write `text` (UTF-8) to `path` in one step: a reader, or the next program after a kill, finds the former file or
    the new one. Raises OSError; then the former file is untouched and nothing is left beside it."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    part = path.with_name(path.name + _UNFINISHED)  # of a killed writer it is written over
    try:
        if part.is_symlink():  # in a folder of somebody else's it could lead anywhere
            part.unlink()
        part.write_text(text, encoding="utf-8")
        # Some file systems keep the new name before the new content: a power failure would leave an empty file.
        with part.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(part, path)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # a failed write does not say of what
            error.filename = str(path)
        raise


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """An empty folder to fill, which becomes `target` when the block ends, in the place of what is there.

    Where the block fails, `target` is as it was and nothing is left beside it. A kill leaves the former folder or the
    new one, or for the moment between two renames none, and never a part of one.
    """
    unfinished, former = (target.with_name(target.name + ending) for ending in (_UNFINISHED, _FORMER))
    for left in (unfinished, former):  # of a killed writer
        shutil.rmtree(left, ignore_errors=True)
    try:
        unfinished.mkdir(parents=True)
        yield unfinished
        if target.exists():
            os.rename(target, former)
        os.rename(unfinished, target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        if former.exists() and not target.exists():
            os.rename(former, target)
        raise
    shutil.rmtree(former, ignore_errors=True)


def copy_folder(source: Path, target: Path, without: Collection[str] = ()) -> None:
    """Copy `source` to the new folder `target`, but for the names `without` at its top.

    Raises the `OSError` of the first file that cannot be copied, with its number and name, where the standard library
    gathers all into an error without either.
    """
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        if path.name in without:
            continue
        if path.is_dir():
            copy_folder(path, target / path.name)
        else:
            shutil.copy2(path, target / path.name)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
