"""Writes all records of a database of engine 2 to standard output: `python -I export_2.py FOLDER TABLE...`.

It runs in an environment of its own that holds surrealdb 2, and so uses nothing else but Python's library. It is given
a copy of the database, since engine 2 changes what it opens, and cuts a log that is damaged.

A line is JSON. The first one names the format, the engine and the schema, and counts the records of every table. Then
comes one line a record, `[table, key, fields]`, in the order of the tables given. Bytes are `{"base64": text}`, a
record's id elsewhere than in its own key is `{"record": [table, key]}`. The last line has the counts again and the
SHA-256 of all lines before it. Exit code 3: what is wrong stands on standard error.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from surrealdb import BlockingEmbeddedSurrealConnection, RecordID

# Rows of one request. A backtest may have 30 MB.
_ROWS = 500
_ROWS_OF_LARGE = {"backtest": 1, "evaluation": 1, "decision": 20}


class _Refused(Exception):
    """The database cannot be exported; the message says why."""


def _ask(database: Any, text: str, parameters: dict[str, Any] | None = None) -> Any:
    answer = database.query_raw(text, parameters or {})
    if "result" not in answer:
        raise _Refused(str(answer.get("error")))
    for statement in answer["result"]:
        if statement["status"] != "OK":
            raise _Refused(str(statement["result"]))
    return answer["result"][-1]["result"]


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, RecordID):
        return {"record": [value.table_name, _plain(value.id)]}
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise _Refused(f"a value of type {type(value).__name__} is in none of this program's tables")


def _documents(database: Any, wanted: list[str]) -> Iterator[Any]:
    tables = _ask(database, "INFO FOR DB")["tables"]
    stored = _ask(database, "SELECT * FROM store:schema") if "store" in tables else []
    if not stored:
        raise _Refused("it has no version of the schema: it is no store of this program, or its log is damaged")
    counts = {}
    for table in sorted(tables):
        counted = _ask(database, f"SELECT count() FROM `{table}` GROUP ALL")
        counts[table] = int(counted[0]["count"]) if counted else 0
    yield {
        "format": "cryptosentinel-former-store",
        "version": 1,
        "engine": version("surrealdb"),
        "schema": stored[0]["version"],
        "identity": stored[0].get("identity"),
        "records": counts,
    }
    for table in wanted:
        if table not in counts:
            continue
        keys = _ask(database, f"SELECT VALUE id FROM `{table}`")
        portion = _ROWS_OF_LARGE.get(table, _ROWS)
        for first in range(0, len(keys), portion):
            asked = keys[first : first + portion]
            rows = _ask(database, "SELECT * FROM $keys", {"keys": asked})
            if len(rows) != len(asked):
                raise _Refused(f"of {len(asked)} records of the table {table} only {len(rows)} can be read")
            for row in rows:
                key = row.pop("id")
                yield [table, _plain(key.id), _plain(row)]


def main(arguments: list[str]) -> int:
    """Write everything; the exit code is 3 where that is not possible."""
    folder, wanted = arguments[0], arguments[1:]
    if not version("surrealdb").startswith("2."):
        print(f"this environment has surrealdb {version('surrealdb')}, not 2", file=sys.stderr)
        return 3
    output, digest, counts = sys.stdout.buffer, hashlib.sha256(), dict[str, int]()
    try:
        with BlockingEmbeddedSurrealConnection(f"surrealkv://{folder}") as database:
            database.use("cryptosentinel", "main")
            for document in _documents(database, wanted):
                if isinstance(document, list):
                    counts[document[0]] = counts.get(document[0], 0) + 1
                line = json.dumps(document, separators=(",", ":")).encode() + b"\n"
                digest.update(line)
                output.write(line)
        output.write(json.dumps({"records": counts, "sha256": digest.hexdigest()}).encode() + b"\n")
        output.flush()
    except _Refused as error:
        print(error, file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
