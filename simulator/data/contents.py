"""The bytes of a file: plain, gzipped, or the members of a zip archive; bounded, whatever an archive states."""

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
_MOST_MEMBERS = 10_000


@dataclass(frozen=True)
class Content:
    """A file as it was packed: its own name, without `.gz`, and its bytes; `member` is its name in a zip archive."""

    path: Path
    name: str
    data: bytes
    member: str = ""


def contents_of(path: Path, most: int = MOST_UNPACKED) -> Iterator[Content]:
    """What is in `path`, member by member where it is an archive; folders and checksums in archives are left out.

    Raises `DataError` for a file that cannot be read, is damaged, is no longer what the `.CHECKSUM` beside it states,
    or holds more than `most` bytes.
    """
    try:
        check_regular(path)
        with path.open("rb") as file:
            start = file.read(2)
            file.seek(0)
            if start == b"PK":
                _check_sum(path)
                yield from _members(path, most)
                return
            packed = GzipFile(fileobj=file) if start == b"\x1f\x8b" else file
            yield Content(path, path.name.removesuffix(".gz"), _bounded(packed, path, most))
    except (zipfile.BadZipFile, BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: is cut off or damaged ({error}); download it again") from error
    except RuntimeError as error:  # of an encrypted member, or one packed in another way
        raise DataError(f"{path}: cannot be unpacked ({error}); unpack it yourself") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def _members(path: Path, most: int) -> Iterator[Content]:
    with zipfile.ZipFile(path) as archive:
        members = [one for one in archive.infolist() if not one.is_dir() and not one.filename.endswith(".CHECKSUM")]
        if not members:
            raise DataError(f"{path}: is an empty archive; download it again")
        if len(members) > _MOST_MEMBERS:
            raise DataError(f"{path}: holds more than {_MOST_MEMBERS:,} files; divide it by symbol or time")
        for one in members:
            with archive.open(one) as file:
                data = _bounded(file, path, most)  # what an archive states of its members may be wrong
            most -= len(data)
            yield Content(path, PurePosixPath(one.filename).name, data, one.filename)


def _bounded(file: IO[bytes] | GzipFile, path: Path, most: int) -> bytes:
    parts, left = [], most
    while part := file.read(2**20):
        parts.append(part)
        left -= len(part)
        if left < 0:
            raise DataError(f"{path}: holds more than {most:,} bytes unpacked; divide it by symbol or time")
    return b"".join(parts)


def _check_sum(path: Path) -> None:
    """Compare with the SHA-256 that Binance publishes beside each archive, where it was downloaded too."""
    beside = path.with_name(f"{path.name}.CHECKSUM")
    if beside.is_file():
        stated = re.match(r"([0-9a-fA-F]{64})\b", beside.read_text(encoding="utf-8", errors="replace"))
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if stated and stated[1].lower() != digest:
            raise DataError(f"{path}: its SHA-256 is not that of {beside.name}; download it again")
