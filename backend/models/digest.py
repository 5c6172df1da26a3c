"""What a team is, in one number: the SHA-256 of its files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from backend.models.manifest import MANIFEST, read_manifest
from simulator.errors import UserError

_PIECE = 2**20  # bytes read at a time


def team_digest(folder: Path, base: str = "") -> str:
    """SHA-256 of all files that decide what the team in `folder` answers; `base` is the base model that the user names.

    Raises `UserError` for a folder that holds no team, and for files that cannot be read.
    """
    # Only now: it needs the libraries of models, which who has no such team does without.
    from backend.models.registry import base_of_team

    manifest = read_manifest(folder)
    digest = hashlib.sha256()
    try:
        parts = [("manifest", folder / MANIFEST), ("base", base_of_team(folder, manifest, base))]
        weights = manifest.weights()
        if weights is not None:
            parts.append(("weights", folder / weights))
        for part, place in parts:
            for name, path in _files(place):
                digest.update(f"{part}/{name}\0{path.stat().st_size}\0".encode())
                with path.open("rb") as file:
                    while piece := file.read(_PIECE):
                        digest.update(piece)
    except OSError as error:
        raise UserError(f"the team in {folder} cannot be read ({error}): give one whose files are whole") from error
    return digest.hexdigest()


def _files(place: Path) -> Iterator[tuple[str, Path]]:
    """The files in a folder, or a file by itself, each with its name, in the order of names."""
    if place.is_file():
        yield place.name, place
        return
    for path in sorted(place.rglob("*")):
        if path.is_file():
            yield path.relative_to(place).as_posix(), path
