"""The weights that the roles' trainers publish for each step, as the rollout workers load them."""

from __future__ import annotations

from backend.distributed.files.run_files import RunFiles
from backend.distributed.heartbeat import Heartbeat
from backend.store.records import PublishedRecord
from backend.training.components import TrainingParts
from simulator.errors import RunFailed


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

        These are the weights of `training.staleness` steps before. Raises `RunFailed` for a file that is not what its
        record says.
        """
        return self._load(self._wait(step))

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
        oldest = max(0, step - self._config.staleness)
        there = {record.role: record for record in self._store.published(self._run, oldest)}
        return [there[role] for role in self._policies.roles] if there.keys() >= set(self._policies.roles) else None
