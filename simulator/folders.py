"""Names inside a folder that somebody else may have made: none of them leads out of it."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from simulator.errors import DataError, UserError


def check_regular(path: Path) -> None:
    """Raise `OSError` where `path`, links followed, is a FIFO, device, socket or folder: to open one may never end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is a FIFO, device, socket or folder, and only files are read", str(path))


def data_folder(folder: str | Path) -> Path:
    """`folder`, which holds market data. Raises `DataError` where there is no such folder."""
    if not Path(folder).is_dir():
        raise DataError(f"{folder}: there is no such folder; `cryptosentinel data sample --out DIR` makes one")
    return Path(folder)


def path_inside(folder: Path, name: str, what: str) -> Path:
    """`folder / name`, which lies in `folder` when all links are followed.

    Raises `UserError`, which begins with `what`, for an absolute path, one with `..` that leaves the folder, and a link
    that does.
    """
    path = folder / name
    try:
        contained = "\0" not in name and path.resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):  # a circle of links, or no name of a file
        contained = False
    if not contained or os.path.isabs(name):
        raise UserError(
            f"{what} names '{name}', which does not lie in {folder}: nothing outside it is read or written for it; "
            "copy what is needed into the folder"
        )
    return path


def check_links(folder: Path, within: Path | None = None) -> None:
    """Raise `UserError` where a link below `folder` leads out of `within`, by default the folder itself."""
    top = (within or folder).resolve()
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(parent, name)
            if path.is_symlink() and not _leads_into(path, top):
                raise UserError(
                    f"{path} is a link out of {within or folder}: nothing outside it is read or written for it; put "
                    "the file itself there"
                )


def _leads_into(link: Path, top: Path) -> bool:
    try:
        return link.resolve().is_relative_to(top)
    except (OSError, RuntimeError):
        return False
