"""What a trainer published and the leader replaced, since the validation after it had collapsed.

The record of the weights for a step then names the best version instead, and remembers what its trainer had made: a
leader that is killed between a validation and the end of its step validates the same weights again.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from backend.services.files import sha256
from backend.store.records import PublishedRecord

PUT_BACK = "put_back"  # in `PublishedRecord.metrics`: the weights that were replaced


def put_back(record: PublishedRecord, version: str, path: Path, folder: Path) -> PublishedRecord:
    """`record` with the weights in `path`, a file of the run's `folder`, instead of its own."""
    replaced = {"version": record.version, "path": record.path, "checksum": record.checksum}
    return replace(
        record,
        version=version,
        path=str(path.relative_to(folder)),
        checksum=sha256(path),
        metrics={**record.metrics, PUT_BACK: replaced},
    )


def trained(record: PublishedRecord) -> PublishedRecord:
    """The record as the role's trainer wrote it."""
    if PUT_BACK not in record.metrics:
        return record
    told = {key: value for key, value in record.metrics.items() if key != PUT_BACK}
    return replace(record, metrics=told, **record.metrics[PUT_BACK])
