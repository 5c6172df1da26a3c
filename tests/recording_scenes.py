"""Engines whose answers a test knows, and short ways to record them."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cryptosentinel.llm.engine import Completion, Engine, Request, Sampling, Usage, failed_completion
from cryptosentinel.llm.recording import Recorder, record
from simulator.errors import RunFailed
from tests.team_scenes import codec

ROLES = ("manager", "trader")
SETTINGS = {"horizon_bars": 12, "roles": ["trader"]}


class Oracle:
    """Answers with numbers drawn from the request, seed at temperature 0 apart, and keeps what it was asked."""

    name = "oracle"

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.versions = {role: f"{role}-v1" for role in ROLES}
        self.fails: set[int] = set()  # seeds whose requests fail
        self.stops_at = -1  # the number of the request at which everything ends

    def policy_version(self, role: str) -> str:
        return self.versions[role]

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return [self.say(request) for request in requests]

    def say(self, request: Request) -> Completion:
        if len(self.asked) == self.stops_at:
            raise RunFailed("the engine has stopped")
        self.asked.append(request)
        if request.seed in self.fails:
            return failed_completion("out of order", Usage(3, 0, 0, 0.5))
        seed = request.seed if request.sampling.temperature else None
        rng = random.Random(repr((request.role, request.ids, request.sampling, seed)))
        length = rng.randrange(6)
        logps = [-rng.expovariate(1.0) * 10.0 ** rng.randrange(-320, 300) for _ in range(length)]
        return Completion(
            tuple(rng.randrange(256) for _ in range(length)),
            tuple(rng.choice([logp, -0.0, -5e-324, float("-inf")]) for logp in logps),
            rng.random() < 0.9,
            Usage(rng.randrange(99), rng.randrange(9), length, rng.random()),
        )


class StreamingOracle(Oracle):
    """The same, each answer ready when a test says so; at once where it says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[tuple[Request, Future[Completion]]] | None = None

    def submit(self, request: Request) -> Future[Completion]:
        future: Future[Completion] = Future()
        if self.held is not None:
            self.held.append((request, future))
            return future
        self.answer(request, future)
        return future

    def cancel_pending(self) -> None:
        for _, future in self.held or ():
            future.cancel()

    def answer(self, request: Request, future: Future[Completion]) -> None:
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(self.say(request))
            except RunFailed as error:
                future.set_exception(error)


def start(engine: Engine, path: Path, **changes: Any) -> Recorder:
    arguments: dict[str, Any] = {"codec": codec(), "roles": ROLES, "settings": SETTINGS} | changes
    return record(engine, path, **arguments)


@contextmanager
def recording(engine: Engine, path: Path, **changes: Any) -> Iterator[Recorder]:
    recorder = start(engine, path, **changes)
    try:
        yield recorder
    finally:
        recorder.close()


def request(number: int = 0, role: str = "manager", seed: int = 1, **sampling: Any) -> Request:
    return Request(role, (number, 2, 3), Sampling(**sampling), seed)


def same(first: Sequence[Completion], second: Sequence[Completion]) -> bool:
    """Equal to the bit, usage included."""

    def bits(completion: Completion) -> tuple[object, ...]:
        packed = struct.pack(f"{len(completion.logps)}d", *completion.logps)
        return (completion.ids, packed, completion.finished, completion.usage, completion.failure)

    return [bits(one) for one in first] == [bits(one) for one in second]


def record_three(path: Path) -> Path:
    """Three calls of the manager."""
    with recording(Oracle(), path) as recorder:
        recorder.generate([request(number, seed=10 + number) for number in range(3)])
    return path
