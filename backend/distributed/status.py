"""What the processes of a run are doing, how far each is behind, and what waits for it; from the store alone.

Ages are by the database's clock. A process is `silent` if it was not heard of for `SILENT` seconds without having said
that it ends: it is dead, or cut off from the store.
"""

from __future__ import annotations

from dataclasses import dataclass

from backend.config.load import config_from_dict
from backend.config.training import TrainingConfig
from backend.distributed.heartbeat import LEADER, SILENT
from backend.distributed.step_data import closing_shard
from backend.store.records import ServiceRecord
from backend.store.store import Store


@dataclass(frozen=True)
class ProcessStatus:
    """One process of a run.

    state    as it says itself (starting, waiting, working, stopped, failed), or silent
    step     the step that it is at, None before its first
    lag      rollout: steps from the newest weights that all roles have published to those of its step, never below 0;
             trainer: steps that it has not learnt of those begun
    queue    rollout: shards of its step that are not complete, whoever rolls them out; trainer: complete steps that it
             has not learnt yet
    weights  the version that a trainer published last, None for others
    heard    seconds since its last sign of life
    """

    name: str
    kind: str
    role: str | None
    state: str
    step: int | None
    lag: int | None
    queue: int | None
    weights: str | None
    heard: float
    code: str
    process: str
    does: str | None


@dataclass(frozen=True)
class RunProcesses:
    """The processes of a run. `step` is the leader's, `complete` how many steps are rolled out to the end, `published`
    the newest step for which all trainers have published weights; None where there is none yet."""

    run: str
    status: str
    step: int | None
    complete: int
    published: int | None
    processes: tuple[ProcessStatus, ...]


def processes_of(store: Store, run: str) -> RunProcesses:
    """The processes of a run, in order of their names. Raises `StoreError` if there is no such run."""
    record, services, now = store.run(run), store.services(run), store.now()
    config = config_from_dict(record.config["config"], f"the configuration of run {run}").training
    leader = next((one.step for one in services if one.name == LEADER), None)
    newest = {one.role: one for one in store.published(run)}  # in order of step, so the last one stays
    roles = {one.role for one in services if one.kind == "trainer" and one.role is not None}
    everywhere = min((newest[role].step for role in roles), default=None) if roles <= newest.keys() else None
    complete = _complete(store, run, leader, config)

    def told(one: ServiceRecord) -> ProcessStatus:
        silent = (now - one.updated_at) / 1000
        over = one.state in ("stopped", "failed")
        lag: int | None = None
        queue: int | None = None
        if one.kind == "trainer":
            learnt = newest[one.role].step if one.role in newest else 0
            lag = max(0, (leader + 1 if leader is not None else 0) - learnt)
            queue = max(0, complete - learnt)
        elif one.step is not None:
            lag = max(0, (everywhere or 0) - one.step)
            queue = config.shards - len(
                {mark.shard for mark in store.shards(run, one.step)} & set(range(config.shards))
            )
        return ProcessStatus(
            name=one.name,
            kind=one.kind,
            role=one.role,
            state=one.state if over or silent < SILENT else "silent",
            step=one.step,
            lag=lag,
            queue=queue,
            weights=newest[one.role].version if one.role is not None and one.role in newest else None,
            heard=silent,
            code=one.code_version,
            process=one.process,
            does=one.message,
        )

    return RunProcesses(run, record.status, leader, complete, everywhere, tuple(told(one) for one in services))


def _complete(store: Store, run: str, leader: int | None, config: TrainingConfig) -> int:
    """How many steps are complete: all before the leader's, and that one if all its markers are there."""
    if leader is None:
        return 0
    marks = {mark.shard for mark in store.shards(run, leader)}
    closing = closing_shard(config)
    wanted = {*range(config.shards), *(() if closing is None else (closing,))}
    return leader + (wanted <= marks)
