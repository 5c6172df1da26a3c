"""The import of files on the page: files of this machine, or uploaded ones, become one new folder of bars."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from backend.policies.temporary import folder_of_block
from simulator.data.formats import SUFFIXES, FileOptions
from simulator.data.importing import ImportReport, import_tree
from simulator.errors import DataError, UserError
from simulator.market.instruments import MarketKind

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")
ENDINGS = (".parquet", *SUFFIXES)
_REASONS = 5  # that a refusal lists


class Upload(Protocol):
    """A file that came through the page."""

    name: str

    def getvalue(self) -> bytes: ...


def new_folder(name: str, root: Path = Path("data")) -> Path:
    """`data/NAME`, which must not exist. Raises `UserError`."""
    if not NAME.fullmatch(name):
        raise UserError("give the new folder a name of letters, digits, '.', '_' and '-'")
    if (root / name).exists():
        raise UserError(f"{root / name} is there already and is not written over: take another name")
    return root / name


@contextmanager
def uploaded(files: Sequence[Upload], name: str) -> Iterator[Path]:
    """A folder with uploaded files for a block. It lies outside of every folder that modules are imported from, only
    this account can read it, and it is gone after the block, whether or not the files could be used.

    Raises `UserError` for a file that cannot hold data.
    """
    for file in files:
        if not NAME.fullmatch(file.name):
            raise UserError(
                f"the file name '{file.name[:80]}' has other characters than letters, digits, '.', '_' and '-': rename "
                "the file"
            )
        if not file.name.lower().endswith(ENDINGS):
            raise UserError(f"{file.name} is not a file of data: upload files that end with {', '.join(ENDINGS)}")
    with folder_of_block("upload") as kept:
        folder = kept / name
        folder.mkdir()
        for file in files:
            (folder / file.name).write_bytes(file.getvalue())
        yield folder


def import_into(
    source: Path,
    target: Path,
    instrument: MarketKind | None,
    options: FileOptions,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ImportReport:
    """Import `source` into the new folder `target`: its bars lie in `target` itself, or, where the files are of several
    venues, in a folder of it for each. All of it appears at once, or nothing.

    Raises `UserError` where nothing can be used, with the reasons.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".import-", dir=target.parent) as staging:
        made = Path(staging) / "made"
        report = import_tree(source, made, None, progress, instrument, options)
        if not report.catalogs:
            reasons = [f"{one.path}: {one.detail}" for one in report.sources if one.outcome != "taken"]
            raise DataError("nothing could be imported. " + "; ".join(reasons[:_REASONS]))
        whole = made if len(report.catalogs) > 1 else report.catalogs[0]
        if target.exists():
            raise UserError(f"{target} is there already and is not written over: take another name")
        whole.rename(target)
    return report
