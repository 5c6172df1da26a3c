"""The processes of a distributed training: what each of them does from its start to its end."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from backend.builders.market import load_market
from backend.config.schema import Config, ConfigError
from backend.distributed.by_hand import ByHand, await_leader, led_run
from backend.distributed.coordinator import CoordinatorState, RemoteLearners
from backend.distributed.files.run_files import SERVICES, RunFiles
from backend.distributed.heartbeat import COORDINATOR, ENDED, Heartbeat, NameTaken, RunOver
from backend.distributed.published_weights import PublishedWeights
from backend.distributed.role_trainer_service import RoleTrainerService
from backend.distributed.rollout_worker import RolloutWorker
from backend.models.registry import START
from backend.store import lease
from backend.store.records import RunRecord
from backend.store.run_record import PROGRAM, how_to_trust, stored_config, versions
from backend.store.store import Store
from backend.training.components import TrainingParts
from backend.training.learning.data_parallel import gradient_pool
from backend.training.rl_job import check_trainable, training_parts, write_team
from backend.training.start import require_start, start_of
from backend.training.trainer import Trainer
from backend.training.wandb_logger import require_wandb
from cryptosentinel.agents.registry import roles_of
from simulator.errors import UserError

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class JoinedRun:
    """A run as one of its processes has joined it; `by_hand` is None where a launcher starts the processes."""

    record: RunRecord
    config: Config
    by_hand: ByHand | None

    def place(
        self, heartbeat: Heartbeat, runs: Path, files: RunFiles | None, leads: bool = False
    ) -> tuple[Path, RunFiles]:
        """The folder of the process, and where the run's files are: `files`, if it was given any."""
        run = self.record.run
        if self.by_hand is None:
            return runs / run, files or RunFiles(runs / run)
        folder = self.by_hand.folder(runs, run, None if leads else heartbeat.name)
        if self.by_hand.files == "store":
            folder.mkdir(parents=True, exist_ok=True)
        return folder, self.by_hand.run_files(folder, heartbeat.store, run, runs)


def run_worker(
    where: str,
    run: str,
    runs: Path,
    number: int | None,
    replaces: str = "",
    files: RunFiles | None = None,
    approved: str = "",
) -> None:
    """Rollout worker `number` of the run, to its end; None for the first number that nobody has. Number 0 is the
    coordinator. `where` is the store, `runs` the folder of the runs' folders, `files` where the run's files are if they
    are not all there, `approved` the digest of a configuration that may be used although this user has not signed it.
    Raises `UserError`, `RunFailed`."""
    with Store.open(where) as store:
        joined = _join(store, run, runs, approved)
        with worker_heartbeat(store, run, number, replaces) as heartbeat:
            leads = heartbeat.name == COORDINATOR
            folder, files = joined.place(heartbeat, runs, files)
            with _rollout_parts(joined, heartbeat, folder, files, leads) as (parts, base):
                try:
                    if leads:
                        _lead(joined.config, parts, heartbeat, files, base)
                    else:
                        RolloutWorker(parts, heartbeat, PublishedWeights(parts, heartbeat, files)).follow()
                except RunOver:
                    return


def run_leader(where: str, run: str, runs: Path, approved: str = "") -> Path | None:
    """Lead a run that was begun by `train --begin`, to its end, and roll out as well; where somebody leads it, stand by
    until that one is gone. The folder of the team at the end; None where another has led the run to its end. Raises
    `UserError`, `RunFailed`."""
    with Store.open(where) as store:
        record = store.run(run)
        if ByHand.of(record) is None:
            raise UserError(f"run {run} has no leader of its own: begin one with `cryptosentinel train --begin`")
        joined = _trusted(record, approved)
        try:
            with Heartbeat(store, run, COORDINATOR, "rollout", standby=True) as heartbeat:
                if store.run(run).status == "finished":
                    return None
                folder, files = joined.place(heartbeat, runs, None, leads=True)
                with (
                    led_run(heartbeat, store.run(run)),
                    _rollout_parts(joined, heartbeat, folder, files, leads=True) as (parts, base),
                ):
                    _lead(joined.config, parts, heartbeat, files, base)
        except RunOver:
            return None
        return folder


def _lead(config: Config, parts: TrainingParts, heartbeat: Heartbeat, files: RunFiles, base: Path) -> None:
    trainer = coordinator_trainer(parts, heartbeat, files)
    trainer.resume()
    trainer.run()
    write_team(config, parts.folder, base, trainer, parts.pool.market)


@contextmanager
def _rollout_parts(
    joined: JoinedRun, heartbeat: Heartbeat, folder: Path, files: RunFiles, leads: bool
) -> Iterator[tuple[TrainingParts, Path]]:
    """What a rollout worker works with, and the base model. Raises `UserError` for other data than the run's."""
    config, run = joined.config, joined.record.run
    market = load_market(config.market, config.costs)
    if joined.record.data_hash != market.content_hash:
        raise UserError(
            f"run {run} is trained on other data than {market.source} here: give this machine the same files"
        )
    base = _fetch_base(config, files)
    metrics_folder = folder if leads else folder / SERVICES / heartbeat.name
    parts = training_parts(config, market, heartbeat.store, run, folder, base, metrics_folder)
    try:
        yield parts, base
    finally:
        parts.recorder.close()


@contextmanager
def worker_heartbeat(store: Store, run: str, number: int | None, replaces: str = "") -> Iterator[Heartbeat]:
    """The heartbeat of rollout worker `number`, for a block; the rest as of `Heartbeat`. Without a number it is the
    first that nobody has: of several that begin at once each gets one of its own."""
    with ExitStack() as stack:
        if number is not None:
            yield stack.enter_context(Heartbeat(store, run, f"rollout-{number}", "rollout", None, replaces))
            return
        while True:
            taken = {service.name for service in store.services(run) if service.state not in ENDED} | {COORDINATOR}
            name = next(name for name in map("rollout-{}".format, itertools.count()) if name not in taken)
            with suppress(NameTaken):
                heartbeat = stack.enter_context(Heartbeat(store, run, name, "rollout"))
                break
        yield heartbeat


def coordinator_trainer(parts: TrainingParts, heartbeat: Heartbeat, files: RunFiles) -> Trainer:
    """The trainer of the coordinator, which rolls out with the other workers and learns from the roles' trainers."""
    weights = PublishedWeights(parts, heartbeat, files)
    return Trainer(
        parts,
        RolloutWorker(parts, heartbeat, weights),
        RemoteLearners(weights),
        CoordinatorState(parts.folder, files),
    )


def run_role(
    where: str,
    run: str,
    runs: Path,
    role: str,
    replaces: str = "",
    files: RunFiles | None = None,
    approved: str = "",
) -> None:
    """The trainer of `role` of the run, to the run's end; the rest as `run_worker`. Of a run that was begun by hand,
    one that is started beside another of its role stands by. Raises `UserError`, `RunFailed`."""
    with Store.open(where) as store:
        joined = _join(store, run, runs, approved)
        config, team = joined.config, roles_of(joined.config.team.roles)
        if role not in team:
            raise UserError(f"no role '{role}' in the team of run {run}; there are {', '.join(team)}")
        standby = joined.by_hand is not None
        try:
            with Heartbeat(store, run, f"trainer-{role}", "trainer", role, replaces, standby) as heartbeat:
                folder, files = joined.place(heartbeat, runs, files)
                base = _fetch_base(config, files)
                files.restore(f"{SERVICES}/{role}")
                start = start_of(config.training, folder)
                with gradient_pool(base, config.training, (role,), start) as gradients:
                    service = RoleTrainerService(
                        config, base, role, heartbeat.store, run, folder, heartbeat, files, gradients
                    )
                    try:
                        service.run()
                    finally:
                        service.recorder.close()
        except RunOver:
            return


def _fetch_base(config: Config, files: RunFiles) -> Path:
    """The base model; the weights that the run begins with are brought here as well."""
    if config.training.start_from:
        files.restore(START)
    return files.base(config)


def check_distributed(config: Config, workers: int) -> None:
    """Raise `ConfigError` for a training that cannot be divided among processes so."""
    check_trainable(config)
    require_start(config.training)
    require_wandb(config.training.wandb_project)
    if config.training.tokens:
        raise ConfigError(
            f"training.tokens = {config.training.tokens} is counted in one process: leave it out, or leave --launch out"
        )
    if workers < 1:
        raise ConfigError(f"--workers {workers}: a training needs one rollout worker at least")
    if 0 < config.store.keep <= config.training.staleness:
        raise ConfigError(
            f"store.keep = {config.store.keep} drops conversations that a role's trainer may still have to read with "
            f"training.staleness = {config.training.staleness}: keep {config.training.staleness + 1} steps or "
            "more, or all with 0"
        )


def _join(store: Store, run: str, runs: Path, approved: str) -> JoinedRun:
    """The run. Waits for who leads one that was begun by hand. Raises `UserError` for one that is no training, is over,
    or was begun by another version of this program, and for a record that says what only its user may say."""
    by_hand = ByHand.of(store.run(run))
    record = _run_with_owner(store, run) if by_hand is None else await_leader(store, run)
    if record.kind != "train" or record.status != "running":
        raise UserError(
            f"run {run} is a {record.kind} run that is {record.status}: only a training that runs takes processes"
        )
    joined = _trusted(record, approved)
    if (by_hand is None or by_hand.files == "folder") and not (runs / run).is_dir():
        raise UserError(f"{runs / run} is not there: give --runs the folder that all processes of the run share")
    return joined


def _trusted(record: RunRecord, approved: str) -> JoinedRun:
    """The run with its configuration, if this program and this user may carry it out. Raises `UserError`."""
    _check_code(record.run, record.config.get("versions", {}))
    config, withheld = stored_config(record, approved=approved)
    if withheld:
        raise UserError(f"{how_to_trust(record, withheld)}; on a machine without your key, name it with --approved")
    return JoinedRun(record, config, ByHand.of(record))


def with_enough_shards(config: Config, workers: int) -> tuple[Config, str | None]:
    """The configuration with a shard for each worker at least, and a note where it was changed for that."""
    shards = config.training.shards
    if workers <= shards:
        return config, None
    training = config.training.model_copy(update={"shards": workers})
    note = (
        f"training.shards = {workers} in place of {shards}, so that each of {workers} workers has one; results differ"
    )
    return config.model_copy(update={"training": training}), f"{note} in the last bits from those with {shards}"


def _run_with_owner(store: Store, run: str) -> RunRecord:
    """The run. If it seems to have lost its owner, wait as long as a living owner may take to renew its lease."""
    until = time.monotonic() + 3 * lease.INTERVAL
    while lease.abandoned(record := store.run(run)) and time.monotonic() < until:
        time.sleep(lease.INTERVAL / 40)
    return record


def _check_code(run: str, recorded: Mapping[str, str]) -> None:
    """Raise `UserError` for another version of this program than the run's; warn of what else may change results."""
    here = versions()
    began = recorded.get(PROGRAM, "unknown")
    if began != here[PROGRAM]:
        raise UserError(
            f"run {run} was begun by version {began} of this program, and this process has version {here[PROGRAM]}: "
            "use the same everywhere, or stop the run and go on with all of it in this version"
        )
    for name, version in here.items():
        if version != recorded.get(name, version):
            _log.warning("the run was begun with %s %s, this process has %s", name, recorded[name], version)
