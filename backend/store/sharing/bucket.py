"""Files of runs in a bucket of an S3-compatible object store, for a store whose files do not lie beside its database.

So what is large goes past the process that serves the database, and a server of SurrealDB, which takes no files, has a
place for them. The client is that of pyarrow, which the program has anyway. The store's record says which bucket it is
(`store bucket`); where it is served and the keys to it are in the environment of each process alone.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import IO, TYPE_CHECKING, TypeVar

from backend.store.errors import StoreDiskError, StoreError
from backend.store.records import valid_run_id
from backend.store.sharing.objects import FORGOTTEN_AFTER, check_object, check_upload

if TYPE_CHECKING:  # listing runs needs no client
    from pyarrow.fs import S3FileSystem
    from pyarrow.lib import NativeFile

KEY_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
TOKEN_VARIABLE, REGION_VARIABLE, ENDPOINT_VARIABLE = "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_ENDPOINT_URL"
_URL = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])((?:/[A-Za-z0-9_.=-]{1,100})*)/?")
_ANSWER_BYTES = 8 * 2**20  # of a file in one request
_IN_MEMORY = 32 * 2**20  # bytes of a file on its way; of a larger one they wait in a temporary file
_ATTEMPTS = 3  # of the client, at a request that the other side does not answer
_TIMEOUT = 10.0  # seconds of one of them
_PAUSE = 1.0  # seconds between two tries to reach the bucket
_ERROR = re.compile(r"AWS Error ([A-Z_]+)")  # what pyarrow's message says of the other side's answer
_REFUSED = ("ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "INVALID_CLIENT_TOKEN_ID", "SIGNATURE_DOES_NOT_MATCH")

AskedT = TypeVar("AskedT")


class BucketObjects:
    """An `ObjectStore` in the bucket `url`, as `s3://BUCKET` or `s3://BUCKET/PREFIX`. A bucket that does not answer is
    tried again for `patience` seconds. A file is in the bucket whole or not at all.

    Raises `StoreError` for an address that is none, and where the environment has no keys."""

    def __init__(self, url: str, patience: float) -> None:
        self.url = bucket_url(url)
        self._path = self.url.removeprefix("s3://")
        self._bucket = self._path.partition("/")[0]
        self._patience = patience
        self._lock = threading.RLock()  # of the uploads, and of the one file that is being read
        self._uploads: dict[str, tuple[IO[bytes], float]] = {}  # by name, with the time of its last piece
        self._reading: tuple[str, NativeFile] | None = None
        missing = [name for name in KEY_VARIABLES if not os.environ.get(name)]
        if missing:
            raise StoreError(
                f"the files of runs lie in {self.url}, whose keys are read from the environment alone: set "
                f"{' and '.join(missing)}, and {ENDPOINT_VARIABLE} where it is not Amazon's"
            )
        self._client = self._connected()

    def offered(self) -> bool:
        """See `ObjectStore`."""
        return True

    def check(self) -> None:
        """Raise `StoreError` where the bucket cannot be reached or used with these keys."""
        from pyarrow.fs import FileType

        if self._asked(lambda: self._client.get_file_info(self._bucket)).type == FileType.NotFound:
            raise self._no_bucket()
        probe = f"{self._path}/{secret_name()}"

        def write() -> None:
            with self._client.open_output_stream(probe) as stream:
                stream.write(b"cryptosentinel")
            self._client.delete_file(probe)

        self._asked(write)

    def write(self, run: str, upload: str, offset: int, content: bytes) -> None:
        """See `ObjectStore`. Nothing is sent before all of it is here: what is in the bucket has its whole name."""
        check_upload(run, upload)
        with self._lock:
            self._forget_uploads()
            if upload not in self._uploads:
                self._uploads[upload] = tempfile.SpooledTemporaryFile(_IN_MEMORY), 0.0  # noqa: SIM115  # `finish` closes
            file, _ = self._uploads[upload]
            try:
                file.seek(offset)
                file.write(content)
                file.truncate()
            except OSError as error:
                raise StoreDiskError(
                    f"a file on its way to {self.url} cannot wait in the temporary folder ({error.strerror}): free "
                    "some space there, or set TMPDIR to a folder that has some"
                ) from error
            self._uploads[upload] = file, time.monotonic()

    def finish(self, run: str, upload: str, part: str, checksum: str) -> bool:
        """See `ObjectStore`."""
        key = self._key(run, part, checksum)
        check_upload(run, upload)
        with self._lock:
            arrived = self._uploads.pop(upload, None)
        if arrived is None:
            return self._size(key) is not None
        with arrived[0] as file:
            file.seek(0)
            digest = hashlib.sha256()
            while piece := file.read(_ANSWER_BYTES):
                digest.update(piece)
            if digest.hexdigest() != checksum:
                return False
            size = file.tell()
            if self._size(key) != size:
                self._asked(lambda: self._send(file, key))
        return True

    def read(self, run: str, part: str, checksum: str, offset: int) -> bytes:
        """See `ObjectStore`."""
        key = self._key(run, part, checksum)

        def read() -> bytes:
            with self._lock:
                if self._reading is None or self._reading[0] != key:
                    self._reading = key, self._client.open_input_file(key)
                file = self._reading[1]
                if offset >= file.size():
                    self._reading = None
                    return b""
                return bytes(file.read_at(_ANSWER_BYTES, offset))

        try:
            return self._asked(read)
        except FileNotFoundError:
            raise StoreError(
                f"a file of run {run} is not in {self.url} any more ({part}, {checksum[:12]}): it was replaced "
                "meanwhile, or somebody has removed it"
            ) from None

    def remove(self, run: str, part: str, checksums: list[str]) -> None:
        """See `ObjectStore`."""
        for key in [self._key(run, part, checksum) for checksum in checksums]:
            self._gone(partial(self._client.delete_file, key))

    def remove_run(self, run: str) -> None:
        """See `ObjectStore`."""
        self._gone(lambda: self._client.delete_dir(f"{self._path}/{valid_run_id(run)}"))

    def _gone(self, remove: Callable[[], None]) -> None:
        def removed() -> None:
            try:
                remove()
            except FileNotFoundError:
                return

        self._asked(removed)

    def _key(self, run: str, part: str, checksum: str) -> str:
        check_object(part, checksum)
        return f"{self._path}/{valid_run_id(run)}/{part}/{checksum}"

    def _size(self, key: str) -> int | None:
        """Bytes of what is in the bucket by this key; None where there is nothing."""
        size = self._asked(lambda: self._client.get_file_info(key)).size
        return None if size is None else int(size)

    def _send(self, file: IO[bytes], key: str) -> None:
        file.seek(0)
        with self._client.open_output_stream(key) as stream:
            while piece := file.read(_ANSWER_BYTES):
                stream.write(piece)

    def _forget_uploads(self) -> None:
        """Close what was begun long ago and nobody went on with."""
        oldest = time.monotonic() - FORGOTTEN_AFTER
        for upload in [name for name, (_, last) in self._uploads.items() if last < oldest]:
            self._uploads.pop(upload)[0].close()

    def _connected(self) -> S3FileSystem:
        from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

        scheme, _, endpoint = os.environ.get(ENDPOINT_VARIABLE, "").partition("://")
        if scheme and (scheme not in ("http", "https") or not endpoint):
            raise StoreError(
                f"{ENDPOINT_VARIABLE} is no address of a server: write it as https://HOST or http://HOST:PORT"
            )
        key, secret = (os.environ[name] for name in KEY_VARIABLES)
        return S3FileSystem(
            access_key=key,
            secret_key=secret,
            session_token=os.environ.get(TOKEN_VARIABLE),
            region=os.environ.get(REGION_VARIABLE, "us-east-1"),
            scheme=scheme or "https",
            endpoint_override=endpoint.rstrip("/") or None,
            connect_timeout=_TIMEOUT,
            request_timeout=_TIMEOUT,
            retry_strategy=AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
            allow_delayed_open=True,  # one request for a small file in place of three
        )

    def _asked(self, ask: Callable[[], AskedT]) -> AskedT:
        """What `ask` answers. Raises `StoreError` for what the other side refuses, and where it does not answer;
        `FileNotFoundError` for a key that is not there. No message of the client's is passed on: it may hold anything.
        """
        until = time.monotonic() + self._patience
        while True:
            try:
                return ask()
            except FileNotFoundError:
                raise
            except OSError as error:
                self._reading = None
                answer = match[1] if (match := _ERROR.search(str(error))) else "no answer that the client knows"
                if answer == "NO_SUCH_BUCKET":
                    raise self._no_bucket() from error
                if answer in _REFUSED or "HTTP status 403" in str(error):
                    raise StoreError(
                        f"bucket {self._bucket} at {self._place} does not take the keys in "
                        f"{' and '.join(KEY_VARIABLES)} ({answer}): set those of an account that may read, write and "
                        "delete there"
                    ) from error
                if time.monotonic() > until:
                    raise StoreError(
                        f"bucket {self._bucket} at {self._place} has not answered for {self._patience:.0f} seconds "
                        f"({answer}): see whether {ENDPOINT_VARIABLE} is right and the server runs, then start again"
                    ) from error
                time.sleep(min(_PAUSE, self._patience))

    @property
    def _place(self) -> str:
        """Where the bucket is served, in words."""
        return os.environ.get(ENDPOINT_VARIABLE) or "Amazon's S3"

    def _no_bucket(self) -> StoreError:
        return StoreError(f"there is no bucket {self._bucket} at {self._place}: make it there, or name another one")


def bucket_url(url: str) -> str:
    """The address of a bucket without a slash at its end. Raises `StoreError` for one that is none."""
    match = _URL.fullmatch(url)
    if match is None or "/.." in url:
        raise StoreError(f"'{url[:200]}' is no bucket: write it as s3://BUCKET or s3://BUCKET/PREFIX")
    return f"s3://{match[1]}{match[2]}"


def secret_name() -> str:
    """A name that nothing else in the bucket has."""
    return f"probe-{os.urandom(8).hex()}"
