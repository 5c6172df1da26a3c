"""The schema of the store: one version, made in an empty database and refused in any other.

The version stands in the database and, for a store in a folder, in a file beside it, so that a store of another schema
is refused before the engine touches a file.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import Any

from backend.store.errors import StoreError
from backend.store.manifest import DATABASE_FOLDER, SCHEMA_FILE
from backend.store.records import ALL_KINDS

SCHEMA_VERSION = 1

_TABLES = ("store", "lease", *(kind.table for kind in ALL_KINDS))
# One request, so that a store opens with few of them: it defines the tables of a new database, which has none, and
# returns the version and the identity. The fields of records are checked by `records.py` and are not known here.
PREPARE = (
    "IF !record::exists(store:schema) AND object::is_empty((INFO FOR DB).tables) {"
    + "".join(f"DEFINE TABLE IF NOT EXISTS {table} TYPE NORMAL SCHEMALESS;" for table in _TABLES)
    + "INSERT IGNORE INTO store { id: store:schema, version: $version, identity: $identity } };"
    "RETURN IF record::exists(store:schema) { SELECT version, identity FROM ONLY store:schema }"
)


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


def new_store() -> dict[str, Any]:
    """The parameters of `PREPARE`: a new store has this version and this identity, which tells it from any other."""
    return {"version": SCHEMA_VERSION, "identity": str(uuid.uuid4())}


def identity_in(found: Any, store: str) -> str:
    """The identity in the answer to `PREPARE`. Raises `StoreError` for a database of another schema, or of something
    else; `store` is how the message calls it."""
    if not found or found["version"] != SCHEMA_VERSION:
        raise _other_schema(store, str(found["version"]) if found else "unknown")
    return str(found["identity"])


def _other_schema(store: str, found: str) -> StoreError:
    return StoreError(
        f"store {store} has schema {found!r} and this program uses schema {SCHEMA_VERSION}: open it with the program "
        "that wrote it, or give another folder; nothing was changed"
    )
