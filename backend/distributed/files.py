"""The files that the actors of a run exchange: weights, checkpoints, and the base model that the run has made.

They lie in the run's folder where all machines share it, and there nothing has to be sent. Where machines share no
folder, each actor has a copy of its own, and what others need passes through an fsspec URL (`--files`). A file arrives
under another name and takes its own one once its SHA-256 is the expected one, so neither a killed actor nor a broken
connection leaves half a file.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path, PurePosixPath
from typing import Any

from simulator.errors import RunFailed, UserError
from simulator.files import file_sha256
from simulator.folders import path_inside

SERVICES = "services"  # in the run's folder: what trainers and the driver write
_ARRIVING = ".arriving"


class RunFiles:
    """The files of a run in this process's `folder`; `url` is the fsspec URL of the run's folder that all machines
    reach, or empty where they share `folder` itself."""

    def __init__(self, folder: Path, url: str = "") -> None:
        self.folder, self.url = folder, url
        self._files: Any = None
        if url:
            from fsspec.core import url_to_fs

            self._files, self._root = url_to_fs(url)

    def send(self, name: str) -> None:
        """Bring the file `name` of the folder to where others find it."""
        if self._files is None:
            return
        target = f"{self._root}/{name}"
        try:
            self._files.makedirs(str(PurePosixPath(target).parent), exist_ok=True)
            self._files.put_file(str(self.folder / name), target)
        except OSError as error:
            raise RunFailed(f"{name} of the run cannot be written to {self._root} ({error}): see --files") from error

    def fetch(self, name: str, checksum: str) -> Path:
        """The file `name`, which another process has sent, `checksum` being its SHA-256. Raises `RunFailed`."""
        path = path_inside(self.folder, name, "a record of the run")
        if self._files is not None and not (path.is_file() and file_sha256(path) == checksum):
            self._bring(name, path)
        if not path.is_file() or file_sha256(path) != checksum:
            raise RunFailed(f"{path} is missing or damaged: its SHA-256 is not the one in its record")
        return path

    def send_folder(self, name: str) -> None:
        """Bring a folder to where others find it, as one archive: whole or not at all."""
        if self._files is None:
            return
        archive = self.folder / f"{name}.tar"
        with tarfile.open(archive, "w") as tar:
            tar.add(self.folder / name, ".")
        self.send(f"{name}.tar")
        archive.unlink()

    def fetch_folder(self, name: str, anew: bool = False) -> None:
        """Bring a folder that another process has sent, if there is one; with `again` also where an older one is."""
        place = self.folder / name
        if self._files is None or (place.is_dir() and not anew) or not self._files.exists(f"{self._root}/{name}.tar"):
            return
        archive = self._bring(f"{name}.tar", self.folder / f"{name}.tar")
        partial = place.with_name(f"{place.name}{_ARRIVING}")
        shutil.rmtree(partial, ignore_errors=True)
        with tarfile.open(archive) as tar:
            tar.extractall(partial, filter="data")
        archive.unlink()
        shutil.rmtree(place, ignore_errors=True)
        os.replace(partial, place)

    def _bring(self, name: str, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        arriving = path.with_name(f"{path.name}{_ARRIVING}")
        try:
            self._files.get_file(f"{self._root}/{name}", str(arriving))
        except OSError as error:
            raise RunFailed(f"{name} of the run cannot be read from {self._root} ({error}): see --files") from error
        os.replace(arriving, path)
        return path


def check_files_url(url: str) -> None:
    """Raise `UserError` for a URL that fsspec cannot use here."""
    if not url:
        return
    from fsspec.core import url_to_fs

    try:
        url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise UserError(
            f"--files {url} cannot be used ({error}): give a URL that fsspec knows, as s3://BUCKET/runs"
        ) from error
