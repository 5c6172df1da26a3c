"""The processes of a distributed training: what each of them does from its start to its end."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path

from backend.builders.market import load_market
from backend.config.schema import Config, ConfigError
from backend.distributed.coordinator import CoordinatorState, RemoteLearners
from backend.distributed.heartbeat import Heartbeat, RunOver
from backend.distributed.published_weights import PublishedWeights
from backend.distributed.role_trainer_service import RoleTrainerService
from backend.distributed.rollout_worker import RolloutWorker
from backend.distributed.run_files import SERVICES, RunFiles
from backend.models.registry import START
from backend.store import lease
from backend.store.records import RunRecord
from backend.store.run_record import PROGRAM, how_to_trust, stored_config, versions
from backend.store.store import Store
from backend.training.components import TrainingParts
from backend.training.learning.data_parallel import gradient_pool
from backend.training.rl_job import check_trainable, training_parts, write_team
from backend.training.start import start_of
from backend.training.trainer import Trainer
from backend.training.wandb_logger import require_wandb
from cryptosentinel.agents.registry import roles_of
from simulator.errors import UserError

_log = logging.getLogger(__name__)


def run_worker(
    where: str,
    run: str,
    runs: Path,
    number: int,
    workers: int,
    replaces: str = "",
    files: RunFiles | None = None,
    approved: str = "",
) -> None:
    """Rollout worker `number` of `workers` of the run, to its end; number 0 is the coordinator. `where` is the store,
    `runs` the folder of the runs' folders, `files` where the run's files are if they are not all there, `approved` the
    digest of a configuration that may be used although this user has not signed it. Raises `UserError`, `RunFailed`."""
    with Store.open(where) as store:
        config, folder = _of_run(store, run, runs, approved)
        with Heartbeat(store, run, f"rollout-{number}", "rollout", None, replaces) as heartbeat:
            market = load_market(config.market, config.costs)
            if store.run(run).data_hash != market.content_hash:
                raise UserError(
                    f"run {run} is trained on other data than {market.source} here: give this machine the same files"
                )
            files = files or RunFiles(folder)
            base = _fetch_base(config, files)
            metrics_folder = folder if number == 0 else folder / SERVICES / f"rollout-{number}"
            parts = training_parts(config, market, store, run, folder, base, metrics_folder)
            try:
                if number == 0:
                    trainer = coordinator_trainer(parts, heartbeat, workers, files)
                    trainer.resume()
                    trainer.run()
                    write_team(config, folder, base, trainer)
                else:
                    RolloutWorker(parts, heartbeat, number, workers).follow(PublishedWeights(parts, heartbeat, files))
            except RunOver:
                return
            finally:
                parts.recorder.close()


def coordinator_trainer(parts: TrainingParts, heartbeat: Heartbeat, workers: int, files: RunFiles) -> Trainer:
    """The trainer of the coordinator, which rolls out with the other workers and learns from the roles' trainers."""
    return Trainer(
        parts,
        RolloutWorker(parts, heartbeat, 0, workers),
        RemoteLearners(parts, PublishedWeights(parts, heartbeat, files)),
        CoordinatorState(parts.folder),
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
    """The trainer of `role` of the run, to the run's end; the rest as `run_worker`. Raises `UserError`, `RunFailed`."""
    with Store.open(where) as store:
        config, folder = _of_run(store, run, runs, approved)
        team = roles_of(config.team.roles)
        if role not in team:
            raise UserError(f"no role '{role}' in the team of run {run}; there are {', '.join(team)}")
        with Heartbeat(store, run, f"trainer-{role}", "trainer", role, replaces) as heartbeat:
            files = files or RunFiles(folder)
            base = _fetch_base(config, files)
            files.restore(f"{SERVICES}/{role}")
            start = start_of(config.training, folder)
            with gradient_pool(base, config.training, (role,), start) as gradients:
                service = RoleTrainerService(config, base, role, store, run, folder, heartbeat, files, gradients)
                try:
                    service.run()
                except RunOver:
                    return
                finally:
                    service.recorder.close()


def _fetch_base(config: Config, files: RunFiles) -> Path:
    """The base model; the weights that the run begins with are brought here as well."""
    if config.training.start_from:
        files.restore(START)
    return files.base(config)


def check_distributed(config: Config, workers: int) -> None:
    """Raise `ConfigError` for a training that cannot be divided among processes so."""
    check_trainable(config)
    require_wandb(config.training.wandb_project)
    experimental = config.training.experimental
    if experimental.models == "shared":
        raise ConfigError(
            "training.experimental.models = 'shared' is one model that learns from all roles, and with --launch each "
            "role learns in a process of its own: use 'separate', or leave --launch out"
        )
    if config.training.tokens:
        raise ConfigError(
            f"training.tokens = {config.training.tokens} is counted in one process: leave it out, or leave --launch out"
        )
    if experimental.collapse_margin and experimental.staleness:
        raise ConfigError(
            f"training.experimental.collapse_margin = {experimental.collapse_margin:g} puts back the best version "
            f"before the next step is rolled out, and with training.experimental.staleness = {experimental.staleness} "
            "it is under way by then: set one of them to 0"
        )
    if not 1 <= workers <= config.training.shards:
        raise ConfigError(
            f"--workers {workers}, but training.shards = {config.training.shards}: there can be as many workers as "
            "shards, and at least one"
        )
    if 0 < config.store.keep <= experimental.staleness:
        raise ConfigError(
            f"store.keep = {config.store.keep} drops conversations that a role's trainer may still have to read with "
            f"training.experimental.staleness = {experimental.staleness}: keep {experimental.staleness + 1} steps or "
            "more, or all with 0"
        )
    if experimental.newest_weights and not experimental.staleness:
        raise ConfigError(
            "training.experimental.newest_weights needs training.experimental.staleness above 0: that is how far "
            "rollouts may fall behind"
        )


def _of_run(store: Store, run: str, runs: Path, approved: str) -> tuple[Config, Path]:
    """The run's configuration and folder. Raises `UserError` for one that is no training, is over, or was begun by
    another version of this program, and for a record that says what only its user may say."""
    record = _run_with_owner(store, run)
    if record.kind != "train" or record.status != "running":
        raise UserError(
            f"run {run} is a {record.kind} run that is {record.status}: only a training that runs takes processes"
        )
    _check_code(run, record.config.get("versions", {}))
    folder = runs / run
    if not folder.is_dir():
        raise UserError(f"{folder} is not there: give --runs the folder that all processes of the run share")
    config, withheld = stored_config(record, to_continue=True, approved=approved)
    if withheld:
        raise UserError(f"{how_to_trust(record, withheld)}; on a machine without your key, name it with --approved")
    return config, folder


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
