"""The weights that the roles' trainers publish for each step, as rollout workers and the driver load them."""

from __future__ import annotations

from backend.distributed.files import RunFiles
from backend.policies.adapters import Publisher
from backend.policies.role_policies import RolePolicies
from backend.store.records import PublishedRecord
from backend.store.store import Store
from simulator.errors import RunFailed


class PublishedWeights:
    """Loads published weights into the policies of this process and into its engine."""

    def __init__(self, store: Store, run: str, policies: RolePolicies, publisher: Publisher, files: RunFiles) -> None:
        self._store = store
        self._run = run
        self._policies = policies
        self._publisher = publisher
        self._files = files
        self._loaded = -1  # the step whose weights the engine has

    def load(self, step: int) -> list[PublishedRecord]:
        """Load the weights that roll out `step`, unless they are loaded; their records, one a role.

        Raises `RunFailed` where a trainer has not published, and for a file that is not the one in its record.
        """
        records = {record.role: record for record in self._store.published(self._run, step)}
        missing = [role for role in self._policies.roles if role not in records]
        if missing:
            raise RunFailed(f"the trainer of {missing[0]} has not published weights for step {step}")
        if self._loaded != step:
            roles = self._policies.roles
            files = {role: self._files.fetch(records[role].path, records[role].checksum) for role in roles}
            self._policies.load_files(files)
            self._publisher.publish(roles)
            self._loaded = step
        return [records[role] for role in self._policies.roles]
