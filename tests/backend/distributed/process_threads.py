"""A distributed training within one process: a thread for each of its processes, all on one store."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import Tensor

from backend.config.ownership import digest_of
from backend.config.schema import Config
from backend.distributed import entrypoints
from backend.distributed.by_hand import BEGUN, ByHand
from backend.distributed.entrypoints import coordinator_trainer
from backend.distributed.files.run_files import RunFiles
from backend.distributed.heartbeat import COORDINATOR, Heartbeat, RunOver
from backend.distributed.published_weights import PublishedWeights
from backend.distributed.role_trainer_service import RoleTrainerService
from backend.distributed.rollout_worker import RolloutWorker
from backend.policies.adapters import load_versions
from backend.policies.build import role_policies
from backend.policies.tensor_files import read_tensors
from backend.store.records import RunRecord
from backend.store.run_record import BY_HAND, versions
from backend.store.sharing.fences import Fence
from backend.store.store import Store
from backend.training.checkpoints import checkpoints
from backend.training.rl_job import training_parts
from cryptosentinel.agents.registry import ROLES, roles_of
from simulator.errors import UserError
from simulator.market.market import Market
from tests.small_world import RUN, small_market

Process = Callable[[Store], None]
Opened = Callable[[Store, str], Store]  # the store as a process of that name sees it


# Libraries load models in ways that only one thread at a time may; processes do not share that.
_BUILDING = threading.Lock()


class Crash(BaseException):
    """The process is dead at this point: nothing that follows happens."""


def begin_run(store: Store, config: Config) -> None:
    """The run, as the command that begins it records it."""
    store.add_run(RunRecord(RUN, "train", 1, small_market().content_hash, 1, {"config": config.to_dict()}))


def processes(
    config: Config, nano: Path, folder: Path, workers: int = 1, market: Market | None = None
) -> dict[str, Process]:
    """What each process does from its start to its end, by name. The coordinator ends the run."""
    me = str(os.getpid())

    def worker(number: int) -> Process:
        def live(store: Store) -> None:
            name = f"rollout-{number}"
            with Heartbeat(store, RUN, name, "rollout", None, me) as heartbeat:
                metrics_folder = folder if number == 0 else folder / "services" / name
                metrics_folder.mkdir(parents=True, exist_ok=True)
                files = RunFiles(folder)
                with _BUILDING:
                    data = market or small_market()
                    parts = training_parts(config, data, heartbeat.store, RUN, folder, nano, metrics_folder)
                if number:
                    RolloutWorker(parts, heartbeat, PublishedWeights(parts, heartbeat, files)).follow()
                trainer = coordinator_trainer(parts, heartbeat, files)
                trainer.resume()
                trainer.run()
            store.finish_run(RUN, "finished")

        return live

    def trainer(role: str) -> Process:
        def live(store: Store) -> None:
            with Heartbeat(store, RUN, f"trainer-{role}", "trainer", role, me) as heartbeat:
                with _BUILDING:
                    service = RoleTrainerService(
                        config, nano, role, heartbeat.store, RUN, folder, heartbeat, RunFiles(folder)
                    )
                service.run()

        return live

    rollout_workers = {f"rollout-{number}": worker(number) for number in range(workers)}
    return rollout_workers | {f"trainer-{role}": trainer(role) for role in roles_of(config.team.roles)}


def begin_by_hand(store: Store, config: Config, market: Market | None = None) -> None:
    """The run, as `train --begin` records it. Its files travel through the store."""
    document = {"config": config.to_dict(), "versions": versions(), BY_HAND: ByHand(1, "store").document()}
    data = (market or small_market()).content_hash
    store.add_run(RunRecord(RUN, "train", 1, data, 1, document, status="interrupted", message=BEGUN))


def processes_by_hand(config: Config, folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Process]:
    """What two `serve lead` and the `serve trainer` do from their start to their end, by name. Each works in a folder
    of its own in `folder`, as on a machine of its own. The second leader comes when the first leads."""
    stores: dict[str, Store] = {}
    approved = digest_of(config.to_dict())

    @contextmanager
    def opened(name: str) -> Iterator[Store]:
        yield stores[name]

    def one_at_a_time(build: Callable[..., Any]) -> Callable[..., Any]:
        def built(*arguments: Any) -> Any:
            with _BUILDING:
                return build(*arguments)

        return built

    patch.setattr(entrypoints, "Store", SimpleNamespace(open=opened))
    patch.setattr(entrypoints, "load_market", lambda *_: small_market())
    for name in ("training_parts", "RoleTrainerService"):
        patch.setattr(entrypoints, name, one_at_a_time(getattr(entrypoints, name)))

    def leader(name: str, is_first: bool) -> Process:
        def live(store: Store) -> None:
            stores[name] = store
            while not is_first and COORDINATOR not in {service.name for service in store.services(RUN)}:
                time.sleep(0.01)
            try:
                entrypoints.run_leader(name, RUN, folder / name, approved)
            except UserError as error:
                if "another process" in str(error):  # it was silent for too long, on a machine with too much to do
                    raise Crash from error
                raise

        return live

    def trainer(role: str) -> Process:
        def live(store: Store) -> None:
            stores[role] = store
            entrypoints.run_role(role, RUN, folder / role, role, approved=approved)

        return live

    trainers = {f"trainer-{role}": trainer(role) for role in roles_of(config.team.roles)}
    return {"lead-0": leader("lead-0", True), "lead-1": leader("lead-1", False)} | trainers


def run_in_threads(
    store: Store, all_processes: Mapping[str, Process], opened: Opened = lambda store, name: store
) -> dict[str, int]:
    """Run every process to its end, started again after each `Crash`; how often each of them died."""
    deaths = dict.fromkeys(all_processes, 0)
    errors: list[BaseException] = []

    def run(name: str, process: Process) -> None:
        while not errors:
            try:
                process(opened(store, name))
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

    threads = [threading.Thread(target=run, args=(name, process), name=name) for name, process in all_processes.items()]
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

    def __init__(self, store: Store, doom: int | list[int]) -> None:
        self._store = store
        self._left = [doom] if isinstance(doom, int) else doom

    def fenced(self, *fences: Fence) -> Mortal:
        """The same store with the same life, for who writes behind fences."""
        return type(self)(self._store.fenced(*fences), self._left)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if self._left[0] < 0:
            raise Crash  # the dead say nothing, not even that they are dead
        if not name.startswith(("add_", "claim_", "clear_", "put", "finish_")):
            return found

        def write(*args: Any, **kwargs: Any) -> Any:
            self._pass()
            result = found(*args, **kwargs)
            self._pass()
            return result

        return write

    def _pass(self) -> None:
        self._left[0] -= 1
        if self._left[0] < 0:
            raise Crash
