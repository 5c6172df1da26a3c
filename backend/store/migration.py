"""The version of the schema in a database: made, checked, and brought up to date.

A migration is one transaction that begins with a look at the version and ends with the new one. So a process that dies
in the middle leaves the old version, whole, and the next opener starts anew; of two processes that migrate at once, one
finds the work done.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backend.store.connection import Connection
from backend.store.errors import StoreError

SCHEMA_VERSION = 11

_FOLDER = Path(__file__).parent
# By the version that they start from.
_MIGRATIONS = {version: f"migrate_{version}.surql" for version in range(1, SCHEMA_VERSION)}
# Fields of exported records that a migration renamed: version that they are of -> table -> former and present name.
_RENAMED_FIELDS = {2: {"decision": {"story": "document"}}}
_NEW_IDENTITY = "UPDATE store:schema SET identity = <string>rand::uuid::v4() WHERE identity IS NONE RETURN NONE"


def migrate(connection: Connection) -> str:
    """Bring the database to the schema of this program, and return the identity of the store.

    Raises `StoreError` for a version that is newer than this program or unknown to it.
    """
    while (current := _version(connection)) != SCHEMA_VERSION:
        if current is not None and current not in _MIGRATIONS:
            newer = isinstance(current, int) and current > SCHEMA_VERSION
            advice = "open it with a newer program" if newer else "open it with the program that wrote it"
            raise StoreError(
                f"store {connection.name} has version {current} of the schema, this program writes version "
                f"{SCHEMA_VERSION}: {advice}, or give another folder"
            )
        try:
            connection.query(transaction(current))
        except StoreError:
            if _version(connection) == current:
                raise
            # Another process did it first.
    (identity,) = connection.query("SELECT VALUE identity FROM store:schema")
    return str(identity)


def transaction(current: int | None) -> str:
    """The statements from version `current` to the next one; from None, an empty database, to the newest."""
    if current is None:
        statements, reached = (_FOLDER / "schema.surql").read_text(encoding="utf-8"), SCHEMA_VERSION
        check = ""  # DEFINE fails where something is defined already
    else:
        statements, reached = (_FOLDER / _MIGRATIONS[current]).read_text(encoding="utf-8"), current + 1
        check = (
            f"IF (SELECT VALUE version FROM ONLY store:schema) != {current} {{ THROW 'migrated by another process' }};"
        )
    written = f"UPSERT store:schema SET version = {reached} RETURN NONE;\n{_NEW_IDENTITY};"
    return f"BEGIN;\n{check}\n{statements}\n{written}\nCOMMIT"


def upgraded_row(table: str, row: Mapping[str, Any], version: int) -> dict[str, Any]:
    """A record of `table` as this program knows it, from an export of `version` of the schema."""
    names: dict[str, str] = {}
    for renamed_in, tables in _RENAMED_FIELDS.items():
        if version <= renamed_in:
            names |= tables.get(table, {})
    return {names.get(name, name): value for name, value in row.items()}


def _version(connection: Connection) -> Any:
    """The version of the schema, None for an empty database. Raises `StoreError` if it holds something else."""
    tables = connection.query("INFO FOR DB")["tables"]
    if not tables:
        return None
    rows = connection.query("SELECT VALUE version FROM store:schema") if "store" in tables else []
    if not rows:
        raise StoreError(
            f"store {connection.name} has no version of the schema: it holds something else, or a part of a store; "
            "give another folder"
        )
    return rows[0]
