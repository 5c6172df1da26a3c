"""A service of a training as a Ray actor: a rollout worker, or the trainer of one role (arXiv 2511.13288, section 4.3).

Ray starts it, gives it its CPUs and GPUs, keeps its log, starts it again where its process or its machine dies, and
repeats the call that it was at. Ray carries which step and which shard are next, and nothing that is learned from:
rollouts, rewards and statistics pass through the store, weights as files.

Each kind of record has one writer. The records of a shard are written in one transaction that fails where the shard is
there, and the record of a role's weights for a step likewise. So of an actor that is thought dead, as on a machine that
was cut off, and the one in its place, one writes a shard or a step's weights, whole, and the other changes nothing. The
run itself is led by the driver, which holds its lease.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from backend.config.schema import Config
from backend.distributed.files import RunFiles
from backend.distributed.role_trainer import RoleTrainerService
from backend.distributed.worker import RolloutWorker
from backend.models.registry import START
from backend.store.run_record import code_version
from backend.store.store import Store
from backend.training.start import NANO, base_of
from simulator.errors import UserError


@dataclass(frozen=True)
class ServicePlace:
    """What an actor must know to work for a run.

    `store` is the address of the store, `folder` the run's folder and `working` the working directory of the driver,
    `url` that of `RunFiles`, `code` the driver's version of this program, and `token` what lies in the run's folder if
    it is the driver's. No secret is here, as Ray keeps it: the store's account comes from each machine's environment.
    """

    config: Config
    store: str
    run: str
    folder: Path
    working: Path
    url: str
    code: str
    token: str

    def token_path(self) -> Path:
        """The file by which an actor sees that it has the driver's folder."""
        return self.folder / "services" / "ray.token"

    def require_same(self) -> None:
        """Raise `UserError` on a machine with other code, or without the run's folder where nothing else is given."""
        host = socket.gethostname()
        if code_version() != self.code:
            raise UserError(
                f"machine {host} of the Ray cluster has version {code_version()} of this program, and here it is "
                f"{self.code}: install the same on all of them, and start Ray there again"
            )
        if self.url:
            return
        try:
            shared = self.token_path().read_text() == self.token
        except OSError:
            shared = False
        if not shared:
            raise UserError(
                f"machine {host} of the Ray cluster does not share the folder {self.folder}: give --runs a folder that "
                "all machines share, or --files an fsspec URL that all of them reach"
            )

    def files(self, name: str) -> RunFiles:
        """The run's files for the service `name`: where no folder is shared, copies in this user's cache."""
        if not self.url:
            return RunFiles(self.folder)
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return RunFiles(cache / "cryptosentinel" / "ray" / self.run / name, self.url)


class ServiceActor:
    """The actor. It builds what it works with when it is first called: Ray hands on what is raised there as it is."""

    def __init__(self, place: ServicePlace, name: str, role: str | None) -> None:
        self._place, self._name, self._role = place, name, role

    def call(self, method: str, *arguments: Any) -> Any:
        """The answer of the service's method of that name."""
        return getattr(self._service, method)(*arguments)

    def ready(self) -> int:
        """The id of the process, once the service is built."""
        assert self._service is not None
        return os.getpid()

    @cached_property
    def _service(self) -> RolloutWorker | RoleTrainerService:
        place = self._place
        place.require_same()
        if place.working.is_dir():
            os.chdir(place.working)  # paths of the configuration are relative to it
        return open_service(place, self._name, self._role, Store.open(place.store))


def open_service(place: ServicePlace, name: str, role: str | None, store: Store) -> RolloutWorker | RoleTrainerService:
    """The trainer of `role`, or a rollout worker. Raises `UserError` for a base model that is not here, and for other
    market data than the run's."""
    from backend.builders.market import load_market
    from backend.training.rl_job import training_parts

    config, run, files = place.config, place.run, place.files(name)
    for part in (NANO, START):
        files.fetch_folder(part)
    base = base_of(config.training, files.folder)
    if not base.is_dir():
        raise UserError(f"the base model {base} is not on machine {socket.gethostname()}: put it there")
    if role is not None:
        return RoleTrainerService(config, base, role, store, run, files)
    market = load_market(config.market, config.costs)
    if store.run(run).data_hash != market.content_hash:
        raise UserError(
            f"run {run} is trained on other data than {market.source} on machine {socket.gethostname()}: give it the "
            "same files"
        )
    parts = training_parts(config, market, store, run, files.folder, base, files.folder / "services" / name)
    return RolloutWorker(parts, files)
