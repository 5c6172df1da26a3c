"""Buckets for the tests: a folder in the place of an S3 client, and an S3 server of this machine, moto's."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pyarrow.fs import FileInfo, FileSelector, FileType, LocalFileSystem, S3FileSystem
from pyarrow.lib import NativeFile

from tests.backend.store.gateways import ROOT

SERVER_PYTHON = ROOT / ".venv-s3" / "bin" / "python"  # `make .venv-s3`
BUCKET = "teams"
_SERVE = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(*server.get_host_and_port(), flush=True)
sys.stdin.read()
"""


class FolderClient:
    """What `BucketObjects` asks of pyarrow's S3 client, answered by a folder. Its first folders are the buckets."""

    def __init__(self, top: Path) -> None:
        self._top, self._files = top, LocalFileSystem()

    def get_file_info(self, path: str) -> FileInfo:
        return self._files.get_file_info(str(self._top / path))

    def open_output_stream(self, path: str) -> NativeFile:
        if not (self._top / path.partition("/")[0]).is_dir():
            raise OSError("AWS Error NO_SUCH_BUCKET during PutObject operation")
        (self._top / path).parent.mkdir(parents=True, exist_ok=True)
        return self._files.open_output_stream(str(self._top / path))

    def open_input_file(self, path: str) -> NativeFile:
        return self._files.open_input_file(str(self._top / path))

    def delete_file(self, path: str) -> None:
        self._files.delete_file(str(self._top / path))

    def delete_dir(self, path: str) -> None:
        self._files.delete_dir(str(self._top / path))


def s3_client(address: str) -> S3FileSystem:
    """A client of a server, as others write them."""
    scheme, _, place = address.partition("://")
    return S3FileSystem(
        access_key="k", secret_key="s", region="us-east-1", scheme=scheme, endpoint_override=place,
        allow_bucket_creation=True,
    )  # fmt: skip


@contextmanager
def s3_server(**environment: str) -> Iterator[str]:
    """The address of an S3 server with the bucket `BUCKET`, for a block."""
    server = subprocess.Popen(
        [str(SERVER_PYTHON), "-c", _SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL, env=os.environ | environment,
    )  # fmt: skip
    try:
        host, port = _line(server.stdout).split()
        yield f"http://{host}:{port}"
    finally:
        server.communicate("", timeout=60)


def _line(output: IO[str] | None) -> str:
    assert output is not None
    return output.readline()


def files_below(address: str | Path, prefix: str) -> list[str]:
    """The files below a prefix of the bucket, at the address of a server or in the folder of a `FolderClient`."""
    if isinstance(address, Path):
        return [str(path) for path in (address / BUCKET / prefix).rglob("*") if path.is_file()]
    found = s3_client(address).get_file_info(FileSelector(f"{BUCKET}/{prefix}", recursive=True, allow_not_found=True))
    return [one.path for one in found if one.type == FileType.File]
