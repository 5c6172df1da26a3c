"""The weights that the roles' trainers publish for each step, as the rollout workers load them.

After a validation that has collapsed, the coordinator writes the best version of every role and puts it in the records
of the next step. A record then remembers the weights that its trainer had published.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from backend.distributed.files.run_files import RunFiles
from backend.distributed.heartbeat import Heartbeat
from backend.store.records import PublishedRecord
from backend.store.sharing.objects import file_sha256
from backend.training.components import TrainingParts
from simulator.errors import RunFailed

_REPLACED = ("replaced_weights", "put_back")  # in `PublishedRecord.metrics`: the present name, and the former one


class PublishedWeights:
    """Loads published weights into the policies of this process and into its engine."""

    def __init__(self, parts: TrainingParts, heartbeat: Heartbeat, files: RunFiles) -> None:
        self._config = parts.config
        self._policies = parts.policies
        self._publisher = parts.publisher
        self._store = parts.recorder.store
        self._run = parts.recorder.run
        self._heartbeat = heartbeat
        self._files = files

    def load(self, step: int) -> list[PublishedRecord]:
        """Wait for the weights that roll out `step` and load them; their records.

        These are the weights of `training.experimental.staleness` steps before, or with `newest_weights` each role's
        newest since then. Raises `RunFailed` for a file that is not what its record says.
        """
        return self._load(self._wait(step))

    def load_newer(self, step: int) -> bool:
        """Load what was published meanwhile of the weights that may roll out `step`, without a wait; whether there was
        any. Raises `RunFailed` as `load` does."""
        there = self._find(step) or ()
        newer = [record for record in there if record.version != self._policies.version(record.role)]
        if newer:
            self._load(newer)
        return bool(newer)

    def load_trained(self, step: int) -> list[PublishedRecord]:
        """As `load`, with the weights as their trainers published them, also where others have replaced them."""
        return self._load([as_trained(record) for record in self._wait(step)])

    def are_replaced(self, step: int) -> bool:
        """Whether weights for `step` were replaced."""
        return any(replaced_weights(record) is not None for record in self._find(step) or ())

    def _wait(self, step: int) -> list[PublishedRecord]:
        return self._heartbeat.wait(step, "for the trainers", lambda: self._find(step))

    def _load(self, records: list[PublishedRecord]) -> list[PublishedRecord]:
        files = {record.role: self._files.fetch(record.path, record.checksum) for record in records}
        self._policies.load_files(files)
        for record in records:
            version = self._policies.version(record.role)
            if version != record.version:
                raise RunFailed(
                    f"{files[record.role]} holds {version}, its record says {record.version}: start that role's "
                    "trainer again"
                )
        self._publisher.publish(files)
        return records

    def _find(self, step: int) -> list[PublishedRecord] | None:
        """Each role's weights for `step`, None while one of them is missing."""
        oldest = max(0, step - self._config.experimental.staleness)
        newest: dict[str, PublishedRecord] = {}
        for number in range(step if self._config.experimental.newest_weights else oldest, oldest - 1, -1):
            for record in self._store.published(self._run, number):
                newest.setdefault(record.role, record)
            if newest.keys() >= set(self._policies.roles):
                return [newest[role] for role in self._policies.roles]
        return None


def with_replaced_weights(record: PublishedRecord, version: str, path: Path, folder: Path) -> PublishedRecord:
    """`record` with the weights in `path`, a file of the run's `folder`, in place of those of its trainer."""
    former = {"version": record.version, "path": record.path, "checksum": record.checksum}
    return replace(
        record,
        version=version,
        path=str(path.relative_to(folder)),
        checksum=file_sha256(path),
        metrics={**record.metrics, _REPLACED[0]: former},
    )


def replaced_weights(record: PublishedRecord) -> Mapping[str, Any] | None:
    """Version, path and checksum of the weights that its trainer published; None where they were not replaced."""
    return next((record.metrics[key] for key in _REPLACED if key in record.metrics), None)


def as_trained(record: PublishedRecord) -> PublishedRecord:
    """The record as the role's trainer wrote it."""
    former = replaced_weights(record)
    if former is None:
        return record
    metrics = {key: value for key, value in record.metrics.items() if key not in _REPLACED}
    return replace(record, metrics=metrics, **former)
