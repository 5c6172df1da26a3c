"""The services of a training on Ray within this process, which die and are started again as Ray does it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from torch import Tensor

from backend.config.schema import Config
from backend.distributed import actor, driver
from backend.distributed.actor import ServicePlace
from backend.distributed.driver import Service, distributed_trainer
from backend.policies.tensor_files import read_tensors
from backend.store.records import RunRecord
from backend.store.store import Store
from backend.training.checkpoints import checkpoints
from backend.training.rl_job import training_parts
from backend.training.trainer import Trainer
from cryptosentinel.agents.registry import roles_of
from simulator.market.market import Market
from tests.small_world import RUN, small_market

Opened = Callable[[Store, str], Store]  # the store as the service of that name sees it


class Crash(BaseException):
    """The process is dead at this point: nothing that follows happens."""


class Mortal:
    """A store whose process dies at one of its next writes, before or after it."""

    def __init__(self, store: Store, rng: random.Random, left: list[int]) -> None:
        self._store, self._rng, self._left = store, rng, left

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if not name.startswith(("add_", "put")):
            return method

        def write(*arguments: Any, **named: Any) -> Any:
            dies = self._left[0] > 0 and self._rng.random() < 0.5
            if dies and self._rng.random() < 0.5:
                self._die()
            answer = method(*arguments, **named)
            if dies:
                self._die()
            return answer

        return write

    def _die(self) -> None:
        self._left[0] -= 1
        raise Crash


class ServiceHere(Service):
    """A service in this process. A call is carried out when it is begun; where the process dies, another one repeats
    it from the beginning, as Ray does with `max_task_retries`."""

    def __init__(self, place: ServicePlace, name: str, role: str | None, store: Store, opened: Opened) -> None:
        super().__init__(name, None)
        self._build = lambda: actor.open_service(place, name, role, opened(store, name))
        self._service: Any = None
        self.deaths = 0

    def start(self, method: str, *arguments: Any) -> Any:
        while True:
            try:
                self._service = self._service or self._build()
                return Answer(getattr(self._service, method)(*arguments))
            except Crash:
                self._service = None
                self.deaths += 1


class Answer:
    """Of a call, told from every other one."""

    def __init__(self, value: Any) -> None:
        self.value = value


def finished_here(calls: dict[Any, Service], every: bool = True) -> list[tuple[Service, Any]]:
    """As `driver.finished`; the last call is finished first."""
    answers: list[tuple[Service, Any]] = []
    while calls and (every or not answers):
        done, service = calls.popitem()
        answers.append((service, done.value))
    return answers


def begin_run(store: Store, config: Config, market: Market | None = None) -> None:
    """The run, as the command that begins it records it; on the small market where none is given."""
    data_hash = (market or small_market()).content_hash
    store.add_run(RunRecord(RUN, "train", 1, data_hash, 1, {"config": config.to_dict()}))


def open_run(
    config: Config, nano: Path, folder: Path, store: Store, patch: pytest.MonkeyPatch, workers: int = 2,
    url: str = "", opened: Opened = lambda store, name: store, market: Market | None = None,
) -> tuple[Trainer, dict[str, ServiceHere]]:  # fmt: skip
    """The driver's trainer of a run whose services are here, and these by name."""
    folder.mkdir(parents=True, exist_ok=True)
    patch.setattr(driver, "finished", finished_here)
    market = market or small_market()
    patch.setattr("backend.builders.market.load_market", lambda *_: market)
    place = ServicePlace(config, "", RUN, folder, Path.cwd(), url, "", "")
    names: dict[str, str | None] = {f"rollout-{number}": None for number in range(workers)}
    names |= {f"trainer-{role}": role for role in roles_of(config.team.roles)}
    services = {name: ServiceHere(place, name, role, store, opened) for name, role in names.items()}
    parts = training_parts(config, market, store, RUN, folder, nano, folder)
    trainer = distributed_trainer(
        parts,
        driver.RunFiles(folder, url),
        [service for name, service in services.items() if names[name] is None],
        [service for name, service in services.items() if names[name] is not None],
    )
    trainer.resume()
    return trainer, services


def mortal(seed: int, deaths: int) -> Opened:
    """Stores whose processes die, so many times in all."""
    rng, left = random.Random(seed), [deaths]
    return lambda store, name: cast("Store", Mortal(store, rng, left))


def last_parameters(folder: Path, role: str) -> dict[str, Tensor]:
    """The role's parameters in its newest checkpoint, of a training on Ray or in one process."""
    own = folder / "services" / role / "checkpoints"
    newest = checkpoints(own if own.is_dir() else folder / "checkpoints")[-1]
    return read_tensors(newest / "policies" / f"{role}.safetensors")[0]
