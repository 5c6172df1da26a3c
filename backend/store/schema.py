"""The schema of the store: one version, made in an empty database and refused in any other.

The version stands in the database and, for a store in a folder, in a file beside it, so that a store of another schema
is refused before the engine touches a file.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Protocol

from backend.store.errors import StoreError
from backend.store.manifest import DATABASE_FOLDER, SCHEMA_FILE

SCHEMA_VERSION = 1

_SCHEMA = Path(__file__).parent / "schema.surql"
_STORE = "UPSERT store:schema SET version = $version, identity = <string>rand::uuid::v4() RETURN NONE"


class _Database(Protocol):
    """A `Connection`, which imports this module."""

    name: str

    def query(self, text: str, parameters: dict[str, Any] | None = None) -> Any:
        """Result of the last statement."""


def check_version(folder: Path) -> None:
    """Raise `StoreError` where the database in `folder` has another schema. Reads one file and changes nothing."""
    database = folder / DATABASE_FOLDER
    if not database.exists():
        return
    try:
        found = (database / SCHEMA_FILE).read_bytes()[:20].decode(errors="replace").strip()
    except OSError:
        found = "unknown"
    if found != str(SCHEMA_VERSION):
        raise _other_schema(str(folder), found)


def make_database_folder(folder: Path) -> None:
    """Make the folder of a new database, with the version in it from the first moment. The caller holds `folder`."""
    made = Path(tempfile.mkdtemp(prefix=".new-", dir=folder))
    try:
        (made / SCHEMA_FILE).write_text(f"{SCHEMA_VERSION}\n", encoding="utf-8")
        os.rename(made, folder / DATABASE_FOLDER)
    except OSError as error:
        shutil.rmtree(made, ignore_errors=True)
        raise StoreError(f"store {folder} cannot be made ({error.strerror}): free some space") from error


def prepare_schema(connection: _Database) -> str:
    """Define the schema in an empty database, and return the identity of the store. Raises `StoreError` for a database
    of another schema, or of something else."""
    if not connection.query("INFO FOR DB")["tables"]:
        statements = _SCHEMA.read_text(encoding="utf-8")
        try:
            connection.query(f"BEGIN;\n{statements}\n{_STORE};\nCOMMIT", {"version": SCHEMA_VERSION})
        except StoreError:
            if not connection.query("INFO FOR DB")["tables"]:  # else another program did it first
                raise
    found: Any = None
    if "store" in connection.query("INFO FOR DB")["tables"]:
        found = next(iter(connection.query("SELECT version, identity FROM store:schema")), None)
    if found is None or found["version"] != SCHEMA_VERSION:
        raise _other_schema(connection.name, "unknown" if found is None else str(found["version"]))
    return str(found["identity"])


def _other_schema(store: str, found: str) -> StoreError:
    return StoreError(
        f"store {store} has schema {found!r} and this program uses schema {SCHEMA_VERSION}: open it with the program "
        "that wrote it, or give another folder; nothing was changed"
    )
