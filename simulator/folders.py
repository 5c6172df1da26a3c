"""Names inside a folder that somebody else may have made: none of them leads out of it."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path

from simulator.errors import DataError, UserError

SAMPLE = "sample"  # the name of the shipped market in place of a folder
_IN_CLONE = Path("data/synthetic")
_IN_WHEEL = Path(__file__).resolve().parent / "data" / "sample"
_BARS = re.compile(r"(?!series-).+-(\d{1,2}[mhdw])\.parquet")  # of any timeframe
_IN_REPOSITORY = Path(__file__).resolve().parents[1] / _IN_CLONE  # of an editable install


def check_regular(path: Path) -> None:
    """Raise `OSError` where `path`, links followed, is a FIFO, device, socket or folder: to open one may never end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is a FIFO, device, socket or folder, and only files are read", str(path))


def sample_data() -> Path:
    """The folder of the sample market: of the current folder's clone, or else as it was installed with the program."""
    return next((place for place in (_IN_CLONE, _IN_WHEEL, _IN_REPOSITORY) if place.is_dir()), _IN_CLONE)


def named_data(folder: str | Path) -> Path:
    """`folder`, or that of the shipped sample for `sample`, unless the current folder has one of that name. Of a folder
    without bars that holds a single one with bars, as an import makes it, that one."""
    named = sample_data() if str(folder) == SAMPLE and not Path(SAMPLE).is_dir() else Path(folder)
    if not os.path.isdir(named) or timeframes_in(named):  # False also for a name that no file can have
        return named
    venues = [path for path in named.iterdir() if path.is_dir() and timeframes_in(path)]
    return venues[0] if len(venues) == 1 else named


def timeframes_in(folder: Path) -> set[str]:
    """The timeframes of the files of bars in a folder, by their names."""
    try:
        found = (_BARS.fullmatch(name) for name in os.listdir(folder))
        return {match[1] for match in found if match}
    except OSError:
        return set()  # whatever reads the folder says what is wrong


def data_folder(folder: str | Path) -> Path:
    """`named_data`, which holds market data. Raises `DataError` where there is no such folder."""
    named = named_data(folder)
    if os.path.isfile(named):
        raise DataError(
            f"{folder}: is a file, and a folder of bars is needed; make one of it with `cryptosentinel data import"
            f" {folder} --out data`"
        )
    if not os.path.isdir(named):
        raise DataError(f"{folder}: there is no such folder; '{SAMPLE}' names the sample market that is shipped")
    return named


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
