"""Stores as former versions of the schema wrote them."""

from __future__ import annotations

from pathlib import Path

from surrealdb import BlockingEmbeddedSurrealConnection

from backend.store.connection import DATABASE, NAMESPACE, folder_url
from tests.backend.store.old_records import OldDatabase


def write_old_store(folder: Path, version: int, steps: int = 2, more: bool = False) -> None:
    """A run with `steps` steps of two conversations, one delegating the other, and two decisions, as `version` left
    it; with `more`, all else that belongs to the steps."""
    folder.mkdir(parents=True, exist_ok=True)
    with BlockingEmbeddedSurrealConnection(folder_url(folder)) as database:
        database.use(NAMESPACE, DATABASE)
        old = OldDatabase(database, version)
        old.define()
        old.fill(steps)
        if more:
            old.fill_more(steps)
