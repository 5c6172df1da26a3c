"""A training apart within one process: a thread for each of its processes, all on one store."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from backend.config.schema import Config
from backend.distributed.heartbeat import Beacon, RunOver
from backend.distributed.role_trainer_service import RoleService
from backend.distributed.rollout_worker import Worker
from backend.policies.adapters import load_versions
from backend.policies.build import role_policies
from backend.policies.tensor_files import read_tensors
from backend.store.records import RunRecord
from backend.store.store import Store
from backend.training.checkpoints import checkpoints
from backend.training.rl_job import made
from cryptosentinel.agents.registry import ROLES, roles_of
from tests.small_world import RUN, small_market

Life = Callable[[Store], None]
Opened = Callable[[Store, str], Store]  # the store as a process of that name sees it


# Libraries load models in ways that only one thread at a time may; processes do not share that.
_BUILDING = threading.Lock()


class Crash(BaseException):
    """The process is dead at this point: nothing that follows happens."""


def begin(store: Store, config: Config) -> None:
    """The run, as the command that begins it records it."""
    store.add_run(RunRecord(RUN, "train", 1, small_market().content_hash, 1, {"config": config.to_dict()}))


def lives(config: Config, nano: Path, folder: Path, workers: int = 1) -> dict[str, Life]:
    """What each process does in one life, by name. The leader ends the run."""
    me = str(os.getpid())

    def worker(number: int) -> Life:
        def live(store: Store) -> None:
            name = f"rollout-{number}"
            with Beacon(store, RUN, name, "rollout", None, me) as beacon:
                journal = folder if number == 0 else folder / "services" / name
                journal.mkdir(parents=True, exist_ok=True)
                with _BUILDING:
                    one = made(Worker, config, small_market(), store, RUN, folder, nano, journal)
                one.attend(store, beacon, number, workers)
                if number:
                    one.follow()
                one.resume()
                one.run()
            store.finish_run(RUN, "finished")

        return live

    def trainer(role: str) -> Life:
        def live(store: Store) -> None:
            with Beacon(store, RUN, f"trainer-{role}", "trainer", role, me) as beacon:
                with _BUILDING:
                    service = RoleService(config, nano, role, store, RUN, folder, beacon)
                service.run()

        return live

    found = {f"rollout-{number}": worker(number) for number in range(workers)}
    return found | {f"trainer-{role}": trainer(role) for role in roles_of(config.team.roles)}


def play(store: Store, all_lives: Mapping[str, Life], opened: Opened = lambda store, name: store) -> dict[str, int]:
    """Run every process to its end, a new life after each `Crash`; how often each of them died."""
    deaths = dict.fromkeys(all_lives, 0)
    errors: list[BaseException] = []

    def run(name: str, live: Life) -> None:
        while not errors:
            try:
                live(opened(store, name))
            except Crash:
                deaths[name] += 1
                continue
            except RunOver:
                pass
            except BaseException as error:  # noqa: BLE001  # told below, to whoever started all of them
                errors.append(error)
                if store.run(RUN).status == "running":
                    store.finish_run(RUN, "failed", str(error))
            return

    threads = [threading.Thread(target=run, args=(name, live), name=name) for name, live in all_lives.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return deaths


def last_parameters(folder: Path, role: str) -> dict[str, Tensor]:
    """The role's parameters after the last step that it learnt from."""
    found = checkpoints(folder / "services" / role / "checkpoints") or checkpoints(folder / "checkpoints")
    return read_tensors(found[-1] / "policies" / f"{role}.safetensors")[0]


def best_parameters(config: Config, nano: Path, folder: Path, step: int) -> dict[str, dict[str, Tensor]]:
    """Every role's parameters in the version that the run kept of `step`."""
    policies, _ = role_policies(nano, config.training)
    load_versions(policies, folder / "adapters" / f"step-{step:06d}")
    return {role: policies.role_state(role) for role in ROLES}


class Mortal:
    """A store that kills its process at some call: `doom` says how many points, one before and one after each write,
    are left to live."""

    def __init__(self, store: Store, doom: int) -> None:
        self._store = store
        self._left = doom

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if self._left < 0:
            raise Crash  # the dead say nothing, not even that they are dead
        if not name.startswith(("add_", "clear_", "put", "finish_")):
            return found

        def write(*args: Any, **kwargs: Any) -> Any:
            self._pass()
            result = found(*args, **kwargs)
            self._pass()
            return result

        return write

    def _pass(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise Crash
