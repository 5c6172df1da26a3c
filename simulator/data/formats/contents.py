"""The bytes of a file: plain, gzipped, or the members of a zip archive; bounded, whatever an archive says of itself."""

from __future__ import annotations

import hashlib
import re
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from gzip import BadGzipFile, GzipFile
from pathlib import Path, PurePosixPath
from typing import IO

from simulator.errors import DataError
from simulator.folders import check_regular

MOST_UNPACKED = 2 * 2**30  # of one file or member, unpacked
_MOST_MEMBERS, _AT_ONCE = 10_000, 2**20
_CHECKSUM = re.compile(r"([0-9a-fA-F]{64})\s")
_GZIP, _ZIP = b"\x1f\x8b", b"PK"


@dataclass(frozen=True)
class Content:
    """A file as it was packed: its own name, without `.gz`, and its bytes; `member` is its name in a zip archive."""

    path: Path
    name: str
    data: bytes
    member: str = ""

    @property
    def label(self) -> str:
        """What an error about it begins with, after the name of the file."""
        return f"{self.member}: " if self.member else ""


def contents_of(path: Path, most: int = MOST_UNPACKED) -> Iterator[Content]:
    """What is in `path`, member by member where it is an archive; folders and checksums in archives are left out.

    Raises `DataError` for a file that cannot be read, is damaged, is no more what the `.CHECKSUM` beside it says, or
    holds more than `most` bytes.
    """
    try:
        check_regular(path)
        with path.open("rb") as file:
            start = file.read(2)
            file.seek(0)
            if start == _ZIP:
                _check_sum(path)
                yield from _members(path, most)
            elif start == _GZIP:
                with GzipFile(fileobj=file) as packed:
                    data = _bounded(packed, path, "", most)
                yield Content(path, path.name.removesuffix(".gz"), data)
            else:
                yield Content(path, path.name, _bounded(file, path, "", most))
    except (zipfile.BadZipFile, BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: is cut off or damaged ({error}); download it again") from error
    except RuntimeError as error:  # of an encrypted member, or one packed in another way
        raise DataError(f"{path}: cannot be unpacked ({error}); unpack it yourself") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def _members(path: Path, most: int) -> Iterator[Content]:
    with zipfile.ZipFile(path) as archive:
        members = [one for one in archive.infolist() if not one.is_dir() and not one.filename.endswith(".CHECKSUM")]
        stated = sum(one.file_size for one in members)
        if len(members) > _MOST_MEMBERS or stated > most:
            raise DataError(
                f"{path}: {len(members):,} files of {stated:,} bytes unpacked; at most {_MOST_MEMBERS:,} files and"
                f" {most:,} bytes are read: divide it by symbol or time"
            )
        if not members:
            raise DataError(f"{path}: is an empty archive; download it again")
        left = most
        for one in members:
            with archive.open(one) as file:
                # What an archive says of its members may be wrong.
                data = _bounded(file, path, one.filename, left)
            left -= len(data)
            yield Content(path, PurePosixPath(one.filename).name, data, one.filename)


def _bounded(file: IO[bytes] | GzipFile, path: Path, member: str, most: int) -> bytes:
    parts, size = [], 0
    while part := file.read(_AT_ONCE):
        size += len(part)
        if size > most:
            inside = f" {member}" if member else ""
            raise DataError(f"{path}:{inside} holds more than {most:,} bytes; divide it by symbol or time")
        parts.append(part)
    return b"".join(parts)


def _check_sum(path: Path) -> None:
    """Compare with the SHA-256 that Binance publishes beside each archive, where it was downloaded too."""
    beside = path.with_name(f"{path.name}.CHECKSUM")
    if not beside.is_file():
        return
    stated = _CHECKSUM.match(beside.read_text(encoding="utf-8", errors="replace") + " ")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if stated and stated[1].lower() != digest:
        raise DataError(f"{path}: its SHA-256 is not that of {beside.name}; download it again")
