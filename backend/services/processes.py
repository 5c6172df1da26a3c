"""The processes of a training apart: what each of them does from its start to its end."""

from __future__ import annotations

from pathlib import Path

from backend.config import Config, ConfigError, config_from_dict
from backend.markets import load_market
from backend.models import resolve_base
from backend.services.beacon import Beacon, RunOver
from backend.services.lead import Worker
from backend.services.role_service import RoleService
from backend.store.store import Store
from backend.training.job import NANO, check_trainable, made, write_team
from cryptosentinel.agents.registry import ROLES
from simulator.errors import UserError


def run_worker(where: str, run: str, runs: Path, number: int, workers: int, replaces: str = "") -> None:
    """Worker `number` of `workers` of the run, to its end; number 0 leads. `where` is the store, `runs` the folder of
    the runs' folders. Raises `UserError`, `RunFailed`."""
    with Store.open(where) as store:
        config, folder = _of_run(store, run, runs)
        with Beacon(store, run, f"rollout-{number}", "rollout", None, replaces) as beacon:
            market = load_market(config.market, config.costs)
            if store.run(run).data_hash != market.content_hash:
                raise UserError(
                    f"run {run} is trained on other data than {market.source} here: give this machine the same files"
                )
            base = base_of(config, folder)
            journal = folder if number == 0 else folder / "services" / f"rollout-{number}"
            worker = made(Worker, config, market, store, run, folder, base, journal)
            worker.attend(store, beacon, number, workers)
            try:
                if number == 0:
                    worker.resume()
                    worker.run()
                    write_team(config, folder, base, worker)
                else:
                    worker.follow()
            except RunOver:
                return
            finally:
                worker.journal.close()


def run_role(where: str, run: str, runs: Path, role: str, replaces: str = "") -> None:
    """The trainer of `role` of the run, to the run's end. Raises `UserError`, `RunFailed`."""
    if role not in ROLES:
        raise UserError(f"no role '{role}'; there are {', '.join(ROLES)}")
    with Store.open(where) as store:
        config, folder = _of_run(store, run, runs)
        with Beacon(store, run, f"trainer-{role}", "trainer", role, replaces) as beacon:
            service = RoleService(config, base_of(config, folder), role, store, run, folder, beacon)
            try:
                service.run()
            except RunOver:
                return
            finally:
                service.journal.close()


def check_apart(config: Config, workers: int) -> None:
    """Raise `ConfigError` for a training that cannot be divided among processes so."""
    check_trainable(config)
    if config.training.dynamic_rounds:
        raise ConfigError(
            f"training.dynamic_rounds = {config.training.dynamic_rounds} draws windows by what all workers found, and "
            "only the training in one process knows that: set it to 0, or leave --launch out"
        )
    if not 1 <= workers <= config.training.shards:
        raise ConfigError(
            f"--workers {workers}, but training.shards = {config.training.shards}: there can be as many workers as "
            "shards, and at least one"
        )
    if config.training.unsynchronised and not config.training.staleness:
        raise ConfigError(
            "training.unsynchronised needs training.staleness above 0: that is how far rollouts may fall behind"
        )


def base_of(config: Config, folder: Path) -> Path:
    """The base model of a run, which must be there: whoever began the run has made it."""
    base = resolve_base(config.training.base_model) if config.training.base_model else folder / NANO
    if not base.is_dir():
        raise UserError(f"{base} is not there: begin the run with `cryptosentinel train --launch processes`")
    return base


def _of_run(store: Store, run: str, runs: Path) -> tuple[Config, Path]:
    """The run's configuration and folder. Raises `UserError` for one that is no training, or is over."""
    record = store.run(run)
    if record.kind != "train" or record.status != "running":
        raise UserError(
            f"run {run} is a {record.kind} run that is {record.status}: only a training that runs takes processes"
        )
    folder = runs / run
    if not folder.is_dir():
        raise UserError(f"{folder} is not there: give --runs the folder that all processes of the run share")
    return config_from_dict(record.config["config"], f"the configuration of run {run}"), folder
