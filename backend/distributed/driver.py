"""The driver of a training on Ray: the trainer of `backend.training.trainer`, whose rollouts and learners are actors.

It plans each step, hands its shards to free workers, lets the roles' trainers learn when all shards are stored,
validates the new weights itself, and keeps the state of the run. It ends with the bits of a training in one process.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from backend.config.schema import Config, ConfigError
from backend.distributed.actor import ServiceActor, ServicePlace
from backend.distributed.cluster import require_alive
from backend.distributed.files import SERVICES, RunFiles
from backend.distributed.placement import Capacity, allocate
from backend.distributed.published import PublishedWeights
from backend.models.registry import START
from backend.store.run_record import code_version
from backend.store.store import Store
from backend.training.checkpoints import TrainingState, read_kept
from backend.training.components import LearningStep, RolloutBatch, TrainingParts
from backend.training.curriculum.curriculum import StepPlan
from backend.training.learning.learner import StepData
from backend.training.learning.training_metrics import team_metrics
from backend.training.rl_job import check_trainable, training_parts, write_team
from backend.training.rollout.shared_shards import to_bytes
from backend.training.start import NANO, begin, require_start
from backend.training.trainer import Progress, Trainer
from backend.training.wandb_logger import require_wandb
from cryptosentinel.agents.registry import roles_of
from cryptosentinel.scheduler import Throughput
from simulator.errors import RunFailed, UserError
from simulator.files import write_whole
from simulator.market.market import Market

RESTARTS = 20  # of one actor; a run that needs more is not worth continuing
_STATE = Path(SERVICES, "coordinator.json")
_LOOK_SECONDS = 2.0  # between two looks whether the cluster is there

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RayRequest:
    """What a training on Ray needs besides its configuration: the address of the store, how many rollout workers, and
    the URL of its files (`RunFiles`), empty where all machines share the folder of runs."""

    store: str
    workers: int
    files: str = ""


def run_ray(
    config: Config,
    market: Market,
    store: Store,
    run: str,
    folder: Path,
    request: RayRequest,
    report: Callable[[str, int, int], None],
    on_progress: Callable[[Progress], None],
) -> TrainingState:
    """Train in `folder` with actors on the Ray cluster that this process is connected to (`cluster`), continuing where
    the run stopped; the state at the end. The team is in the folder then.

    Raises `ConfigError` for a cluster without resources for the actors, `UserError` for one that cannot be used,
    `RunFailed` where the training cannot continue.
    """
    folder = folder.absolute()
    (folder / SERVICES).mkdir(parents=True, exist_ok=True)
    files = RunFiles(folder, f"{request.files.rstrip('/')}/{run}" if request.files else "")
    base = begin(config, market, folder, report)
    for part in (NANO, START):
        if (folder / part).is_dir():
            files.send_folder(part)
    place = ServicePlace(
        config, request.store, run, folder, Path.cwd(), files.url, code_version(), secrets.token_hex(16)
    )
    place.token_path().write_text(place.token)  # for as long as actors may be started again
    try:
        actors = Actors(place, request.workers)
        actors.wait_until_ready()
        parts = training_parts(config, market, store, run, folder, base, folder)
        trainer = distributed_trainer(parts, files, actors.workers, list(actors.trainers.values()))
        try:
            trainer.resume()
            state = trainer.run(on_progress)
        finally:
            parts.recorder.close()
    finally:
        place.token_path().unlink(missing_ok=True)
    write_team(config, folder, base, trainer, market)
    return state


class Service:
    """A service elsewhere, as the driver calls it. In tests it is in this process."""

    def __init__(self, name: str, actor: Any) -> None:
        self.name = name
        self._actor = actor

    def start(self, method: str, *arguments: Any) -> Any:
        """Let the service begin; what `finished` takes."""
        return self._actor.call.remote(method, *arguments)

    def ready(self) -> Any:
        """Let the service be built; what `finished` takes."""
        return self._actor.ready.remote()


def finished(calls: dict[Any, Service], every: bool = True) -> list[tuple[Service, Any]]:
    """Wait until one of the calls, or every one of them, is finished; the services with their answers. They are taken
    out of `calls`. Raises what a call raised, and `RunFailed` where an actor cannot be started any more."""
    import ray
    from ray.exceptions import RayActorError, RayTaskError

    answers: list[tuple[Service, Any]] = []
    while calls and (every or not answers):
        require_alive()
        for done in ray.wait(list(calls), timeout=_LOOK_SECONDS)[0]:
            service = calls.pop(done)
            try:
                answers.append((service, ray.get(done)))
            except RayTaskError as error:
                raise error.cause if isinstance(error.cause, UserError | RunFailed) else error from None
            except RayActorError as error:
                require_alive()
                raise RunFailed(
                    f"{service.name} has died more than {RESTARTS} times, or has no machine left: {_last_line(error)}"
                ) from error
    return answers


class Actors:
    """The actors of a run: `workers`, and `trainers` by role."""

    def __init__(self, place: ServicePlace, workers: int) -> None:
        import ray

        roles = roles_of(place.config.team.roles)
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        machines = [Capacity(node.get("CPU", 0.0), node.get("GPU", 0.0)) for node in nodes]
        rollout, trainer = allocate(machines, place.config, workers, len(roles))

        def made(name: str, role: str | None, share: Capacity) -> Service:
            options = {"num_cpus": share.cpus, "num_gpus": share.gpus, "max_restarts": RESTARTS, "max_task_retries": -1}
            return Service(name, ray.remote(ServiceActor).options(**options).remote(place, name, role))

        self.workers = [made(f"rollout-{number}", None, rollout) for number in range(workers)]
        self.trainers = {role: made(f"trainer-{role}", role, trainer) for role in roles}

    def wait_until_ready(self) -> None:
        """Wait until all of them are built. Raises as `finished`."""
        finished({service.ready(): service for service in (*self.workers, *self.trainers.values())})


def distributed_trainer(
    parts: TrainingParts, files: RunFiles, workers: Sequence[Service], trainers: Sequence[Service]
) -> Trainer:
    """The trainer of the driver, whose rollouts come from `workers` and whose roles learn in `trainers`."""
    recorder = parts.recorder
    weights = PublishedWeights(recorder.store, recorder.run, parts.policies, parts.publisher, files)
    return Trainer(
        parts, RemoteRollouts(parts, workers), RemoteLearners(weights, trainers), CoordinatorState(parts.folder)
    )


class RemoteRollouts:
    """A `RolloutSource` whose shards are rolled out by the workers. The rollouts stay in the store."""

    def __init__(self, parts: TrainingParts, workers: Sequence[Service]) -> None:
        self._parts = parts
        self._workers = workers
        self._store, self._run = parts.recorder.store, parts.recorder.run

    def collect(self, plan: StepPlan) -> RolloutBatch:
        """As `RolloutSource.collect`."""
        step, stage, parts = plan.step, plan.stage, self._parts
        throughput = Throughput()
        waiting, free = deque(enumerate(parts.collector.queries(step, stage))), deque(self._workers)
        calls: dict[Any, Service] = {}
        while waiting or calls:
            while waiting and free:  # each worker gets the next shard when it is free
                shard, queries = waiting.popleft()
                worker = free.popleft()
                calls[worker.start("roll_out", step, stage.number, shard, to_bytes(queries))] = worker
            for worker, busy in finished(calls, every=False):
                throughput.add(busy)
                free.append(worker)
        records = self._store.rollouts(self._run, step)
        metrics = {"stage": float(stage.number), **team_metrics(records)}
        return RolloutBatch(StepData(stage, [], []), metrics, throughput.metrics())


class RemoteLearners:
    """A `LearnerPool` whose learners are the roles' trainers. They read the rollouts in the store."""

    def __init__(self, weights: PublishedWeights, trainers: Sequence[Service]) -> None:
        self._weights = weights
        self._trainers = trainers

    def load_weights(self, step: int) -> None:
        """As `LearnerPool.load_weights`: those that were published for `step`."""
        self._all("publish")
        self._weights.load(step)

    def train_step(self, step: int, data: StepData) -> LearningStep:
        """As `LearnerPool.train_step`. Rewards and metrics come from the store."""
        self._all("train", step)
        metrics: dict[str, float] = {}
        rollbacks: list[tuple[int, str]] = []
        failure: str | None = None
        for record in self._weights.load(step + 1):
            metrics |= record.metrics["metrics"]
            failure = failure or record.metrics["failure"]
            if record.metrics["rolled_back"]:
                rollbacks.append((step, record.role))
        return LearningStep(metrics, rollbacks=rollbacks, failure=failure)

    def _all(self, method: str, *arguments: Any) -> None:
        finished({trainer.start(method, *arguments): trainer for trainer in self._trainers})


class CoordinatorState:
    """A `StateStore` that keeps the state of the run in `folder` in a file of its own; the rest of what a resumed run
    needs is with the trainers and in the store."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _STATE

    def load(self) -> TrainingState | None:
        """As `StateStore.load`."""
        if not self._path.is_file():
            return None
        return read_kept(self._path, TrainingState, "put the run's folder back from a copy")

    def save(self, state: TrainingState) -> None:
        """As `StateStore.save`: whole or not at all."""
        write_whole(self._path, json.dumps(asdict(state)))


def check_distributed(config: Config) -> None:
    """Raise `ConfigError` for a training that actors cannot share."""
    check_trainable(config)
    require_wandb()
    require_start(config.training)
    if config.training.tokens:
        raise ConfigError(
            f"training.tokens = {config.training.tokens} is counted in one process: leave it out, or leave --launch out"
        )


def with_enough_shards(config: Config, workers: int) -> tuple[Config, str | None]:
    """The configuration with a shard for each worker at least, and a note where it was changed for that."""
    shards = config.training.shards
    if workers <= shards:
        return config, None
    training = config.training.model_copy(update={"shards": workers})
    note = (
        f"training.shards = {workers} in place of {shards}, so that each of {workers} workers has one; results differ "
        f"in the last bits from those with {shards}"
    )
    return config.model_copy(update={"training": training}), note


def _last_line(error: BaseException) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1].strip()[:400] if lines else type(error).__name__
