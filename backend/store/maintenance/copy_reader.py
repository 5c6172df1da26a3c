"""The process that takes over a copy of a store's files: `python -m backend.store.maintenance.copy_reader FOLDER`.

It makes the copy a store of its own, reads every record of it and compares the files of runs, in memory that ends with
it. On standard output is a JSON document a line: `done` and `total` records, at the end `records` by table, or `error`.
It ends when its standard input does, which is a pipe from who started it: one that outlived a killed backup would write
into the folder of the next.
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
from collections import Counter
from pathlib import Path

from backend.store.connection import Connection
from backend.store.maintenance.copying import WRITTEN_MEANWHILE, all_counted, released
from backend.store.maintenance.object_copy import verify_own_files
from backend.store.maintenance.pages import read_pages
from backend.store.store import Store
from simulator.errors import UserError


def read_copy() -> None:
    """Read the store in the folder that is the only argument."""
    if select.select([sys.stdin], [], [], 0.0)[0]:  # nothing is ever sent: it has ended
        return
    threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        with Store.open(Path(sys.argv[1]), exclusive=True) as copy:
            _become_own(copy.connection)
            records = _read(copy)
            verify_own_files(copy)
        _say(records=dict(records))
    except UserError as error:
        _say(error=str(error))


def _end_with_input() -> None:
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


def _become_own(connection: Connection) -> None:
    """Who was connected to the original must not go on here, and nobody is at work on a run of the copy."""
    connection.query(
        "BEGIN; UPDATE store:schema SET identity = <string>rand::uuid::v4() RETURN NONE; DELETE lease RETURN NONE; "
        "UPDATE run SET status = 'interrupted', message = $message WHERE status = 'running' RETURN NONE; COMMIT",
        {"message": WRITTEN_MEANWHILE},
    )
    (identity,) = connection.query("SELECT VALUE identity FROM store:schema")
    connection.remember(str(identity))


def _read(copy: Store) -> Counter[str]:
    by_run = all_counted(copy)
    total, done, read = sum(counts.total() for counts in by_run.values()), 0, 0
    for run in by_run:
        for _, content in read_pages(copy, run):
            read = released(copy, read + len(content))
        done += by_run[run].total()
        _say(done=done, total=total)
    return sum(by_run.values(), Counter[str]())


def _say(**document: object) -> None:
    print(json.dumps(document), flush=True)


if __name__ == "__main__":
    read_copy()
