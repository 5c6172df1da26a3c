"""What the processes of a run are doing, how far each is behind, and what waits for it; from the store alone.

Ages are by the database's clock. A process is `silent` if its last heartbeat is `DEAD_AFTER` seconds old and it has not
reported that it ends: it is dead, or cut off from the store.
"""

from __future__ import annotations

from dataclasses import dataclass

from backend.config.training import TrainingConfig
from backend.distributed.heartbeat import COORDINATOR, DEAD_AFTER
from backend.store.records import ServiceRecord
from backend.store.run_record import stored_config
from backend.store.store import Store


@dataclass(frozen=True)
class ProcessStatus:
    """One process of a run.

    state    as it reports itself (starting, waiting, working, stopped, failed), or silent
    step     the step that it is at, None before its first
    lag      rollout: steps from the newest weights that all roles have published to those of its step, never below 0;
             trainer: steps that it has not learnt of those begun
    queue    rollout: shards of its step that are not complete, whoever rolls them out; trainer: complete steps that it
             has not learnt yet
    weights  the version that a trainer published last, None for others
    heartbeat_age  seconds since its last heartbeat
    message  what it reports that it does
    """

    name: str
    kind: str
    role: str | None
    state: str
    step: int | None
    lag: int | None
    queue: int | None
    weights: str | None
    heartbeat_age: float
    code: str
    process: str
    message: str | None


@dataclass(frozen=True)
class RunProcesses:
    """The processes of a run. `step` is the coordinator's, `complete` how many steps are rolled out to the end,
    `published` the newest step for which all trainers have published weights; None where there is none yet."""

    run: str
    status: str
    step: int | None
    complete: int
    published: int | None
    processes: tuple[ProcessStatus, ...]


def processes_of(store: Store, run: str) -> RunProcesses:
    """The processes of a run, in order of their names. Raises `StoreError` if there is no such run."""
    record, services, now = store.run(run), store.services(run), store.now()
    config = stored_config(record)[0].training
    coordinator = next((service.step for service in services if service.name == COORDINATOR), None)
    newest = {record.role: record for record in store.published(run)}  # in order of step, so the last one stays
    roles = {service.role for service in services if service.kind == "trainer" and service.role is not None}
    everywhere = min((newest[role].step for role in roles), default=None) if roles <= newest.keys() else None
    complete = _complete(store, run, coordinator, config)

    def status_of(service: ServiceRecord) -> ProcessStatus:
        age = (now - service.updated_at) / 1000
        over = service.state in ("stopped", "failed")
        lag: int | None = None
        queue: int | None = None
        if service.kind == "trainer":
            learnt = newest[service.role].step if service.role in newest else 0
            lag = max(0, (coordinator + 1 if coordinator is not None else 0) - learnt)
            queue = max(0, complete - learnt)
        elif service.step is not None:
            lag = max(0, (everywhere or 0) - service.step)
            queue = config.shards - len(
                {marker.shard for marker in store.shards(run, service.step)} & set(range(config.shards))
            )
        return ProcessStatus(
            name=service.name,
            kind=service.kind,
            role=service.role,
            state=service.state if over or age < DEAD_AFTER else "silent",
            step=service.step,
            lag=lag,
            queue=queue,
            weights=newest[service.role].version if service.role is not None and service.role in newest else None,
            heartbeat_age=age,
            code=service.code_version,
            process=service.process,
            message=service.message,
        )

    return RunProcesses(run, record.status, coordinator, complete, everywhere, tuple(map(status_of, services)))


def _complete(store: Store, run: str, coordinator: int | None, config: TrainingConfig) -> int:
    """How many steps are complete: all before the coordinator's, and that one if all its markers are there."""
    if coordinator is None:
        return 0
    markers = {marker.shard for marker in store.shards(run, coordinator)}
    return coordinator + (set(range(config.shards)) <= markers)
