"""Rollouts with the weights of some steps before, in one process, as `train --launch` has them with
`training.staleness`: what that costs in learning can be measured without several machines.

The age is exact: step n is rolled out with the weights that began step n - staleness, and the first steps with those of
the start. The objective corrects for it by importance weights (AReaL, arXiv 2505.24298).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from backend.policies.role_policies import RolePolicies
from backend.policies.weight_sync import Publisher
from backend.training.checkpoints import KEPT, room_for


class OlderWeights:
    """The weights that began the last steps, as files in `folder`, so that a resumed run has them too."""

    def __init__(self, policies: RolePolicies, publisher: Publisher, folder: Path, staleness: int) -> None:
        """`staleness` is the age in steps of the weights that roll out; with 0 nothing is kept."""
        self._policies = policies
        self._publisher = publisher
        self._folder = folder
        self._staleness = staleness

    def keep(self, step: int) -> None:
        """Write the present weights as those that begin `step`, and drop what no checkpoint can ask for any more.
        Raises `RunFailed` where the disk is full."""
        if not self._staleness:
            return
        target = self._of(step)
        partial = target.with_suffix(".tmp")
        shutil.rmtree(partial, ignore_errors=True)
        with room_for(partial):
            partial.mkdir(parents=True)
            self._policies.save(partial)
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
        shutil.rmtree(self._of(step - self._staleness - KEPT), ignore_errors=True)

    @contextmanager
    def answering(self, step: int) -> Iterator[None]:
        """For the time of a block the engine answers with the weights for the rollouts of `step`, and the policies are
        these. Raises `UserError` where their files are gone or of another model."""
        before = max(0, step - self._staleness)
        if before == step:
            yield
            return
        roles = self._policies.roles
        present = {role: self._policies.role_state(role) for role in roles}
        self._policies.load(self._of(before))
        self._publisher.publish(roles)
        try:
            yield
        finally:
            for role, state in present.items():
                self._policies.load_role_state(role, state)
            self._publisher.publish(roles)

    def metrics(self, step: int, roles: Iterable[str]) -> dict[str, float]:
        """`{role}/staleness`: the age of the weights that roll out `step`; nothing where it is always 0."""
        if not self._staleness:
            return {}
        return {f"{role}/staleness": float(min(step, self._staleness)) for role in roles}

    def _of(self, step: int) -> Path:
        return self._folder / f"step-{step:06d}"
