"""The import of files on the page: files of this machine, or uploaded ones, become one new folder of bars."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from backend.policies.temporary import temporary_folder
from simulator.data.formats import SUFFIXES
from simulator.errors import UserError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")


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
        if not file.name.lower().endswith(SUFFIXES):
            raise UserError(f"{file.name} is not a file of data: upload files that end with {', '.join(SUFFIXES)}")
    kept = temporary_folder("upload")
    try:
        folder = kept / name
        folder.mkdir()
        for file in files:
            (folder / file.name).write_bytes(file.getvalue())
        yield folder
    finally:
        shutil.rmtree(kept, ignore_errors=True)
